"""Decides which files must stay, and grants the only permission to delete files."""
