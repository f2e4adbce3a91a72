"""Being the driver of a run: which ones this process is at, and telling other hosts that they are alive."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from lakewarden import clock
from lakewarden.errors import Unreachable
from lakewarden.model import Owner
from lakewarden.state.runs import Journal

log = logging.getLogger(__name__)

_BEAT_SECONDS = 10.0

# Runs this process is at right now. One it left open, because the journal did not answer, is not among them.
DRIVEN: set[str] = set()


@contextmanager
def driving(run_id: str) -> Iterator[str]:
    """From before the run is in the journal until its last thread is over."""
    DRIVEN.add(run_id)
    try:
        yield run_id
    finally:
        DRIVEN.discard(run_id)


@contextmanager
def beating(journal: Journal, run_id: str, owner: Owner) -> Iterator[None]:
    """Tell other hosts that this run is alive, for as long as the body runs."""

    def beat() -> None:
        try:
            journal.beat(run_id, clock.now(), owner)
        except Unreachable as error:
            # The next beat may get through.
            log.warning("run %s cannot tell that it is alive: %s", run_id, error)

    with clock.repeating(beat, _BEAT_SECONDS, "lakewarden-beat"):
        yield
