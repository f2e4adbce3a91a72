"""Copying files to another store."""
