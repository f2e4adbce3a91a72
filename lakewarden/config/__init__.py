"""Settings: what there is, and how it is read."""
