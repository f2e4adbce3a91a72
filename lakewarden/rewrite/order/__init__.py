"""The order of rows: sort, z-order and Hilbert."""
