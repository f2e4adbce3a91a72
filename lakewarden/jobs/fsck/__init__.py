"""fsck: finds damage in a table and says how to repair it."""
