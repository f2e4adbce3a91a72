"""Rewriting data files: the interface of the two engines, and the Arrow kernels that run in Spark tasks."""
