"""Measurements against Iceberg's own procedures, on the same tables in the same session."""
