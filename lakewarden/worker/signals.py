"""SIGTERM and Ctrl-C as wishes: the first one to drain, a second one to stop now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class WorkerSignal(IntEnum):
    GO_ON = 0
    DRAIN = 1
    ABORT = 2


@contextmanager
def handle_signals(wished: Callable[[], None]) -> Iterator[None]:
    """While the body runs, each signal is handed over. Only the main thread can hear them; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(signum: int, frame: FrameType | None) -> None:
        wished()

    before = {each: signal.getsignal(each) for each in _SIGNALS}
    for each in _SIGNALS:
        signal.signal(each, hear)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
