"""The only module that asks the time; everything else is handed it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

log = logging.getLogger(__name__)


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


@contextmanager
def repeating(do: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """Call `do` every so often, on a thread of its own, while the body runs; never after it.

    A round that fails is logged, and the next one comes: a heartbeat or a lock must outlive a database that is away for a
    moment, in whichever way its driver says so.
    """
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(seconds):
            try:
                do()
            except Exception as error:
                log.warning("%s failed once and goes on: %s: %s", name, type(error).__name__, error)

    thread = threading.Thread(target=loop, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
