"""Paimon behind the seam of tables/interface.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import PolicyError, UsageError
from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet, Manifest
from lakewarden.model.location import normal
from lakewarden.model.table import Counters, TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.interface import (
    Adoption,
    BucketEngine,
    ColdTier,
    Dropped,
    Incorporate,
    OutputFile,
    PartitionSet,
    Replaced,
    Rewrite,
)
from lakewarden.tables.jvm import JavaError
from lakewarden.tables.manifest_cache import ReachCache
from lakewarden.tables.metadata_cache import Remembered
from lakewarden.tables.metadata_walk import Survey
from lakewarden.tables.paimon import adoption, partitions, refs
from lakewarden.tables.paimon.catalog import Catalogs
from lakewarden.tables.paimon.cold import PaimonCold
from lakewarden.tables.paimon.commit_lock import Guard, Held
from lakewarden.tables.paimon.errors import catalog_error
from lakewarden.tables.paimon.expire import Leaving, expire
from lakewarden.tables.paimon.files import read_files
from lakewarden.tables.paimon.history import read_replaced
from lakewarden.tables.paimon.manifest_reader import Decoder, PaimonReader
from lakewarden.tables.paimon.manifests import fold, manifests
from lakewarden.tables.paimon.metadata import Files, Known, read_metadata
from lakewarden.tables.paimon.metadata_walk import survey
from lakewarden.tables.paimon.primary_key import Keyed
from lakewarden.tables.paimon.reachability import Reach
from lakewarden.tables.paimon.rewrite import (
    commit_rewrite,
    output_locations,
    prepare_rewrite,
    rewrite_natively,
)
from lakewarden.tables.paimon.roots import Existing
from lakewarden.tables.paimon.schema import StoredSchemas, left_alone, parquet_properties
from lakewarden.tables.paimon.view import view_of
from lakewarden.tables.reachability import Reached


class Paimon:
    """Every promise of TableFormat, kept by Paimon's own library."""

    def __init__(
        self,
        spark: Any,
        properties: Mapping[str, Mapping[str, str]],
        decoder: Decoder,
        store: Callable[[Mapping[str, str]], Files],
        cache: Path,
        guard: Guard,
    ) -> None:
        """`properties` by catalog. `decoder` decodes metadata files in bulk, `store` reaches files of a table, `guard` locks one."""
        self._catalogs = Catalogs(spark, properties)
        self._decoder = decoder
        self._connect = store
        self._stores: dict[str, Files] = {}
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
            told = json.loads(self._catalogs.bridge.describe(loaded))
        except JavaError as error:
            raise catalog_error(error, f"the metadata of {table}") from error
        metadata = read_metadata(self._store(table.catalog), told["location"].rstrip("/"), self._known)
        return replace(view_of(table, told, metadata), io=self._catalogs.io(table.catalog))

    def version(self, table: TableRef) -> str:
        """Of all its files of metadata: what was read before is not read again."""
        return self.view(table).state_version

    def reached(self, view: TableView, snapshot_ids: Collection[int] | None = None) -> Reached:
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

    def survey(self, view: TableView) -> Survey:
        return survey(view, self._reader(view), self._store(view.ref.catalog), self._existing(view))

    def _store(self, catalog: str) -> Files:
        """Connected to once: to S3 that takes longer than to read a small table's metadata."""
        if catalog not in self._stores:
            self._stores[catalog] = self._connect(self._catalogs.io(catalog))
        return self._stores[catalog]

    def _reach(self, view: TableView) -> Reach:
        cache = ReachCache(self._cache, view.uuid)
        return Reach(view, Remembered(view, self._reader(view), view.io, cache), self._existing(view))

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

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        with self._locked(view) as lock:
            leaving = Leaving(sorted(snapshot_ids), refs, sorted(changelogs))
            expire(self._catalogs, view, leaving, lambda: self.view(view.ref), lock)

    def _locked(self, view: TableView) -> AbstractContextManager[Held]:
        """Nobody else of ours changes the table meanwhile. What is to be changed is read again under it."""
        return self._guard(view.ref, normal(view.location))

    def write_properties(self, table: TableRef) -> Mapping[str, str]:
        return self._catalogs.io(table.catalog)

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        with self._locked(self.view(table)) as lock:
            refs.create_tag(self._catalogs, self.view(table), name, snapshot_id, until, lock)

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        with self._locked(self.view(table)) as lock:
            refs.retain_tag(self._catalogs, self.view(table), name, until, lock)

    def drop_tag(self, table: TableRef, name: str) -> None:
        with self._locked(self.view(table)) as lock:
            refs.drop_tag(self._catalogs, self.view(table), name, lock)

    def partitions(self, view: TableView, where: str | None = None) -> PartitionSet:
        return partitions.read_partitions(self._catalogs, view, where)

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        lock = self._locked(self.view(table))
        return partitions.drop_partitions(
            self._catalogs, table, found, ids, summary, partial(self.find_commit, table), lock
        )

    def find_commit(self, table: TableRef, summary: Mapping[str, str]) -> int | None:
        """The snapshot whose properties carry all these values."""
        found = (
            each.id
            for each in self.view(table).snapshots
            if all(each.summary.get(key) == value for key, value in summary.items())
        )
        return next(found, None)

    def counters(self, view: TableView) -> Counters:
        """Paimon's snapshots tell their rows; files have to be counted."""
        if view.current_snapshot_id is None:
            return view.counters
        found = read_files(self._catalogs, view.ref, view.current_snapshot_id)
        return replace(
            view.counters,
            data_files=found.files.num_rows,
            delete_files=len({each.path for each in found.deletes}),
            bytes=pc.sum(found.files["bytes"]).as_py() or 0,
        )

    def manifests(self, table: TableRef, snapshot_id: int) -> list[Manifest]:
        return manifests(self._catalogs, self.view(table), snapshot_id)

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        lock = self._locked(self.view(table))
        return fold(self._catalogs, table, target_bytes, summary, partial(self.find_commit, table), lock)

    def bucket_engine(self) -> BucketEngine:
        return Keyed(self._catalogs, self.find_commit, self._locked, self._cache.parent / "classes")

    def files(
        self, table: TableRef, snapshot_id: int, where: str | None, bounds_of: Sequence[str] = ()
    ) -> FileSet:
        if where:
            reason = f"found {where!r}; Paimon tables are compacted whole, or by partition as they fall due"
            raise PolicyError(key="rewrite_where", reason=reason)
        return read_files(self._catalogs, table, snapshot_id)

    def clustering(
        self, table: TableRef, files: FileSet, columns: Sequence[str]
    ) -> Mapping[int, Mapping[str, float]]:
        """Not told: then a partition is ordered when enough of it is new."""
        return {}

    def clustering_of_outputs(
        self, table: TableRef, files: FileSet, paths: Sequence[str], columns: Sequence[str]
    ) -> Mapping[str, float]:
        return {}

    def dangling(self, table: TableRef, files: FileSet, branch: str) -> list[str]:
        """A deletion vector leaves with its data file."""
        return []

    def retain(self, files: FileSet, paths: Sequence[str]) -> None:
        files.handle.retain(json.dumps(list(paths)))

    def left_alone(self, view: TableView) -> str | None:
        return left_alone(view)

    def unfit(self, view: TableView) -> str | None:
        return self._schemas.unfit(view)

    def parquet_properties(self, view: TableView) -> Mapping[str, str]:
        return parquet_properties(view.properties)

    def arrow_schema(self, view: TableView) -> bytes:
        return bytes(self._schemas.arrow(view).serialize())

    def output_locations(
        self, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
    ) -> list[str]:
        return output_locations(self._catalogs, table, files, names)

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        prepare_rewrite(self._catalogs, rewrite)

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        """Deletes that arrive are not taken in: the commit is lost, and the group written anew with them applied."""
        lock = self._locked(self.view(rewrite.table))
        return commit_rewrite(self._catalogs, rewrite, partial(self.find_commit, rewrite.table), lock)

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        return rewrite_natively(self._catalogs, table, files, group, target_bytes)

    def cold_tier(self) -> ColdTier:
        return PaimonCold(self._catalogs, self.view, self._reach, self._reader, self._store, self._locked)

    def additions(self, view: TableView, snapshot_id: int | None, name: str = "") -> pa.Table:
        raise UsageError(
            reason=f"tell which snapshot added a file of {view.ref}: the manifests of Paimon do not say it",
            hint=f"ask about a commit: `lakewarden audit ingested {view.ref} --snapshot ID`; `lakewarden history {view.ref}` has the ids",
        )

    def replaced(self, table: TableRef, snapshot_id: int) -> Replaced:
        return read_replaced(self._catalogs, self.view(table), snapshot_id)

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        """There are no position-delete files: a data file has one deletion vector at most."""
        return None

    def check_adoption(self, table: TableRef, paths: Sequence[str]) -> Adoption:
        view = self.view(table)
        return adoption.check_adoption(self._catalogs, view, self._reach(view), paths)

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        return adoption.commit_adoption(
            self._catalogs,
            table,
            adopting,
            summary,
            lambda: self._reach(self.view(table)),
            partial(self.find_commit, table),
            self._locked(self.view(table)),
        )

    def find_adoption(self, table: TableRef, load_id: str) -> int | None:
        return self.find_commit(table, {"lineage.load": load_id})

    def live_among(self, table: TableRef, paths: Sequence[str]) -> list[str]:
        view = self.view(table)
        return adoption.live_among(view, self._reach(view), paths)
