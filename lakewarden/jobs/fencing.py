"""Right before each commit the journal is asked once more whether the run is still ours.

A process that stood still may have lost its run, or a worker its lease, since it journaled that it would commit. What it wrote
for a commit that is turned away here is its own to remove: nothing can name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from lakewarden.errors import CommitLost
from lakewarden.model.table import Ref, TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.interface import (
    BucketEngine,
    ColdHome,
    ColdTier,
    Dropped,
    Incorporate,
    Merged,
    PartitionSet,
    Rewrite,
    TableFormat,
)

# Whether the run may go on.
Ours = Callable[[], bool]


def fenced(format_: TableFormat, run_id: str, ours: Ours) -> TableFormat:
    """The format, with the question before each of its commits. CommitLost: nothing was changed."""
    return cast(TableFormat, _Fenced(format_, _Fence(run_id, ours)))


class _Fence:
    def __init__(self, run_id: str, ours: Ours) -> None:
        self._run_id, self._ours = run_id, ours

    def check(self, table: TableRef) -> None:
        if not self._ours():
            reason = f"run {self._run_id} was taken over, or another worker leads, before the commit began; nothing was done"
            raise CommitLost(table=table, reason=reason)


class _Fenced:
    """Hands everything on; what changes a table passes the fence first."""

    def __init__(self, format_: TableFormat, fence: _Fence) -> None:
        self._format, self._fence = format_, fence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._format, name)

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        self._fence.check(rewrite.table)
        return self._format.commit_rewrite(rewrite, incorporate)

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        self._fence.check(table)
        return self._format.merge_deletes(table, where, min_files, summary)

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        self._fence.check(table)
        return self._format.rewrite_manifests(table, spec_id, target_bytes, summary)

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        self._fence.check(table)
        return self._format.drop_partitions(table, found, ids, summary)

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        self._fence.check(view.ref)
        self._format.expire(view, snapshot_ids, refs, changelogs)

    def bucket_engine(self) -> BucketEngine:
        return cast(BucketEngine, _FencedBuckets(self._format.bucket_engine(), self._fence))

    def cold_tier(self) -> ColdTier:
        return cast(ColdTier, _FencedTier(self._format.cold_tier(), self._fence))


class _FencedBuckets:
    def __init__(self, engine: BucketEngine, fence: _Fence) -> None:
        self._engine, self._fence = engine, fence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def commit(self, view: TableView, merged: Merged, summary: Mapping[str, str]) -> int:
        self._fence.check(view.ref)
        return self._engine.commit(view, merged, summary)


class _FencedTier:
    def __init__(self, tier: ColdTier, fence: _Fence) -> None:
        self._tier, self._fence = tier, fence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def register(
        self, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Sequence[Ref]
    ) -> None:
        self._fence.check(home.ref)
        self._tier.register(view, home, snapshot_ids, tags)

    def release(self, view: TableView, home: ColdHome, snapshot_ids: Collection[int]) -> None:
        self._fence.check(home.ref)
        self._tier.release(view, home, snapshot_ids)
