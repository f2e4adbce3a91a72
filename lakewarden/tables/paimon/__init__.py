"""Apache Paimon, read and committed to by its own library."""
