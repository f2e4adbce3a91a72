"""Rate limits by token bucket: the bytes a task reads and writes, the files a purge deletes, a client's requests.

A task's kernel is one thread and reads whole row groups, often more than a second's worth. So a call is let through at
once and leaves a debt; the next call of that kind waits until the debt is paid. The time the kernel spends decoding and
encoding in between pays too, so the wait comes before the next call: waiting at once would pay twice. `settle` sleeps off
what is owed at the end of the task. So over the whole task no budget is exceeded, not even by the last call.
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


class TokenBucket:
    """A level that rises by `rate` a second and falls with what is taken, below zero if need be.

    After every `take` it is at most `most`. Before a take the level has no limit: all the time since the last call pays for
    this one. A file of one row group is written after everything was read; limited before the call, such a task would
    take as long as its reading and its writing together.
    """

    def __init__(self, rate: float, most: float, now: float, level: float = 0.0) -> None:
        # Empty at first: a full one would be a burst per task, and a run has thousands of tasks.
        self._rate, self._most = rate, most
        self._seen, self._level = now, level

    def level(self, now: float) -> float:
        self._level += (now - self._seen) * self._rate
        self._seen = now
        return self._level

    def owed(self, now: float, amount: float = 0.0) -> float:
        """Seconds until the level is at `amount`. A sleep that lasted too long counts as time passed, so nothing drifts."""
        missing = amount - self.level(now)
        # Below a microsecond it is the rounding of floats, and sleeping that long takes fifty times as long.
        return missing / self._rate if missing > self._rate * 1e-6 else 0.0

    def take(self, amount: float, now: float) -> None:
        self._level = min(self.level(now) - amount, self._most)


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

    def _take(self, moved: TokenBucket | None, nbytes: int, requests: int) -> None:
        wanted = [(moved, nbytes), (self._requests, requests)]
        due = [(bucket, amount) for bucket, amount in wanted if bucket is not None and amount > 0]
        self._pay([bucket for bucket, _ in due])
        for bucket, amount in due:
            bucket.take(amount, self._clock())

    def _pay(self, buckets: Sequence[TokenBucket]) -> None:
        """Sleep until no bucket is in debt. One sleep is enough, because all buckets fill at the same time."""
        owed = self._owed(buckets)
        while owed > 0:
            before = self._clock()
            self._sleep(owed)
            self.waited += self._clock() - before
            owed = self._owed(buckets)

    def _owed(self, buckets: Sequence[TokenBucket]) -> float:
        now = self._clock()
        return max((bucket.owed(now) for bucket in buckets), default=0.0)


def _bucket(rate: float | None, now: float) -> TokenBucket | None:
    return None if rate is None else TokenBucket(rate, rate * _BURST, now)
