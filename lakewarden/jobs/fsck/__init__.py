"""fsck: what is wrong with a table, and how to repair it."""
