"""The only way to change a Paimon table. Every method calls the guard first; tests/unit/test_commit_guard.py checks each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.interface import (
    Adoption,
    ColdWriter,
    CommitGuard,
    Dropped,
    Incorporate,
    MergedBuckets,
    PartitionSet,
    Rewrite,
)
from lakewarden.tables.paimon import adoption, partitions, refs
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.cold import PaimonCold, PaimonColdWriter
from lakewarden.tables.paimon.commit import Find
from lakewarden.tables.paimon.commit_lock import HeldLock
from lakewarden.tables.paimon.expire import Leaving, expire
from lakewarden.tables.paimon.manifests import fold
from lakewarden.tables.paimon.primary_key import commit_merge
from lakewarden.tables.paimon.reachability import PaimonReachability
from lakewarden.tables.paimon.rewrite import commit_rewrite


@dataclass(frozen=True, slots=True)
class WriterDeps:
    """The parts of the format that a writer needs: reading, and the table's lock (`locked`)."""

    catalogs: PaimonCatalogs
    view: Callable[[TableRef], TableView]
    reach: Callable[[TableView], PaimonReachability]
    find_commit: Callable[[TableRef, Mapping[str, str]], int | None]
    locked: Callable[[TableView], AbstractContextManager[HeldLock]]

    def find(self, table: TableRef) -> Find:
        return partial(self.find_commit, table)

    def lock(self, table: TableRef) -> AbstractContextManager[HeldLock]:
        return self.locked(self.view(table))


class PaimonWriter:
    """Implements TableWriter for Paimon."""

    def __init__(self, guard: CommitGuard, ways: WriterDeps, tier: PaimonCold) -> None:
        self._guard, self._ways, self._tier = guard, ways, tier

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        """Deletes that arrive during the rewrite are not carried over: the commit is lost, and the group is rewritten with them."""
        self._guard.check(rewrite.table, rewrite.summary)
        ways, table = self._ways, rewrite.table
        lock = ways.lock(table)
        return commit_rewrite(ways.catalogs, rewrite, ways.find(table), lock)

    def commit_merge(self, view: TableView, merged: MergedBuckets, summary: Mapping[str, str]) -> int:
        self._guard.check(view.ref, summary)
        ways = self._ways
        return commit_merge(ways.catalogs, view.ref, merged, summary, ways.find(view.ref), ways.locked(view))

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        """Nothing to do: Paimon has no position-delete files. A data file has at most one deletion vector."""
        self._guard.check(table, summary)
        return None

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        self._guard.check(table, summary)
        ways = self._ways
        lock = ways.lock(table)
        return fold(ways.catalogs, table, target_bytes, summary, ways.find(table), lock)

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        self._guard.check(table, summary)
        ways = self._ways
        lock = ways.lock(table)
        return partitions.drop_partitions(ways.catalogs, table, found, ids, summary, ways.find(table), lock)

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        self._guard.check(view.ref, None)
        ways = self._ways
        with ways.locked(view) as lock:
            leaving = Leaving(sorted(snapshot_ids), refs, sorted(changelogs))
            expire(ways.catalogs, view, leaving, lambda: ways.view(view.ref), lock)

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        self._guard.check(table, summary)
        ways = self._ways
        return adoption.commit_adoption(
            ways.catalogs,
            table,
            adopting,
            summary,
            lambda: ways.reach(ways.view(table)),
            ways.find(table),
            ways.lock(table),
        )

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        self._guard.check(table, None)
        ways = self._ways
        with ways.lock(table) as lock:
            refs.create_tag(ways.catalogs, ways.view(table), name, snapshot_id, until, lock)

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        self._guard.check(table, None)
        ways = self._ways
        with ways.lock(table) as lock:
            refs.retain_tag(ways.catalogs, ways.view(table), name, until, lock)

    def drop_tag(self, table: TableRef, name: str) -> None:
        self._guard.check(table, None)
        ways = self._ways
        with ways.lock(table) as lock:
            refs.drop_tag(ways.catalogs, ways.view(table), name, lock)

    def cold(self) -> ColdWriter:
        return PaimonColdWriter(self._guard, self._tier)
