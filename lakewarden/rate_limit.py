"""Limits how fast one Spark task reads and writes. Each task is one thread and has its own token buckets.

A rewrite reads whole row groups, often more than a second's worth of budget. So a call returns at once and
leaves a debt, and the next call of that kind waits until the debt is paid. Time spent decoding and encoding
in between also pays the debt. That is why the wait comes before the next call: waiting right after a call
would pay twice. At the end of the task `settle` sleeps off the remaining debt, so that a whole task never
exceeds its budgets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Seconds of unused budget that remain after a call. A larger value would allow a burst of requests after a long pause.
_BURST = 0.25


@dataclass(frozen=True, slots=True)
class Pace:
    """Bytes and requests per second; None means no limit. Pickled to the task."""

    read_bytes: float | None = None
    write_bytes: float | None = None
    requests: float | None = None

    @property
    def limits(self) -> bool:
        """Whether any limit is set."""
        return any(rate is not None for rate in (self.read_bytes, self.write_bytes, self.requests))

    def part(self, fraction: float) -> Pace:
        """This fraction of every budget."""
        return Pace(
            _part(self.read_bytes, fraction),
            _part(self.write_bytes, fraction),
            _part(self.requests, fraction),
        )


def _part(rate: float | None, fraction: float) -> float | None:
    return None if rate is None else rate * fraction


class Throttle:
    """Keeps one task within its pace. Without limits every call returns at once."""

    def __init__(
        self,
        pace: Pace | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        pace = pace or Pace()
        now = clock()
        self._clock, self._sleep = clock, sleep
        self._read = _bucket(pace.read_bytes, now)
        self._write = _bucket(pace.write_bytes, now)
        self._requests = _bucket(pace.requests, now)
        self._all = [each for each in (self._read, self._write, self._requests) if each is not None]
        self.waited = 0.0
        self.bytes_read = 0

    def read(self, nbytes: int, requests: int = 1) -> None:
        """Call before reading this many bytes."""
        self.bytes_read += nbytes
        if self._all:
            self._take(self._read, nbytes, requests)

    def wrote(self, nbytes: int, requests: int = 1) -> None:
        """Call after writing this many bytes: the size of a row group is known only then."""
        if self._all:
            self._take(self._write, nbytes, requests)

    def settle(self) -> None:
        """Call at the end of the task. Sleeps off the remaining debt; otherwise the next task would start in
        debt."""
        if self._all:
            self._pay(self._all)

    def _take(self, moved: _Bucket | None, nbytes: int, requests: int) -> None:
        wanted = [(moved, nbytes), (self._requests, requests)]
        due = [(bucket, amount) for bucket, amount in wanted if bucket is not None and amount > 0]
        self._pay([bucket for bucket, _ in due])
        for bucket, amount in due:
            bucket.take(amount)

    def _pay(self, buckets: Sequence[_Bucket]) -> None:
        """Sleep until no bucket is in debt. One sleep is enough, because all buckets fill at the same time."""
        owed = self._owed(buckets)
        while owed > 0:
            before = self._clock()
            self._sleep(owed)
            self.waited += self._clock() - before
            owed = self._owed(buckets)

    def _owed(self, buckets: Sequence[_Bucket]) -> float:
        now = self._clock()
        return max((bucket.owed(now) for bucket in buckets), default=0.0)


class _Bucket:
    """A level that rises at the rate, and falls by what is taken, below zero if needed."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._seen = now
        # Starts empty: a full bucket would allow a burst per task, and a run has thousands of tasks.
        self._level = 0.0

    def owed(self, now: float) -> float:
        """Seconds until the debt is paid. A sleep that was too long counts as elapsed time, so errors do not
        add up."""
        self._level += (now - self._seen) * self._rate
        self._seen = now
        # Less than a microsecond is float rounding, and such a sleep takes fifty times longer than asked.
        return -self._level / self._rate if self._level < -self._rate * 1e-6 else 0.0

    def take(self, amount: int) -> None:
        """Take from the bucket, then cap its level. The cap comes last, so all the time since the last call
        counts: a file of one row group is written only after everything was read.

        With the cap first, such a task would take as long as its reading and its writing together.
        """
        self._level = min(self._level - amount, self._rate * _BURST)


def _bucket(rate: float | None, now: float) -> _Bucket | None:
    return None if rate is None else _Bucket(rate, now)
