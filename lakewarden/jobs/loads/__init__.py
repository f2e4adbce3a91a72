"""Staged loads: files that others wrote, and how they become part of a table."""
