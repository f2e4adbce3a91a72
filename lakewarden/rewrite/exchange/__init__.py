"""Sends rows between tasks, to sort a partition that does not fit into one task's memory."""
