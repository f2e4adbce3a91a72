"""The only way to change an Iceberg table. Every method calls the guard first; tests/unit/test_commit_guard.py checks each."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from lakewarden.model.table import Ref, TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.iceberg import adoption, cold, expire, partitions, refs
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.commit import Sending, commit
from lakewarden.tables.iceberg.rewrite import RewriteCommit
from lakewarden.tables.iceberg.view import filter_expression
from lakewarden.tables.interface import (
    Adoption,
    ColdHome,
    ColdWriter,
    CommitGuard,
    Dropped,
    Incorporate,
    MergedBuckets,
    PartitionSet,
    Rewrite,
)


class IcebergWriter:
    """Implements TableWriter for Iceberg."""

    def __init__(self, guard: CommitGuard, spark: Any, catalogs: IcebergCatalogs) -> None:
        self._guard, self._spark, self._catalogs = guard, spark, catalogs

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        self._guard.check(rewrite.table, rewrite.summary)
        return RewriteCommit(self._catalogs, rewrite, incorporate).run()

    def commit_merge(self, view: TableView, merged: MergedBuckets, summary: Mapping[str, str]) -> int:
        self._guard.check(view.ref, summary)
        raise AssertionError("no table of this format merges rows by primary keys")

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        self._guard.check(table, summary)
        loaded = self._catalogs.load(table)
        expression = filter_expression(self._catalogs, loaded, where) if where else None

        def attempt(sending: Sending) -> bool:
            changed: bool = self._catalogs.deletes.mergeDeletes(
                self._spark._jsparkSession,
                sending.watched(self._catalogs.load(table), keeps_files=True),
                expression,
                min_files,
                json.dumps(dict(summary)),
            )
            return changed

        return commit(self._catalogs, table, summary, attempt, attempts=4)

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        self._guard.check(table, summary)

        def attempt(sending: Sending) -> bool:
            changed: bool = self._catalogs.bridge.rewriteManifests(
                self._spark._jsparkSession,
                sending.watched(self._catalogs.load(table)),
                spec_id,
                target_bytes,
                json.dumps(dict(summary)),
            )
            return changed

        return commit(self._catalogs, table, summary, attempt, attempts=16)

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        self._guard.check(table, summary)
        return partitions.drop_partitions(self._catalogs, table, found, ids, summary)

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        self._guard.check(view.ref, None)
        expire.expire(self._catalogs, view, snapshot_ids, refs)

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        self._guard.check(table, summary)
        return adoption.commit_adoption(self._catalogs, table, adopting, summary)

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        self._guard.check(table, None)
        refs.create_tag(self._catalogs, table, name, snapshot_id, until)

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        self._guard.check(table, None)
        refs.retain_tag(self._catalogs, table, name, until)

    def drop_tag(self, table: TableRef, name: str) -> None:
        self._guard.check(table, None)
        refs.drop_tag(self._catalogs, table, name)

    def cold(self) -> ColdWriter:
        return IcebergColdWriter(self._guard, self._catalogs)


class IcebergColdWriter:
    """Implements ColdWriter for Iceberg."""

    def __init__(self, guard: CommitGuard, catalogs: IcebergCatalogs) -> None:
        self._guard, self._catalogs = guard, catalogs

    def make(self, view: TableView, catalog: str) -> ColdHome:
        self._guard.check(TableRef(catalog, view.ref.namespace, view.ref.name), None)
        return cold.make(self._catalogs, view, catalog)

    def register(
        self, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Sequence[Ref]
    ) -> None:
        self._guard.check(home.ref, None)
        cold.register(self._catalogs, view, home, snapshot_ids, tags)

    def release(self, view: TableView, home: ColdHome, snapshot_ids: Collection[int]) -> None:
        self._guard.check(home.ref, None)
        cold.release(self._catalogs, view, home, snapshot_ids)
