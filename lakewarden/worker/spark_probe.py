"""Whether Spark answers, asked on a thread of its own: a JVM that stands still must not hold up the loop that asks."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lakewarden import clock

# How long an answer may take before the JVM counts as standing still. Collecting garbage for that long is no different.
PATIENCE_SECONDS = 120.0
_WAIT_SECONDS = 1.0


class SparkProbe:
    """One question at a time. While it is not answered the last answer holds, until patience ends: then it is `silent`."""

    def __init__(self, ask: Callable[[], bool], patience: float | None = None) -> None:
        self._ask, self._patience = ask, PATIENCE_SECONDS if patience is None else patience
        self._asking = threading.Lock()  # a worker's loop and its console may ask at the same time
        self._wanted, self._answered = threading.Event(), threading.Event()
        self._asked: float | None = None
        self._answer = False
        self._thread: threading.Thread | None = None
        self._over = False

    def beats(self) -> bool:
        """Waits a second at most."""
        with self._asking:
            return self._beats()

    def _beats(self) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="lakewarden-pulse", daemon=True)
            self._thread.start()
        if self._asked is None:
            self._asked = clock.monotonic()
            self._answered.clear()
            self._wanted.set()
        if self._answered.wait(_WAIT_SECONDS):
            self._asked = None
            return self._answer
        return not self.silent

    @property
    def silent(self) -> bool:
        """Whether a question has not been answered for too long."""
        return self._asked is not None and clock.monotonic() - self._asked >= self._patience

    def end(self) -> None:
        """Nothing is asked any more: the thread ends, or will once it has the answer it waits for."""
        self._over = True
        self._wanted.set()

    def _loop(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._over:  # after it was cleared: nobody sets it again
                return
            self._answer = self._lives()
            self._answered.set()

    def _lives(self) -> bool:
        """A question that fails is answered: without this thread whoever asks would take silence for patience."""
        try:
            return self._ask()
        except Exception:  # py4j tells a JVM that is gone in many ways
            return False
