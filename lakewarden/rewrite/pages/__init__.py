"""Copies Parquet pages without decoding them."""
