"""Lineage asked of our own commits, as of everybody's: before anything is written, and again right before each commit.

The first is the one that users meet: what the table asks for and the run cannot say is told in a second, not after an hour
of rewriting. The second sees the very summary that is about to be written, whichever job made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lakewarden.errors import CommitRefused, LineageRejected
from lakewarden.lineage.hook import Hook, requirements
from lakewarden.lineage.summary import Lineage
from lakewarden.lineage.validate import Requirements
from lakewarden.model.run import Job, Trigger
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.resolve import Policy
from lakewarden.state.database import State
from lakewarden.tables.interface import (
    Adoption,
    BucketEngine,
    Dropped,
    Incorporate,
    Merged,
    PartitionSet,
    Rewrite,
    TableFormat,
)

DOOR = "job"
OPERATIONS: Mapping[Job, str] = {
    Job.COMPACT: "compaction",
    Job.COMPACT_DELETES: "compaction",
    Job.REWRITE_MANIFESTS: "manifest-rewrite",
    Job.EXPIRE_PARTITIONS: "partition-expiry",
}
# Known only once rows were written: that they are there is asked right before the commit.
_LATE = frozenset({"lineage.digest", "lineage.proof", "lineage.settled", "lineage.load"})


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


def lineaged(format_: TableFormat, policy: Policy, state: State) -> TableFormat:
    """The format, with the hook before each of its commits. CommitRefused: nothing was changed."""
    return cast(TableFormat, _Lineaged(format_, _Asking(requirements(policy), Hook(DOOR, state))))


@dataclass(frozen=True, slots=True)
class _Asking:
    asked: Requirements
    hook: Hook

    def check(self, table: TableRef, summary: Mapping[str, str]) -> None:
        try:
            self.hook.check(table, self.asked, summary)
        except LineageRejected as error:
            # To the job it is a commit that did not happen: it removes what it wrote for it.
            raise CommitRefused(
                table=table, reason=f"lineage: {error.parts['reason']}", hint=error.hint
            ) from error


class _Lineaged:
    """Hands everything on; what makes a snapshot passes the hook first."""

    def __init__(self, format_: TableFormat, asking: _Asking) -> None:
        self._format, self._asking = format_, asking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._format, name)

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        self._asking.check(rewrite.table, rewrite.summary)
        return self._format.commit_rewrite(rewrite, incorporate)

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        self._asking.check(table, summary)
        return self._format.merge_deletes(table, where, min_files, summary)

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        self._asking.check(table, summary)
        return self._format.rewrite_manifests(table, spec_id, target_bytes, summary)

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        self._asking.check(table, summary)
        return self._format.drop_partitions(table, found, ids, summary)

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        self._asking.check(table, summary)
        return self._format.commit_adoption(table, adopting, summary)

    def bucket_engine(self) -> BucketEngine:
        return cast(BucketEngine, _LineagedBuckets(self._format.bucket_engine(), self._asking))


class _LineagedBuckets:
    def __init__(self, engine: BucketEngine, asking: _Asking) -> None:
        self._engine, self._asking = engine, asking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def commit(self, view: TableView, merged: Merged, summary: Mapping[str, str]) -> int:
        self._asking.check(view.ref, summary)
        return self._engine.commit(view, merged, summary)
