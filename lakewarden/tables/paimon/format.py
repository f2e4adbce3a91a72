"""The Paimon implementation of tables/interface.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import PolicyError, UsageError
from lakewarden.model.files import FileSet, Manifest
from lakewarden.model.location import normal
from lakewarden.model.table import Counters, TableRef, TableView
from lakewarden.tables.interface import (
    ColdTier,
    CommitGuard,
    LoadSupport,
    PartitionSet,
    ReplacedFiles,
    RewriteSupport,
    TableWriter,
)
from lakewarden.tables.jvm import JavaError
from lakewarden.tables.metadata_cache import CachedMetadata, ReachCache
from lakewarden.tables.metadata_walk import WalkResult
from lakewarden.tables.paimon import partitions
from lakewarden.tables.paimon.adoption import PaimonLoads
from lakewarden.tables.paimon.arrow_schema import StoredSchemas
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.cold import PaimonCold
from lakewarden.tables.paimon.commit import Guard, HeldLock
from lakewarden.tables.paimon.errors import catalog_error
from lakewarden.tables.paimon.metadata import Decoder, Known, PaimonFiles, PaimonReader, read_metadata
from lakewarden.tables.paimon.metadata_walk import survey
from lakewarden.tables.paimon.reachability import Existing, PaimonReachability
from lakewarden.tables.paimon.rewrite import PaimonRewrites, manifests
from lakewarden.tables.paimon.view import read_files, read_replaced, view_of
from lakewarden.tables.paimon.writer import PaimonWriter, WriterDeps
from lakewarden.tables.reachability import ReachableFiles


class Paimon:
    """Implements TableFormat with Paimon's own library."""

    def __init__(
        self,
        spark: Any,
        properties: Mapping[str, Mapping[str, str]],
        decoder: Decoder,
        store: Callable[[Mapping[str, str]], PaimonFiles],
        cache: Path,
        guard: Guard,
    ) -> None:
        """`properties` by catalog. `decoder` decodes metadata files in bulk, `store` accesses a table's files, `guard` locks a table."""
        self._catalogs = PaimonCatalogs(spark, properties)
        self._decoder = decoder
        self._connect = store
        self._stores: dict[str, PaimonFiles] = {}
        self._cache = cache
        self._guard = guard
        self._known: Known = {}
        self._schemas = StoredSchemas(self._catalogs)

    def close(self) -> None:
        self._catalogs.close()

    def tables(self, catalog: str) -> list[TableRef]:
        return self._catalogs.tables(catalog)

    def view(self, table: TableRef) -> TableView:
        loaded = self._catalogs.load(table)
        try:
            described = json.loads(self._catalogs.bridge.describe(loaded))
        except JavaError as error:
            raise catalog_error(error, f"the metadata of {table}") from error
        metadata = read_metadata(self._store(table.catalog), described["location"].rstrip("/"), self._known)
        return replace(view_of(table, described, metadata), io=self._catalogs.io(table.catalog))

    def version(self, table: TableRef) -> str:
        """A digest over all its metadata files. Files that were read before are not read again."""
        return self.view(table).state_version

    def reached(self, view: TableView, snapshot_ids: Collection[int] | None = None) -> ReachableFiles:
        return self._reach(view).reached(snapshot_ids)

    def unreached(
        self,
        view: TableView,
        removed: Collection[int],
        refs: Collection[str] = (),
        changelogs: Collection[int] = (),
    ) -> pa.Table:
        return self._reach(view).unreached(removed, refs, changelogs)

    def named_paths(self, view: TableView, numbers: Any) -> Iterator[pa.Array]:
        return self._reach(view).named_paths(numbers)

    def survey(self, view: TableView) -> WalkResult:
        return survey(view, self._reader(view), self._store(view.ref.catalog), self._existing(view))

    def _store(self, catalog: str) -> PaimonFiles:
        """The store, connected only once: connecting to S3 takes longer than reading a small table's metadata."""
        if catalog not in self._stores:
            self._stores[catalog] = self._connect(self._catalogs.io(catalog))
        return self._stores[catalog]

    def _reach(self, view: TableView) -> PaimonReachability:
        cache = ReachCache(self._cache, view.uuid)
        return PaimonReachability(
            view, CachedMetadata(view, self._reader(view), view.io, cache), self._existing(view)
        )

    def _reader(self, view: TableView) -> PaimonReader:
        loaded = self._catalogs.load(view.ref)
        return PaimonReader(
            view, self._decoder, lambda asked: self._catalogs.bridge.partitionPaths(loaded, asked)
        )

    def _existing(self, view: TableView) -> Existing:
        objects = self._store(view.ref.catalog)

        def existing(paths: Sequence[str]) -> set[str]:
            stats = objects.stat(paths)
            return {path for path, stat in zip(paths, stats, strict=True) if stat is not None}

        return existing

    def _locked(self, view: TableView) -> AbstractContextManager[HeldLock]:
        """Locks the table against other Lakewarden processes. Callers read the table again under the lock."""
        return self._guard(view.ref, normal(view.location))

    def write_properties(self, table: TableRef) -> Mapping[str, str]:
        return self._catalogs.io(table.catalog)

    def partitions(self, view: TableView, where: str | None = None) -> PartitionSet:
        return partitions.read_partitions(self._catalogs, view, where)

    def find_commit(self, table: TableRef, summary: Mapping[str, str]) -> int | None:
        """The snapshot whose properties have all these values."""
        snapshot_ids = (
            snapshot.id
            for snapshot in self.view(table).snapshots
            if all(snapshot.summary.get(key) == value for key, value in summary.items())
        )
        return next(snapshot_ids, None)

    def counters(self, view: TableView) -> Counters:
        """Paimon's snapshots state their row count; the files must be counted."""
        if view.current_snapshot_id is None:
            return view.counters
        files = read_files(self._catalogs, view.ref, view.current_snapshot_id)
        return replace(
            view.counters,
            data_files=files.files.num_rows,
            delete_files=len({delete.path for delete in files.deletes}),
            bytes=pc.sum(files.files["bytes"]).as_py() or 0,
        )

    def manifests(self, table: TableRef, snapshot_id: int) -> list[Manifest]:
        return manifests(self._catalogs, self.view(table), snapshot_id)

    def files(
        self, table: TableRef, snapshot_id: int, where: str | None, bounds_of: Sequence[str] = ()
    ) -> FileSet:
        if where:
            reason = (
                f"found {where!r}; Paimon tables are compacted as a whole, or by partition when one is due"
            )
            raise PolicyError(key="rewrite_where", reason=reason)
        return read_files(self._catalogs, table, snapshot_id)

    def cold_tier(self) -> ColdTier:
        return self._cold()

    def _cold(self) -> PaimonCold:
        return PaimonCold(self._catalogs, self.view, self._reach, self._reader, self._store, self._locked)

    def additions(self, view: TableView, snapshot_id: int | None, name: str = "") -> pa.Table:
        raise UsageError(
            reason=f"tell which snapshot added a file of {view.ref}: Paimon's manifests do not record it",
            hint=f"ask about a commit: `lakewarden audit ingested {view.ref} --snapshot ID`; `lakewarden history {view.ref}` shows the ids",
        )

    def replaced(self, table: TableRef, snapshot_id: int) -> ReplacedFiles:
        return read_replaced(self._catalogs, self.view(table), snapshot_id)

    def rewrites(self) -> RewriteSupport:
        return PaimonRewrites(self._catalogs, self._schemas, self._cache.parent / "classes")

    def loads(self) -> LoadSupport:
        return PaimonLoads(self._catalogs, self.view, self._reach, self.find_commit)

    def writer(self, guard: CommitGuard) -> TableWriter:
        ways = WriterDeps(self._catalogs, self.view, self._reach, self.find_commit, self._locked)
        return PaimonWriter(guard, ways, self._cold())
