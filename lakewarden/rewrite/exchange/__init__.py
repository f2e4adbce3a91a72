"""Sending rows from task to task, to order a partition that does not fit one task."""
