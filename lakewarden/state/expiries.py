"""Which snapshots Lakewarden's own expiry said it is about to remove, and has not said how that ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakewarden.model.run import Job, Run, Step
from lakewarden.state.runs import Journal

# The journaled moments an expiry's commit lies between.
EXPIRING = "expiring"
TRASHED = "trashed"


@dataclass(frozen=True, slots=True)
class Going:
    """Snapshots, and refs that have outlived their retention."""

    snapshots: frozenset[int] = frozenset()
    refs: frozenset[str] = frozenset()


def taking(journal: Journal, table: str, snapshot_id: int) -> Run | None:
    """The expiry that said it takes this snapshot and has not said how that ended."""
    return next((run for run, going in _undecided(journal, table) if snapshot_id in going.snapshots), None)


def expiring_now(journal: Journal, table: str) -> Going:
    """What the run that is open takes. One that ended, however it ended, commits nothing any more."""
    run = journal.open_run(table, Job.EXPIRE)
    return Going() if run is None else _going(journal.steps(run.id))


def _undecided(journal: Journal, table: str) -> Iterator[tuple[Run, Going]]:
    under_way = journal.open_run(table, Job.EXPIRE)
    for run in (*journal.unknown(table, Job.EXPIRE), *([under_way] if under_way else [])):
        yield run, _going(journal.steps(run.id))


def _going(steps: Sequence[Step]) -> Going:
    """A later attempt of the same run replaces the one before, which changed nothing; a verdict in force settles it."""
    going = Going()
    for step in steps:
        if step.name == EXPIRING:
            going = Going(frozenset(step.detail["snapshot_ids"]), frozenset(step.detail.get("refs", ())))
        elif step.name == TRASHED:
            going = Going()
    return going
