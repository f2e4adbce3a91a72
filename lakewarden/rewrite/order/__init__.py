"""Orders rows: sort, z-order and Hilbert curve."""
