"""Frozen values without I/O. Every module may import them."""
