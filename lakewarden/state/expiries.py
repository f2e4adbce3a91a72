"""Which snapshots Lakewarden's own expiry said it is about to remove, and has not said how that ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakewarden.model import Job, Run, Step
from lakewarden.state.runs import Journal

# The journaled moments an expiry's commit lies between.
EXPIRING = "expiring"
DOOMED = "doomed"


def taking(journal: Journal, table: str, snapshot_id: int) -> Run | None:
    """The expiry that said it takes this snapshot and has not said how that ended."""
    return next((run for run, going in _undecided(journal, table) if snapshot_id in going), None)


def expiring_now(journal: Journal, table: str) -> frozenset[int]:
    """What the run that is open takes. One that ended, however it ended, commits nothing any more."""
    run = journal.open_run(table, Job.EXPIRE)
    return frozenset() if run is None else frozenset(_going(journal.steps(run.id)))


def _undecided(journal: Journal, table: str) -> Iterator[tuple[Run, set[int]]]:
    under_way = journal.open_run(table, Job.EXPIRE)
    for run in (*journal.unknown(table, Job.EXPIRE), *([under_way] if under_way else [])):
        yield run, _going(journal.steps(run.id))


def _going(steps: Sequence[Step]) -> set[int]:
    """A later attempt of the same run replaces the one before, which changed nothing; a verdict in force settles it."""
    going: set[int] = set()
    for step in steps:
        if step.name == EXPIRING:
            going = set(step.detail["snapshot_ids"])
        elif step.name == DOOMED:
            going = set()
    return going
