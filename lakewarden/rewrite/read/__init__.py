"""Reading source files."""
