"""The Iceberg implementation of tables/interface.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakewarden.model.files import FileSet, Manifest
from lakewarden.model.table import Counters, TableRef, TableView
from lakewarden.tables.iceberg import partitions
from lakewarden.tables.iceberg.adoption import IcebergLoads
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.cold import IcebergCold
from lakewarden.tables.iceberg.commit import find_commit
from lakewarden.tables.iceberg.metadata_walk import survey
from lakewarden.tables.iceberg.reachability import IcebergReachability
from lakewarden.tables.iceberg.rewrite import IcebergRewrites
from lakewarden.tables.iceberg.view import (
    io_properties,
    read_additions,
    read_files,
    read_manifests,
    read_replaced,
    read_view,
)
from lakewarden.tables.iceberg.writer import IcebergWriter
from lakewarden.tables.interface import (
    ColdTier,
    CommitGuard,
    LoadSupport,
    PartitionSet,
    ReplacedFiles,
    RewriteSupport,
    TableWriter,
)
from lakewarden.tables.metadata_cache import CachedMetadata, MetadataReader, ReachCache, bound
from lakewarden.tables.metadata_walk import WalkResult
from lakewarden.tables.places import NO_HOMES, Places
from lakewarden.tables.reachability import ReachableFiles

# The maximum size of the cache folder, for all tables: about 100 million files.
_CACHE_BYTES = 2 << 30


class Iceberg:
    """Implements TableFormat with Iceberg's own library."""

    def __init__(
        self,
        spark: Any,
        reader: MetadataReader,
        cache: Path,
        places: Callable[[TableView], Places] = lambda _: NO_HOMES,
    ) -> None:
        """`reader` decodes metadata files in bulk; the result is cached in the folder `cache`."""
        self._catalogs = IcebergCatalogs(spark)
        self._catalogs.places = places
        self._spark = spark
        self._reader = reader
        self._cache = cache
        bound(cache, _CACHE_BYTES)

    def tables(self, catalog: str) -> list[TableRef]:
        return self._catalogs.tables(catalog)

    def view(self, table: TableRef) -> TableView:
        return read_view(self._catalogs, table)

    def version(self, table: TableRef) -> str:
        """The table's uuid and the path of its newest metadata file: a metadata file never changes."""
        return str(self._catalogs.bridge.pointer(self._catalogs.load(table)))

    def files(
        self, table: TableRef, snapshot_id: int, where: str | None, bounds_of: Sequence[str] = ()
    ) -> FileSet:
        return read_files(self._catalogs, table, snapshot_id, where, bounds_of)

    def counters(self, view: TableView) -> Counters:
        return view.counters

    def manifests(self, table: TableRef, snapshot_id: int) -> list[Manifest]:
        return read_manifests(self._catalogs, table, snapshot_id)

    def cold_tier(self) -> ColdTier:
        return IcebergCold(self._catalogs, self._reach)

    def replaced(self, table: TableRef, snapshot_id: int) -> ReplacedFiles:
        return read_replaced(self._catalogs, table, snapshot_id)

    def additions(self, view: TableView, snapshot_id: int | None, name: str = "") -> pa.Table:
        return read_additions(self._catalogs, view, snapshot_id, name)

    def reached(self, view: TableView, snapshot_ids: Collection[int] | None = None) -> ReachableFiles:
        return self._reach(view).reached(snapshot_ids)

    def unreached(
        self,
        view: TableView,
        removed: Collection[int],
        refs: Collection[str] = (),
        changelogs: Collection[int] = (),
    ) -> pa.Table:
        return self._reach(view).unreached(removed)

    def named_paths(self, view: TableView, numbers: Any) -> Iterator[pa.Array]:
        return self._reach(view).named_paths(numbers)

    def _reach(self, view: TableView) -> IcebergReachability:
        return IcebergReachability(
            view, CachedMetadata(view, self._reader, view.io, ReachCache(self._cache, view.uuid))
        )

    def survey(self, view: TableView) -> WalkResult:
        return survey(view, self._reader, view.io)

    def write_properties(self, table: TableRef) -> Mapping[str, str]:
        return io_properties(self._catalogs, self._catalogs.load(table))

    def find_commit(self, table: TableRef, summary: Mapping[str, str]) -> int | None:
        return find_commit(self._catalogs, table, summary)

    def partitions(self, view: TableView, where: str | None = None) -> PartitionSet:
        return partitions.read_partitions(self._catalogs, view, where)

    def rewrites(self) -> RewriteSupport:
        return IcebergRewrites(self._spark, self._catalogs)

    def loads(self) -> LoadSupport:
        return IcebergLoads(self._catalogs)

    def writer(self, guard: CommitGuard) -> TableWriter:
        return IcebergWriter(guard, self._spark, self._catalogs)
