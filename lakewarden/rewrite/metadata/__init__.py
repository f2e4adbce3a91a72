"""Reads large numbers of Avro metadata files."""
