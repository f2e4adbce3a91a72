"""Staged loads: files of other tools that are adopted into a table."""
