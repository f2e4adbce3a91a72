"""Which rows of the sources are deleted."""
