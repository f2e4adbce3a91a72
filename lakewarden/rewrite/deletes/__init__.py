"""Finds which rows of the sources are deleted."""
