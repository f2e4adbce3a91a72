"""Runs that this process executes: it writes heartbeats and progress for other processes, and sees a cancel."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakewarden import clock
from lakewarden.errors import Unreachable
from lakewarden.jobs.run_context import Stop
from lakewarden.model.run import Owner, Progress
from lakewarden.state.runs import Journal, ProgressPoint, RunProgress

log = logging.getLogger(__name__)

_BEAT_SECONDS = 10.0
TICK_SECONDS = 1.0

# The runs that this process executes now. A run that it left open because the journal did not answer is not included.
DRIVEN: set[str] = set()


@contextmanager
def driving(run_id: str) -> Iterator[str]:
    """From before the run is journaled until its last thread has ended."""
    DRIVEN.add(run_id)
    try:
        yield run_id
    finally:
        DRIVEN.discard(run_id)


@contextmanager
def beating(journal: Journal, run_id: str, owner: Owner) -> Iterator[None]:
    """Write heartbeats for this run while the body runs, so that other hosts see that it is alive."""

    def beat() -> None:
        _beat(journal, run_id, owner)

    with clock.repeating(beat, _BEAT_SECONDS, "lakewarden-beat"):
        yield


def _beat(journal: Journal, run_id: str, owner: Owner) -> bool:
    """False if the run has ended or belongs to another process. In doubt True: the next journaled step decides."""
    try:
        return journal.beat(run_id, clock.now(), owner)
    except Unreachable as error:
        log.warning("run %s cannot tell that it is alive: %s", run_id, error)  # the next beat may get through
        return True


class ProgressRecorder:
    """Passes progress to the display of this process and keeps it for other processes."""

    def __init__(self, shown: Progress) -> None:
        self._shown, self._lock = shown, threading.Lock()
        self._what, self._note, self._done, self._total, self._changes = "", "", 0, 0, 0

    def begin(self, what: str, total_bytes: int) -> None:
        with self._lock:
            self._what, self._total, self._done = what, total_bytes, 0
            self._changes += 1
        self._shown.begin(what, total_bytes)

    def advance(self, done_bytes: int) -> None:
        with self._lock:
            self._done += done_bytes
            self._changes += 1
        self._shown.advance(done_bytes)

    def note(self, text: str) -> None:
        with self._lock:
            self._note = text
            self._changes += 1
        self._shown.note(text)

    def end(self) -> None:
        self._shown.end()

    def since(self, seen: int) -> tuple[int, ProgressPoint | None]:
        """The number of changes and the current progress; None if that was already seen."""
        with self._lock:
            if self._changes == seen:
                return seen, None
            moment = ProgressPoint(self._what, self._done, self._total, self._note, clock.now())
            return self._changes, moment


class _Attendant:
    """Checks one run about once a second, on its own thread."""

    def __init__(
        self,
        journal: Journal,
        run_id: str,
        owner: Owner,
        stop: Stop,
        told: ProgressRecorder,
        cancel: Callable[[], None],
    ) -> None:
        self._journal, self._run_id, self._owner = journal, run_id, owner
        self._stop, self._told, self._cancel = stop, told, cancel
        self._state = RunProgress(journal.state)
        self._seen, self._beaten, self._silent = 0, clock.monotonic(), False

    def tick(self) -> None:
        try:
            self._keep_alive()
            self._tell()
            self._silent = False
        except (
            Exception
        ) as error:  # any error: without this thread the run has no heartbeat and sees no cancel
            if not self._silent:  # logged once: the display shows the last progress that was written
                log.warning("run %s cannot tell how far it is: %s", self._run_id, error)
            self._silent = True
        if self._stop.asked:
            self._end_work()

    def _keep_alive(self) -> None:
        if clock.monotonic() - self._beaten >= _BEAT_SECONDS:
            self._beaten = clock.monotonic()
            if not _beat(self._journal, self._run_id, self._owner):
                self._stop.ask("another process has taken the run over")

    def _end_work(self) -> None:
        try:
            self._cancel()
        except Exception as error:  # an engine that does not answer has nothing left to cancel
            log.debug("run %s: its work on the engine cannot be cancelled: %s", self._run_id, error)

    def _tell(self) -> None:
        self._seen, moment = self._told.since(self._seen)
        if moment is not None:
            self._state.put(self._run_id, moment)
        wish = None if self._stop.asked else self._state.cancelled(self._run_id)
        if wish is not None:
            self._stop.ask(f"cancelled by {wish.by}")


@contextmanager
def with_heartbeat(
    journal: Journal, run_id: str, owner: Owner, stop: Stop, shown: Progress, cancel: Callable[[], None]
) -> Iterator[ProgressRecorder]:
    """While the body runs: write heartbeats and progress to the database, and pass a cancel from there to `stop`.

    `cancel` ends the running work on the engine. It is called again until the run has stopped.
    """
    told = ProgressRecorder(shown)
    attendant = _Attendant(journal, run_id, owner, stop, told, cancel)
    over = threading.Event()

    def loop() -> None:
        while not over.wait(TICK_SECONDS):
            attendant.tick()

    thread = threading.Thread(target=loop, name=f"lakewarden-run-{run_id}", daemon=True)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()
