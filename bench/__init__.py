"""Benchmarks against Iceberg's and Paimon's own procedures, on the same tables in the same Spark session."""
