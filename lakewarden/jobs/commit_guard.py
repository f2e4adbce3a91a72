"""Checks before every commit: this process still owns the run, and the commit's summary states its lineage.

A process that was suspended may have lost its run, or a worker its lease, since it journaled that it would
commit. If the commit is refused here, nothing can name the files that were written for it, and the run removes them.

Lineage is checked twice. `foresee` checks before anything is written: a user learns in a second, not after an hour
of rewriting, that the table requires a key that the run cannot provide. The summary itself is checked right before
each commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitRefused, LineageRejected
from lakewarden.lineage.summary import Lineage
from lakewarden.lineage.validate import Requirements
from lakewarden.lineage.writing import Hook, requirements
from lakewarden.model.run import Owner, Trigger
from lakewarden.model.table import TableRef
from lakewarden.policy.resolve import Policy
from lakewarden.state.database import State
from lakewarden.state.runs import Journal

DOOR = "job"
# These keys are known only after rows were written. They are checked right before the commit.
_LATE = frozenset({"lineage.digest", "lineage.proof", "lineage.settled", "lineage.load"})


@dataclass(frozen=True, slots=True)
class RunGuard:
    """The guard of one run. `ours`: whether this process may continue the run."""

    run_id: str
    ours: Callable[[], bool]
    asked: Requirements
    hook: Hook

    @classmethod
    def of(cls, run_id: str, owner: Owner, policy: Policy, journal: Journal) -> RunGuard:
        def ours() -> bool:
            return journal.beat(run_id, clock.now(), owner)

        return cls(run_id, ours, requirements(policy), Hook(DOOR, journal.state))

    def check(self, table: TableRef, summary: Mapping[str, str] | None) -> None:
        if not self.ours():
            reason = f"run {self.run_id} was taken over, or another worker leads, before the commit began; nothing was done"
            raise CommitLost(table=table, reason=reason)
        if summary is None:
            return
        try:
            self.hook.check(table, self.asked, summary)
        except LineageRejected as error:
            # For the job it is a commit that did not happen: the job removes the files that it wrote for it.
            raise CommitRefused(
                table=table, reason=f"lineage: {error.parts['reason']}", hint=error.hint
            ) from error


class OutsideRuns:
    """The guard of tags and mirrored pins. They belong to no run and make no snapshot, so there is no lease and no lineage
    to check.
    """

    def check(self, table: TableRef, summary: Mapping[str, str] | None) -> None:
        if summary is not None:
            raise AssertionError(f"{table}: a snapshot is made by a run, behind its guard")


def foresee(
    table: TableRef, operation: str, run_id: str, policy: Policy, trigger: Trigger, state: State
) -> None:
    """Raises LineageRejected if no commit of this run can provide the keys that the table requires."""
    asked = requirements(policy)
    now = Requirements(
        tuple(each for each in asked.keys if each not in _LATE), asked.operations, asked.overwrite_operators
    )
    # Every commit names the snapshots that it reads. The 0 is a placeholder for them.
    summary = Lineage(operation, run_id, policy.hash(), trigger, [0], 0, 0).summary()
    Hook(DOOR, state).check(table, now, summary)
