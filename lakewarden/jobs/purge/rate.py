"""Limits deletion to a steady number of files per second."""

from __future__ import annotations

import threading

from lakewarden import clock

# How many seconds of a slow batch the next batches may make up for by starting earlier.
_CATCH_UP = 2.0


class Rate:
    """Paces work in batches, so that the average rate holds at every moment since the start, including the first batch."""

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and per_second <= 0:
            raise ValueError(f"a rate of {per_second:g} a second never ends")
        self._seconds_each = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic()
        self._lock = threading.Lock()

    def wait(self, n: int) -> None:
        """Wait until n more may be done. Later batches make up for a batch that took a little too long; idle
        time is not saved.
        """
        took = n * self._seconds_each
        if not took:
            return
        with self._lock:
            self._due = max(self._due + took, clock.monotonic() - _CATCH_UP)
            due = self._due
        while (left := due - clock.monotonic()) > 0:
            clock.sleep(left)
