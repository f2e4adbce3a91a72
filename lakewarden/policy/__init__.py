"""The policy of a table: for every key its value, and where the value came from."""
