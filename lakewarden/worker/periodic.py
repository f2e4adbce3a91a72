"""What a leader does every so often beside the turns of tables: looking for new ones, looking at their health."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakewarden import clock
from lakewarden.worker.log import warn


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """Something to do every so often while this worker leads, on a thread of its own, one at a time.

    `do` is handed what it asks now and then: whether it should end, because the worker leaves, leads no more or has no Spark.
    """

    name: str
    seconds: float
    do: Callable[[Callable[[], bool]], None]


class PeriodicTasks:
    def __init__(self, chores: Sequence[PeriodicTask]) -> None:
        self._chores = chores
        self._next: dict[str, float] = {}
        self._running: dict[str, threading.Thread] = {}

    def begin_anew(self) -> None:
        """Who leads anew does all of them at once."""
        self._next.clear()

    def do(self, over: Callable[[], bool]) -> None:
        """Begin those whose time has come, each on a thread of its own; one that is still at it is left to it."""
        for chore in self._chores:
            running = self._running.get(chore.name)
            due = clock.monotonic() >= self._next.get(chore.name, float("-inf"))
            if due and (running is None or not running.is_alive()):
                self._next[chore.name] = clock.monotonic() + chore.seconds
                self._begin(chore, over)

    def at_work(self) -> bool:
        return any(each.is_alive() for each in self._running.values())

    def _begin(self, chore: PeriodicTask, over: Callable[[], bool]) -> None:
        def work() -> None:
            try:
                chore.do(over)
            except Exception as error:  # not worth the worker's life: told, and done again when it is due
                warn("chore-failed", chore=chore.name, reason=f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=work, name=f"lakewarden-{chore.name}", daemon=True)
        self._running[chore.name] = thread
        thread.start()
