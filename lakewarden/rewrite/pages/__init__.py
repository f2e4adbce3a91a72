"""Copying Parquet pages as they are."""
