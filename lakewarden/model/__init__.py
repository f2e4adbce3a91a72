"""Frozen nouns, without I/O: everybody may import them."""
