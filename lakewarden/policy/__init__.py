"""Policy: what may be done to a table, key by key, and where each value came from."""
