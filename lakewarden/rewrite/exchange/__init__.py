"""Rows that travel from task to task."""
