"""What every commit is asked: is the run still ours, and does the commit say where it comes from?

A process that stood still may have lost its run, or a worker its lease, since it journaled that it would commit. What it wrote
for a commit that is refused here is its own to remove: nothing can name it.

Lineage is asked twice: before anything is written (`foresee`), so that a user learns in a second and not after an hour of
rewriting what the table asks for and the run cannot say; and right before each commit, of the summary that is about to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitRefused, LineageRejected
from lakewarden.lineage.hook import Hook, requirements
from lakewarden.lineage.summary import Lineage
from lakewarden.lineage.validate import Requirements
from lakewarden.model.run import Owner, Trigger
from lakewarden.model.table_name import TableRef
from lakewarden.policy.resolve import Policy
from lakewarden.state.database import State
from lakewarden.state.runs import Journal

DOOR = "job"
# Known only once rows were written: that they are there is asked right before the commit.
_LATE = frozenset({"lineage.digest", "lineage.proof", "lineage.settled", "lineage.load"})


@dataclass(frozen=True, slots=True)
class RunGuard:
    """The guard of one run. `ours`: whether the run may go on."""

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
            # To the job it is a commit that did not happen: it removes what it wrote for it.
            raise CommitRefused(
                table=table, reason=f"lineage: {error.parts['reason']}", hint=error.hint
            ) from error


class OutsideRuns:
    """The guard of tags and mirrored pins. They belong to no run and make no snapshot: there is no lease and no lineage to ask."""

    def check(self, table: TableRef, summary: Mapping[str, str] | None) -> None:
        if summary is not None:
            raise AssertionError(f"{table}: a snapshot is made by a run, behind its guard")


def foresee(
    table: TableRef, operation: str, run_id: str, policy: Policy, trigger: Trigger, state: State
) -> None:
    """LineageRejected where no commit of this run could say what the table asks for."""
    asked = requirements(policy)
    now = Requirements(
        tuple(each for each in asked.keys if each not in _LATE), asked.operations, asked.overwrite_operators
    )
    # Which snapshots it reads is told by every commit; one stands here for whichever they will be.
    summary = Lineage(operation, run_id, policy.hash(), trigger, [0], 0, 0).summary()
    Hook(DOOR, state).check(table, now, summary)
