"""How a run is told to stop: by an operator's cancel, by a worker that drains or leads no more.

Ctrl-C reaches the main thread only. Runs of a worker are on other threads, so each has a `Stop` that anybody may ask, and looks
at it where nothing is half done.
"""

from __future__ import annotations

import threading
from weakref import WeakSet

from lakewarden.errors import Stopped


class Stop:
    """Asked once, for good. `event` may also be set by the run itself, to end its own threads: then there is no reason."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.reason = ""
        self._lock = threading.Lock()
        self._children: WeakSet[Stop] = WeakSet()

    @property
    def asked(self) -> bool:
        return bool(self.reason)

    def ask(self, reason: str) -> None:
        """The first reason stays. Whoever was made by `child` hears it too."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            children = tuple(self._children)
        self.event.set()
        for each in children:
            each.ask(reason)

    def child(self) -> Stop:
        """One that can be asked alone, and is asked together with this one."""
        made = Stop()
        with self._lock:
            self._children.add(made)
            reason = self.reason
        if reason:
            made.ask(reason)
        return made

    def check(self) -> None:
        """Nothing, or Stopped. Called where nothing is half done."""
        if self.reason:
            raise Stopped(reason=self.reason)
