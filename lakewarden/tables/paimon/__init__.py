"""Apache Paimon tables. Its own Java library, in the driver's JVM, plans and commits."""
