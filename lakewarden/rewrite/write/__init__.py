"""Writes output files."""
