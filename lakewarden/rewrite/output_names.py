"""The names of output files: a journaled prefix, and a number that no other task of the application has.

Spark runs a task again after a failure, twice at the same time when it speculates, and from the start, with
attempts counted from 0, when a stage is repeated. No attempt may overwrite or remove a file that another has
closed.
"""

from __future__ import annotations

from pyspark import TaskContext


def attempt_path(prefix: str) -> str:
    """A new file name for the current task."""
    context = TaskContext.get()
    return f"{prefix}{context.taskAttemptId() if context else 0}.parquet"
