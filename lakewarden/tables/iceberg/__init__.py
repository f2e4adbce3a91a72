"""Apache Iceberg, planned and committed by its own Java library in the driver's JVM."""
