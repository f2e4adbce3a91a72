"""The worker's Spark session: started on its own thread, checked while it runs, and abandoned when it no
longer answers.

A start may take minutes, or hang if a cluster does not answer. Nothing waits for it: the worker's loop
continues to check its lease and signals, and a worker that leaves does not wait for the start. The JVM ends
with the process that started it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.errors import message_of
from lakewarden.spark.session import end_jvm
from lakewarden.worker.log import LoggedState, tell

# A start that takes longer hangs, and is ended. One that waits for its place in a cluster's queue may take its time.
HUNG_SECONDS = 1800.0
# Between two tries to start it.
_RETRY_SECONDS = 5.0

# How long an answer may take before the JVM counts as standing still. Collecting garbage for that long is no different.
PROBE_SECONDS = 120.0

# How long a leader is without Spark before another one should have a try.
PATIENCE_SECONDS = 180.0


class Session:
    def __init__(self, api: Lakewarden) -> None:
        self._api, self._pulse = api, SparkProbe(self.lives)
        self._missing = LoggedState("spark-not-ready")
        self._thread: threading.Thread | None = None
        self._tried = float("-inf")
        self._since: float | None = None  # when it was found missing
        self._left = False

    def lives(self) -> bool:
        return self._api.connections.lake_lives

    @property
    def starting(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def ready(self, busy: Callable[[], bool]) -> bool:
        """Whether there is a session that lives; a start is begun where there is none. Waits a second at most."""
        found = self._is_ready(busy)
        if found:
            self._since = None
        elif self._since is None:
            self._since = clock.monotonic()
        return found

    def begin_term(self) -> None:
        """Who leads anew has all its patience."""
        self._since = None

    def despaired(self) -> str:
        """Why another should have a try, once this one has been without Spark for too long; else nothing."""
        if self._since is None or clock.monotonic() - self._since < PATIENCE_SECONDS:
            return ""
        why = self._missing.reason or "its start has not come to an end"
        return f"it has had no Spark for {PATIENCE_SECONDS:g} seconds: {why}"

    def leave(self) -> None:
        """Nobody waits for a start any more; what may still come of it in this process is let go."""
        self._left = True
        self._pulse.end()

    def revive(self) -> None:
        """Let go of a session that is dead, for a call from beside the loop: the call starts another. Waits a second at most."""
        if not self.starting and self._api.connections.has_lake and not self._pulse.beats():
            self._end_if_silent()
            self._api.connections.revive_lake()
            self._ask_anew()

    def watch(self) -> None:
        """For who needs no session now, and serves calls that do: a JVM that stands still is ended. Waits a second at most."""
        if not self.starting and self._api.connections.has_lake and not self._pulse.beats():
            self._end_if_silent()

    def _is_ready(self, busy: Callable[[], bool]) -> bool:
        if self.starting:
            if clock.monotonic() - self._tried >= HUNG_SECONDS:
                end_jvm()  # the start hears that there is no answer
            return False
        if self._api.connections.has_lake and self._pulse.beats():
            return True
        if self._api.connections.has_lake and not self._let_go(busy):
            return False
        if clock.monotonic() - self._tried >= _RETRY_SECONDS:
            self._tried = clock.monotonic()
            self._thread = threading.Thread(target=self._start, name="lakewarden-spark-start", daemon=True)
            self._thread.start()
        return False

    def _let_go(self, busy: Callable[[], bool]) -> bool:
        """Of a session that is dead; not while a turn or a chore stands on it.

        Calls of a console are not waited for: they only read, and fail with the session that they began on. Clients who keep
        asking would keep a leader without Spark.
        """
        self._missing.is_so("the session's JVM is gone, or does not answer")
        self._end_if_silent()
        if busy():
            return False
        self._api.connections.reopen_lake()
        self._ask_anew()
        return True

    def _end_if_silent(self) -> None:
        if self._pulse.silent:
            self._missing.is_so(f"its JVM has not answered for {PROBE_SECONDS:g} seconds, and is ended")
            end_jvm()  # what waits for its answers hears that there are none

    def _ask_anew(self) -> None:
        """What the old pulse is still asked is not about the new session."""
        self._pulse.end()
        self._pulse = SparkProbe(self.lives)

    def _start(self) -> None:
        try:
            _ = self._api.lake
        except Exception as error:  # Spark tells what it lacks in many ways; the next try may find it
            if not self._left:
                self._missing.is_so(message_of(error))
            self._api.connections.reopen_lake()  # half a session is none: the next try begins with a JVM of its own
            return
        if self._left:
            self._api.connections.reopen_lake()
            return
        self._missing.is_over()
        tell("spark-ready", master=self._api.config.spark.master)


_WAIT_SECONDS = 1.0


class SparkProbe:
    """Asks on its own thread whether Spark answers: a JVM that hangs must not hold up the loop. One question
    at a time. While it is not answered the last answer holds, until patience ends: then it is `silent`."""

    def __init__(self, ask: Callable[[], bool], patience: float | None = None) -> None:
        self._ask, self._patience = ask, PROBE_SECONDS if patience is None else patience
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
