"""The current time. No other module asks for it; functions get the time as an argument."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

log = logging.getLogger(__name__)


def now() -> datetime:
    """The current time, in UTC."""
    return datetime.now(UTC)


def from_millis(millis: int) -> datetime:
    """The time of a millisecond timestamp in table metadata."""
    return datetime.fromtimestamp(millis / 1000, UTC)


def monotonic() -> float:
    """Seconds that never go backwards, for durations and deadlines."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


@contextmanager
def repeating(do: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """Call `do` every `seconds` on a separate thread while the body runs, and never after it.

    A failed call is logged and the next call still happens: a heartbeat or a lock must survive a short
    database outage, whatever exception the driver raises.
    """
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(seconds):
            try:
                do()
            except Exception as error:
                log.warning("%s failed and will be tried again: %s: %s", name, type(error).__name__, error)

    thread = threading.Thread(target=loop, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
