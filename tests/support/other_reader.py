"""A table as PyIceberg reads it, which shares no code with us or with Iceberg's Java library: its files and its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFileContent, ManifestEntry
from pyiceberg.table import ManifestGroupPlanner, StaticTable


def files_needed(metadata_location: str) -> set[str]:
    """Every file that any snapshot of the metadata reaches, in the spelling of the metadata."""
    return set(_files(StaticTable.from_metadata(metadata_location)))


def _files(table: StaticTable) -> Iterator[str]:
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file.file_path


class Rows:
    """The rows of one metadata file's snapshots, each told by its value in the column `id`."""

    def __init__(self, metadata_location: str) -> None:
        self._table = StaticTable.from_metadata(metadata_location)
        self.current = self._table.metadata.current_snapshot_id or 0
        self.parents = {each.snapshot_id: each.parent_snapshot_id for each in self._table.snapshots()}

    def of(self, snapshot_id: int) -> list[int]:
        """Sorted."""
        return sorted(id_ for _, ids in self.by_file(snapshot_id) for id_ in ids)

    def by_file(self, snapshot_id: int) -> list[tuple[str, list[int]]]:
        """The live rows of each data file. Positions and vectors are PyIceberg's work; keys it leaves to us."""
        table, snapshot = self._table, self._table.snapshot_by_id(snapshot_id)
        assert snapshot is not None, f"there is no snapshot {snapshot_id}"
        data: list[ManifestEntry] = []
        keys: list[tuple[int, set[int]]] = []

        def is_known(entry: ManifestEntry) -> bool:
            if entry.data_file.content is DataFileContent.EQUALITY_DELETES:
                keys.append((_number(entry), set(self._keys(entry))))
                return False
            if entry.data_file.content is DataFileContent.DATA:
                data.append(entry)
            return True

        planner = ManifestGroupPlanner(table.metadata, table.io)
        tasks = list(planner.plan_files(snapshot.manifests(table.io), is_known))
        reader = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        found = []
        for entry, task in zip(data, tasks, strict=True):
            struck = set().union(*(ids for number, ids in keys if number > _number(entry)))
            ids = reader.to_table([task])["id"].to_pylist()
            found.append((entry.data_file.file_path, [each for each in ids if each not in struck]))
        return found

    def _keys(self, entry: ManifestEntry) -> list[int]:
        with self._table.io.new_input(entry.data_file.file_path).open() as file:
            found: Any = pq.read_table(file)
        return list(found["id"].to_pylist())


def _number(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0
