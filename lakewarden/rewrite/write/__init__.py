"""Writing output files."""
