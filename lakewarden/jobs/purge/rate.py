"""Limits deletion to a steady number of files per second."""

from __future__ import annotations

import threading

from lakewarden import clock
from lakewarden.rate_limit import TokenBucket

# How many seconds of a slow batch the next batches may make up for by starting earlier.
_CATCH_UP = 2.0


class Rate:
    """Paces work in batches, so that the average rate holds at every moment since the start, including the first batch."""

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and per_second <= 0:
            raise ValueError(f"a rate of {per_second:g} a second never ends")
        now = clock.monotonic()
        self._bucket = TokenBucket(per_second, per_second * _CATCH_UP, now) if per_second else None
        self._lock = threading.Lock()

    def wait(self, n: int) -> None:
        """Wait until n more may be done. Later batches make up for a batch that took a little too long; idle
        time is not saved.
        """
        if self._bucket is None or not n:
            return
        with self._lock:
            now = clock.monotonic()
            self._bucket.take(n, now)
            due = now + self._bucket.owed(now)
        while (left := due - clock.monotonic()) > 0:
            clock.sleep(left)
