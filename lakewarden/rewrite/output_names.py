"""The names a task writes under: a prefix that was journaled, and a number no other task of the application has.

Spark runs a task again after a failure, twice at once when it speculates, and from the start, with attempts counted from
0, when a stage is repeated. None of them may overwrite, or remove, what another has closed.
"""

from __future__ import annotations

from pyspark import TaskContext


def attempt_path(prefix: str) -> str:
    """The name for the task that asks."""
    context = TaskContext.get()
    return f"{prefix}{context.taskAttemptId() if context else 0}.parquet"
