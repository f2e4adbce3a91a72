"""Limits per client: requests per second, size and time of a body, wrong tokens, calls that need Spark."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Message, Receive

from lakewarden import clock
from lakewarden.console import queries
from lakewarden.console.answers import RequestDenied
from lakewarden.rate_limit import TokenBucket

# A whole body must arrive within this time. The largest one takes a phone on a bad connection two seconds.
BODY_SECONDS = 10.0
# The cost of a rejected request in tokens, so that guessing is slow.
PENALTY = 10
# Rejections of one client recorded per minute; more are counted, and the next row has the count.
WRITTEN_PER_MINUTE = 20
_MINUTE = 60.0
# The most clients that are tracked; beyond that, inactive ones are removed.
_CLIENTS = 10_000
# After this many failed logins in a row, a client must wait, twice as long each time.
_FREE_FAILURES, _LONGEST_WAIT = 3, 300.0
# Calls that need Spark: the most at a time, one more for operators, and the most that may continue past their deadline.
_HEAVY_AT_ONCE, _KEPT_FOR_OPERATORS, _LEFT_BEHIND = 4, 1, 8
_LENGTH = re.compile("[0-9]{1,18}")

T = TypeVar("T")


class Rates:
    """A token bucket per client that fills by `per_s` a second and holds two seconds' worth."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(2 * per_s, float(PENALTY))
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, client: str, cost: float = 1) -> float:
        """0 where there is enough; else the seconds until there is. A request that is refused costs nothing here."""
        now = clock.monotonic()
        bucket = self._rested(client, now)
        if bucket.level(now) < 1:
            return max(bucket.owed(now, 1), 0.001)
        self._keep(client, bucket, now)
        bucket.take(cost, now)
        return 0.0

    def fine(self, client: str) -> None:
        """A request was refused: it costs more than one that was not."""
        now = clock.monotonic()
        bucket = self._rested(client, now)
        self._keep(client, bucket, now)
        bucket.take(min(PENALTY - 1, bucket.level(now) + self._most), now)

    def _rested(self, client: str, now: float) -> TokenBucket:
        bucket = self._buckets.get(client) or TokenBucket(self._per_s, self._most, now, self._most)
        bucket.take(0, now)  # rest beyond a full bucket is lost
        return bucket

    def _keep(self, client: str, bucket: TokenBucket, now: float) -> None:
        if len(self._buckets) >= _CLIENTS:
            self._buckets = {
                each: found for each, found in self._buckets.items() if found.level(now) < self._most
            }
        if len(self._buckets) >= _CLIENTS:
            self._buckets.clear()  # a flood of addresses: all start with a full bucket, no more than each may have
        self._buckets[client] = bucket


class Failures:
    """Failed logins by address: after a few, each attempt must wait longer than the one before."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[int, float]] = {}

    def wait(self, address: str) -> float:
        """Seconds until the next attempt is accepted."""
        count, at = self._failed.get(address, (0, 0.0))
        pause = 0.0 if count < _FREE_FAILURES else min(2.0 ** (count - _FREE_FAILURES), _LONGEST_WAIT)
        return max(0.0, at + pause - clock.monotonic())

    def add(self, address: str) -> None:
        if len(self._failed) >= _CLIENTS:
            oldest = min(self._failed, key=lambda each: self._failed[each][1])
            del self._failed[oldest]
        count, _ = self._failed.get(address, (0, 0.0))
        self._failed[address] = (min(count + 1, 64), clock.monotonic())

    def forget(self, address: str) -> None:
        self._failed.pop(address, None)


class Notes:
    """Which rejections are recorded: the first ones of each client in a minute, so that a flood does not fill
    the database."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        self._counting = threading.Lock()

    def due(self, client: str) -> int | None:
        """None: only count it. Otherwise record it, with the number of rejections counted before."""
        with self._counting:
            return self._due(client, clock.monotonic())

    def _due(self, client: str, now: float) -> int | None:
        if client not in self._seen and len(self._seen) >= _CLIENTS:
            self._seen.clear()
        began, count = self._seen.get(client, (now, 0))
        if now - began < _MINUTE:
            self._seen[client] = (began, count + 1)
            return 0 if count < WRITTEN_PER_MINUTE else None
        self._seen[client] = (now, 1)
        return max(0, count - WRITTEN_PER_MINUTE)


class Heavy:
    """Calls that read a table through Spark: a few at a time, each with a deadline, so that the rest of the
    console stays responsive.

    A call that misses its deadline cannot be stopped inside the JVM. Its client gets an answer, its place is
    free again, and its thread continues. If too many such calls are left running, reads are rejected. One
    place is reserved for operators, so that a pin is possible however much is read. `revive` is called before
    a call while no other call is running: it may replace a dead Spark session.
    """

    def __init__(self, revive: Callable[[], None] = lambda: None, seconds: float = 120.0) -> None:
        self._seconds, self._revive = seconds, revive
        self._lock, self._reviving = threading.Lock(), threading.Lock()
        self._waited_for, self._left_behind = 0, 0

    def read(self, ask: Callable[[], T]) -> T:
        """The result of `ask`. Denied if too many calls are running, or if it takes too long."""
        return self._call(ask, _HEAVY_AT_ONCE, _LEFT_BEHIND)

    def act(self, ask: Callable[[], T]) -> T:
        """The same for an operator's action."""
        return self._call(ask, _HEAVY_AT_ONCE + _KEPT_FOR_OPERATORS, 2 * _LEFT_BEHIND)

    def _call(self, ask: Callable[[], T], most: int, most_left: int) -> T:
        alone = self._enter(most, most_left)
        answer: Future[T] = Future()
        running = copy_context()
        threading.Thread(
            target=lambda: running.run(self._run, ask, answer, alone), name="lakewarden-heavy", daemon=True
        ).start()
        wait((answer,), self._seconds)
        with self._lock:
            late = not answer.done()
            self._waited_for -= 1
            self._left_behind += late
        if late:
            answer.add_done_callback(self._came_back)
            raise RequestDenied(
                504,
                "TooSlow",
                f"cannot read the table: the call took longer than {self._seconds:g} seconds; it still runs in Spark, but its result is dropped",
                "try again later, or raise spark_seconds in [console]",
                retry_after=30,
            )
        return answer.result()

    def _enter(self, most: int, most_left: int) -> bool:
        """Whether no other call is running."""
        with self._lock:
            if self._waited_for >= most or self._left_behind >= most_left:
                slow = f", and {self._left_behind} older ones have not ended" if self._left_behind else ""
                raise RequestDenied(
                    503,
                    "TooMany",
                    f"cannot read the table: {self._waited_for} calls that need Spark are running{slow}",
                    "try again",
                    retry_after=5,
                )
            alone = not self._waited_for and not self._left_behind
            self._waited_for += 1
            return alone

    def _run(self, ask: Callable[[], T], answer: Future[T], alone: bool) -> None:
        try:
            with self._reviving:  # other calls wait here until Spark has started
                if alone:
                    self._revive()
            answer.set_result(ask())
        except BaseException as error:  # raised again in the caller's thread
            answer.set_exception(error)

    def _came_back(self, _: Future[T]) -> None:
        with self._lock:
            self._left_behind -= 1


def with_policy(request: Request, table: str, ask: Callable[[], T], *, acts: bool = False) -> T:
    """Run a call that needs the policy of a table. If the table was never read, it is read through Spark
    first."""
    state = request.app.state
    if queries.was_read(state.warden, table):
        return ask()
    heavy: Heavy = state.heavy
    return heavy.act(ask) if acts else heavy.read(ask)


async def read_body(receive: Receive, declared: str | None, most: int) -> bytes:
    """The whole body, or Denied: too large by its header or by its content, or too slow."""
    if declared is not None and (not _LENGTH.fullmatch(declared) or int(declared) > most):
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestDenied(
                        400, "Disconnected", "cannot read the body: the client disconnected before the end"
                    )
                body += message.get("body", b"")
                if len(body) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise RequestDenied(
            408, "TooSlow", f"cannot read the body: it did not arrive within {BODY_SECONDS:g} seconds"
        ) from None


def _too_large(most: int) -> RequestDenied:
    return RequestDenied(
        413,
        "TooLarge",
        f"cannot read the body: it is larger than {most // 1024} kB",
        "see max_body_kb in [console]",
    )
