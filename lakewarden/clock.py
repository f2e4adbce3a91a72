"""The only module that asks the time; everything else is handed it."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


def from_millis(millis: int) -> datetime:
    """The moment a table format's millisecond timestamp means."""
    return datetime.fromtimestamp(millis / 1000, UTC)


def monotonic() -> float:
    """Seconds that only ever grow, for measuring durations and deadlines."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    time.sleep(seconds)
