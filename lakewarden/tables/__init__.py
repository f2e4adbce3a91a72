"""How a table format is read and committed. The same file names in every format's folder."""
