"""The names a task may write under: Spark runs it again after a failure, or twice at once when it speculates."""

from __future__ import annotations

ATTEMPTS = 8


def attempt_path(prefix: str, attempt: int) -> str:
    return f"{prefix}{attempt}.parquet"
