"""Reads source files."""
