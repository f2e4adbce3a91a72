"""So many a second, evenly."""

from __future__ import annotations

import threading

from lakewarden import clock

# Seconds a slow batch may be made good for by the next ones going sooner.
_CATCH_UP = 2.0


class Rate:
    """Paces work done in batches, so that the average holds at every moment since the start, the first batch included."""

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and per_second <= 0:
            raise ValueError(f"a rate of {per_second:g} a second never ends")
        self._seconds_each = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic()
        self._lock = threading.Lock()

    def wait(self, n: int) -> None:
        """Before doing n more: until so many may be done. A batch that took a little too long is caught up with; idle time is not saved up."""
        took = n * self._seconds_each
        if not took:
            return
        with self._lock:
            self._due = max(self._due + took, clock.monotonic() - _CATCH_UP)
            due = self._due
        while (left := due - clock.monotonic()) > 0:
            clock.sleep(left)
