"""Iceberg behind the seam of tables/interface.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet, Manifest
from lakewarden.model.table import Counters, TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.iceberg import adoption, partitions, refs
from lakewarden.tables.iceberg.catalog import Catalogs
from lakewarden.tables.iceberg.cold import IcebergCold
from lakewarden.tables.iceberg.commit import Sending, commit, find_commit, prepare_rewrite
from lakewarden.tables.iceberg.expire import expire
from lakewarden.tables.iceberg.history import read_additions, read_replaced
from lakewarden.tables.iceberg.metadata_walk import survey
from lakewarden.tables.iceberg.reachability import Reach
from lakewarden.tables.iceberg.rewrite import RewriteCommit
from lakewarden.tables.iceberg.schema import arrow_schema, unfit_types
from lakewarden.tables.iceberg.view import (
    filter_expression,
    io_properties,
    read_files,
    read_manifests,
    read_view,
)
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
from lakewarden.tables.manifest_cache import ReachCache, bound
from lakewarden.tables.metadata_cache import MetadataReader, Remembered
from lakewarden.tables.metadata_walk import Survey
from lakewarden.tables.places import NO_HOMES, Places
from lakewarden.tables.reachability import Reached

# What all tables together may take of the cache folder: about 100 million files.
_CACHE_BYTES = 2 << 30


class Iceberg:
    """Every promise of TableFormat, kept by Iceberg's own library."""

    def __init__(
        self,
        spark: Any,
        reader: MetadataReader,
        cache: Path,
        places: Callable[[TableView], Places] = lambda _: NO_HOMES,
    ) -> None:
        """`reader` decodes metadata files in bulk; what it read is remembered under `cache`."""
        self._catalogs = Catalogs(spark)
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
        """Whose the newest metadata is and where it lies: it is written once and never changed."""
        return str(self._catalogs.bridge.pointer(self._catalogs.load(table)))

    def files(
        self, table: TableRef, snapshot_id: int, where: str | None, bounds_of: Sequence[str] = ()
    ) -> FileSet:
        return read_files(self._catalogs, table, snapshot_id, where, bounds_of)

    def clustering(
        self, table: TableRef, files: FileSet, columns: Sequence[str]
    ) -> Mapping[int, Mapping[str, float]]:
        found = self._catalogs.deletes.clustering(
            self._catalogs.load(table), files.handle, json.dumps(list(columns))
        )
        return {int(partition): shares for partition, shares in json.loads(found).items()}

    def clustering_of_outputs(
        self, table: TableRef, files: FileSet, paths: Sequence[str], columns: Sequence[str]
    ) -> Mapping[str, float]:
        loaded, wanted = self._catalogs.load(table), json.dumps(list(columns))
        found: Mapping[str, float] = json.loads(
            self._catalogs.deletes.clusteringOfOutputs(loaded, files.handle, json.dumps(list(paths)), wanted)
        )
        return found

    def dangling(self, table: TableRef, files: FileSet, branch: str) -> list[str]:
        answer = json.loads(
            self._catalogs.deletes.unneeded(self._catalogs.load(table), files.handle, branch, "[]", "[]")
        )
        return sorted(answer["unneeded"])

    def retain(self, files: FileSet, paths: Sequence[str]) -> None:
        files.handle.retain(json.dumps(list(paths)))

    def left_alone(self, view: TableView) -> str | None:
        return None

    def parquet_properties(self, view: TableView) -> Mapping[str, str]:
        return view.properties

    def unfit(self, view: TableView) -> str | None:
        return unfit_types(view)

    def arrow_schema(self, view: TableView) -> bytes:
        return bytes(arrow_schema(view).serialize())

    def counters(self, view: TableView) -> Counters:
        return view.counters

    def manifests(self, table: TableRef, snapshot_id: int) -> list[Manifest]:
        return read_manifests(self._catalogs, table, snapshot_id)

    def bucket_engine(self) -> BucketEngine:
        raise AssertionError("no table of this format merges rows by primary keys")

    def cold_tier(self) -> ColdTier:
        return IcebergCold(self._catalogs, self._reach)

    def replaced(self, table: TableRef, snapshot_id: int) -> Replaced:
        return read_replaced(self._catalogs, table, snapshot_id)

    def additions(self, view: TableView, snapshot_id: int | None, name: str = "") -> pa.Table:
        return read_additions(self._catalogs, view, snapshot_id, name)

    def reached(self, view: TableView, snapshot_ids: Collection[int] | None = None) -> Reached:
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

    def _reach(self, view: TableView) -> Reach:
        return Reach(view, Remembered(view, self._reader, view.io, ReachCache(self._cache, view.uuid)))

    def survey(self, view: TableView) -> Survey:
        return survey(view, self._reader, view.io)

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        expire(self._catalogs, view, snapshot_ids, refs)

    def output_locations(
        self, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
    ) -> list[str]:
        loaded = self._catalogs.load(table)
        paths: list[str] = json.loads(
            self._catalogs.bridge.locations(loaded, files.handle, json.dumps(names))
        )
        return paths

    def write_properties(self, table: TableRef) -> Mapping[str, str]:
        return io_properties(self._catalogs, self._catalogs.load(table))

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        prepare_rewrite(self._catalogs, rewrite)

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        return RewriteCommit(self._catalogs, rewrite, incorporate).run()

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
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

    def find_commit(self, table: TableRef, summary: Mapping[str, str]) -> int | None:
        return find_commit(self._catalogs, table, summary)

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        request = {
            "number": group.number,
            "partition": group.partition_id,
            "sources": list(group.paths()),
            "output_spec_id": group.output_spec_id,
            # Iceberg lets a file grow past its target by half, so that a small tail joins it.
            "max_file_bytes": target_bytes + target_bytes // 2,
            "split_bytes": target_bytes,
            "expected_files": group.outputs,
            "strategy": strategy,
            "columns": list(columns),
        }
        written = self._catalogs.bridge.rewriteNatively(
            self._spark._jsparkSession, self._catalogs.load(table), files.handle, json.dumps(request)
        )
        return [
            OutputFile(row["path"], row["bytes"], row["rows"], group.partition_id)
            for row in json.loads(written)
        ]

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
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

    def partitions(self, view: TableView, where: str | None = None) -> PartitionSet:
        return partitions.read_partitions(self._catalogs, view, where)

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        return partitions.drop_partitions(self._catalogs, table, found, ids, summary)

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        refs.create_tag(self._catalogs, table, name, snapshot_id, until)

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        refs.retain_tag(self._catalogs, table, name, until)

    def drop_tag(self, table: TableRef, name: str) -> None:
        refs.drop_tag(self._catalogs, table, name)

    def check_adoption(self, table: TableRef, paths: Sequence[str]) -> Adoption:
        return adoption.check_adoption(self._catalogs, table, paths)

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        return adoption.commit_adoption(self._catalogs, table, adopting, summary)

    def find_adoption(self, table: TableRef, load_id: str) -> int | None:
        return adoption.find_adoption(self._catalogs, table, load_id)

    def live_among(self, table: TableRef, paths: Sequence[str]) -> list[str]:
        return adoption.live_among(self._catalogs, table, paths)
