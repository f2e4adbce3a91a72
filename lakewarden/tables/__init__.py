"""Reading and committing tables of each format. Every format's folder has the same file names."""
