"""Lists and drops partitions of an Iceberg table. Dropping is a metadata delete of whole files."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import CommitLost
from lakewarden.model.files import FileSet, KeyKind, LivePartition, Partition, PartitionKey
from lakewarden.model.table import PartitionField, Snapshot, TableRef, TableView
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.commit import Sending, commit
from lakewarden.tables.iceberg.view import read_files
from lakewarden.tables.interface import Dropped, PartitionSet
from lakewarden.tables.partition_filter import matching

_ATTEMPTS = 16
_TRANSFORMS = {kind.value: kind for kind in (KeyKind.YEAR, KeyKind.MONTH, KeyKind.DAY, KeyKind.HOUR)}
_DATE = "date"
_MICROS = ("timestamp", "timestamptz")
_NANOS = ("timestamp_ns", "timestamptz_ns")
# The library's message if a file that should be removed is already gone.
_GONE = "Missing required files to delete"


def read_partitions(catalogs: IcebergCatalogs, view: TableView, where: str | None) -> PartitionSet:
    """All partitions, of every spec, that have live files at the head of main."""
    head = view.head()
    if head is None:
        return PartitionSet(None, (), frozenset() if where else None)
    files = read_files(catalogs, view.ref, head, None)
    partitions = tuple(live_partitions(view, files))
    chosen = matching(catalogs.spark, partitions, where) if where else None
    return PartitionSet(head, partitions, chosen, files.handle)


def live_partitions(view: TableView, files: FileSet) -> list[LivePartition]:
    """The sums over the files of each partition, in the order of partition ids."""
    sums = {row["partition"]: row for row in _added_up(files)}
    fields = {spec.id: spec.fields for spec in view.specs}
    columns = {each["id"]: each for each in json.loads(view.schema_json).get("fields", ())}
    ages = _Ages(view.snapshots)
    return [
        LivePartition(
            id=partition.id,
            spec_id=partition.spec_id,
            path=partition.path,
            keys=_keys(partition, fields[partition.spec_id], columns),
            files=sums[partition.id]["path_count"],
            rows=sums[partition.id]["records_sum"],
            bytes=sums[partition.id]["bytes_sum"],
            changed_at=ages.newest(sums[partition.id]["changed_max"]),
        )
        for partition in files.partitions
        if partition.id in sums
    ]


def _added_up(files: FileSet) -> list[dict[str, Any]]:
    rows = files.files.append_column("changed", _last_change(files))
    aggregates = [("path", "count"), ("records", "sum"), ("bytes", "sum"), ("changed", "max")]
    sums: list[dict[str, Any]] = rows.group_by("partition").aggregate(aggregates).to_pylist()
    return sums


def _last_change(files: FileSet) -> pa.Array:
    """For each file: its sequence number, or that of the newest delete that applies to it, if newer."""
    own = files.files["sequence_number"].combine_chunks()
    applying = files.files["deletes"].combine_chunks()
    of = pc.list_parent_indices(applying)
    if not len(of):
        return own
    numbers = pa.array([delete.sequence_number for delete in files.deletes], pa.int64())
    struck = pa.table({"file": of, "number": numbers.take(pc.list_flatten(applying))})
    newest = struck.group_by("file").aggregate([("number", "max")])
    place = pc.index_in(pa.array(range(len(own)), of.type), newest["file"].combine_chunks())
    return pc.max_element_wise(own, newest["number_max"].combine_chunks().take(place))


class _Ages:
    """Maps a sequence number to a time: that of its commit or, if expired, of the first later commit that still exists."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        numbered = sorted(
            (snapshot for snapshot in snapshots if snapshot.sequence_number), key=lambda s: s.sequence_number
        )
        self._numbers = [snapshot.sequence_number for snapshot in numbered]
        self._times = [snapshot.committed_at for snapshot in numbered]
        # Before format version 2, commits had no sequence numbers: any of them may have added the file.
        unnumbered = [snapshot.committed_at for snapshot in snapshots if not snapshot.sequence_number]
        self._unnumbered = max(unnumbered, default=self._times[0] if self._times else None)

    def newest(self, number: int) -> datetime | None:
        if not number:
            return self._unnumbered
        place = bisect_left(self._numbers, number)
        return self._times[place] if place < len(self._times) else None


def _keys(
    partition: Partition, fields: Sequence[PartitionField], columns: Mapping[int, Mapping[str, Any]]
) -> tuple[PartitionKey, ...]:
    """The partition keys. A field whose transform became void is left out."""
    return tuple(
        _key(field, value, columns.get(field.source_id, {}))
        for field, value in zip(fields, partition.values, strict=True)
        if field.transform != "void"
    )


def _key(field: PartitionField, value: Any, column: Mapping[str, Any]) -> PartitionKey:
    name, type_ = column.get("name", field.name), column.get("type")
    if field.transform in _TRANSFORMS:
        return PartitionKey(field.name, name, _TRANSFORMS[field.transform], value)
    if field.transform == "identity" and type_ == _DATE:
        return PartitionKey(field.name, name, KeyKind.DAY, value)
    if field.transform == "identity" and type_ in _MICROS:
        return PartitionKey(field.name, name, KeyKind.MOMENT, value)
    if field.transform == "identity" and type_ in _NANOS:
        return PartitionKey(field.name, name, KeyKind.MOMENT, None if value is None else value // 1000)
    kind = KeyKind.NUMBER if isinstance(value, int) else KeyKind.TEXT
    return PartitionKey(field.name, name, kind, value)


def drop_partitions(
    catalogs: IcebergCatalogs,
    table: TableRef,
    found: PartitionSet,
    ids: Sequence[int],
    summary: Mapping[str, str],
) -> Dropped:
    """Commits one `delete` snapshot that removes exactly the files in `found`. CommitLost if one of them is already gone."""
    chosen, properties = json.dumps(list(ids)), json.dumps(dict(summary))

    def attempt(sending: Sending) -> bool:
        catalogs.partitions.drop(sending.watched(catalogs.load(table)), found.handle, chosen, properties)
        return True

    try:
        snapshot_id = commit(catalogs, table, summary, attempt, _ATTEMPTS)
    except CommitLost as error:
        if _GONE in error.message:  # the library's own message lists all of their names
            reason = "another commit rewrote or removed files of these partitions first"
            raise CommitLost(table=table, reason=reason) from error
        raise
    if snapshot_id is None:
        raise AssertionError("a delete of files is always a commit")
    dropped = set(ids)
    gone = [partition for partition in found.partitions if partition.id in dropped]
    return Dropped(
        snapshot_id,
        sum(each.files for each in gone),
        sum(each.rows for each in gone),
        sum(each.bytes for each in gone),
    )
