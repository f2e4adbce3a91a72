"""How a run is stopped: by an operator's cancel, or by a worker that shuts down or is no longer the leader.

Ctrl-C reaches the main thread only. Runs of a worker are on other threads, so each has a `Stop` that any thread
may set. The run checks it at moments when no work is half done.
"""

from __future__ import annotations

import threading
from weakref import WeakSet

from lakewarden.errors import Stopped


class Stop:
    """Once set, it stays set. The run itself may also set `event` to end its own threads: then there is no reason."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.reason = ""
        self._lock = threading.Lock()
        self._children: WeakSet[Stop] = WeakSet()

    @property
    def asked(self) -> bool:
        return bool(self.reason)

    def ask(self, reason: str) -> None:
        """Set the stop. The first reason stays. Stops made by `child` are set too."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            children = tuple(self._children)
        self.event.set()
        for each in children:
            each.ask(reason)

    def child(self) -> Stop:
        """A stop that can be set alone, and that is set together with this one."""
        made = Stop()
        with self._lock:
            self._children.add(made)
            reason = self.reason
        if reason:
            made.ask(reason)
        return made

    def check(self) -> None:
        """Raises Stopped if the stop is set. Called where no work is half done."""
        if self.reason:
            raise Stopped(reason=self.reason)
