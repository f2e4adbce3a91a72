"""Builds the view of an Iceberg table from its metadata file only. Also reads its files, and the changes of
past snapshots: the files that a snapshot removed and added, and the snapshot that added each file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from lakewarden.clock import from_millis
from lakewarden.errors import LakewardenError, PolicyError
from lakewarden.model.files import DeleteFile, FileSet, Manifest, Partition
from lakewarden.model.table import (
    Counters,
    PartitionField,
    PartitionSpec,
    Ref,
    Snapshot,
    SortField,
    SortOrder,
    TableRef,
    TableView,
)
from lakewarden.policy.filters import ALLOWED, WrongFilter
from lakewarden.tables.iceberg import filters
from lakewarden.tables.iceberg.catalog import IcebergCatalogs, catalog_error
from lakewarden.tables.interface import DataFile, FilesWithDeletes, ReplacedFiles
from lakewarden.tables.jvm import JavaError, is_java, java_reason


def read_view(catalogs: IcebergCatalogs, ref: TableRef) -> TableView:
    table = catalogs.load(ref)
    metadata = json.loads(catalogs.bridge.metadata(table))
    view = view_of(ref, metadata, catalogs.bridge.metadataLocation(table))
    return replace(view, io=io_properties(catalogs, table))


def io_properties(catalogs: IcebergCatalogs, table: Any) -> Mapping[str, str]:
    """Endpoint, region and credentials that the library itself uses."""
    properties: Mapping[str, str] = json.loads(catalogs.bridge.ioProperties(table))
    return {key: value for key, value in properties.items() if value is not None}


def view_of(ref: TableRef, metadata: Mapping[str, Any], location: str) -> TableView:
    """The view of a metadata JSON of any format version."""
    current = metadata.get("current-snapshot-id")
    snapshots = tuple(_snapshot(each) for each in metadata.get("snapshots", ()))
    schema = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    head = next((snapshot for snapshot in snapshots if snapshot.id == current), None)
    return TableView(
        ref=ref,
        format="iceberg",
        format_version=metadata["format-version"],
        uuid=metadata["table-uuid"],
        location=metadata["location"],
        metadata_location=location,
        current_snapshot_id=head.id if head else None,
        snapshots=snapshots,
        refs=tuple(
            Ref(
                name,
                each["type"].lower(),
                each["snapshot-id"],
                each.get("max-ref-age-ms"),
                each.get("min-snapshots-to-keep"),
                each.get("max-snapshot-age-ms"),
            )
            for name, each in metadata.get("refs", {}).items()
        ),
        schema_id=schema["schema-id"],
        schema_json=json.dumps(schema),
        specs=tuple(_spec(each) for each in metadata["partition-specs"]),
        current_spec_id=metadata["default-spec-id"],
        sort_orders=tuple(_sort_order(each) for each in metadata["sort-orders"]),
        current_sort_order_id=metadata["default-sort-order-id"],
        properties=metadata.get("properties", {}),
        counters=_counters(head, len(snapshots)),
        metadata_log=tuple(each["metadata-file"] for each in metadata.get("metadata-log", ())),
        log_since_ms=_log_since(metadata),
        updated_ms=metadata["last-updated-ms"],
        sequence_number=metadata.get("last-sequence-number", 0),
        statistics=tuple(
            (each["snapshot-id"], each["statistics-path"])
            for kind in ("statistics", "partition-statistics")
            for each in metadata.get(kind, ())
        ),
    )


def _log_since(metadata: Mapping[str, Any]) -> int | None:
    """The time of the oldest metadata file in the metadata log."""
    log = metadata.get("metadata-log", ())
    return int(log[0]["timestamp-ms"]) if log else None


def _snapshot(each: Mapping[str, Any]) -> Snapshot:
    summary = dict(each.get("summary", {}))
    return Snapshot(
        id=each["snapshot-id"],
        parent_id=each.get("parent-snapshot-id"),
        sequence_number=each.get("sequence-number", 0),
        committed_at=from_millis(each["timestamp-ms"]),
        operation=summary.pop("operation", ""),
        summary=summary,
        manifest_list=each.get("manifest-list", ""),
    )


def _spec(each: Mapping[str, Any]) -> PartitionSpec:
    return PartitionSpec(
        each["spec-id"],
        tuple(
            PartitionField(field.get("source-id", -1), field["field-id"], field["name"], field["transform"])
            for field in each["fields"]
        ),
    )


def _sort_order(each: Mapping[str, Any]) -> SortOrder:
    return SortOrder(
        each["order-id"],
        tuple(
            SortField(field.get("source-id", -1), field["transform"], field["direction"], field["null-order"])
            for field in each["fields"]
        ),
    )


def _counters(head: Snapshot | None, snapshots: int) -> Counters:
    if head is None:
        return Counters(snapshots=snapshots)
    total = {
        key: int(head.summary.get(f"total-{key}", 0))
        for key in ("data-files", "delete-files", "records", "files-size")
    }
    return Counters(
        data_files=total["data-files"],
        delete_files=total["delete-files"],
        records=total["records"],
        bytes=total["files-size"],
        snapshots=snapshots,
    )


def read_files(
    catalogs: IcebergCatalogs,
    ref: TableRef,
    snapshot_id: int,
    where: str | None,
    bounds_of: Sequence[str] = (),
) -> FileSet:
    """All live data files as Arrow. The JVM writes them to one local stream file."""
    table = catalogs.load(ref)
    expression = filter_expression(catalogs, table, where) if where else None
    with tempfile.TemporaryDirectory(prefix="lakewarden-") as folder:
        stream = Path(folder) / "files.arrow"
        try:
            scan = catalogs.bridge.scan(
                table, snapshot_id, expression, json.dumps(list(bounds_of)), str(stream)
            )
        except JavaError as error:
            raise _unreadable(error, ref) from error
        files = pa.ipc.open_stream(stream.read_bytes()).read_all()
    partitions = tuple(
        Partition(number, each["spec_id"], each["path"], tuple(each["values"]))
        for number, each in enumerate(json.loads(scan.partitions()))
    )
    deletes = tuple(read_delete(each) for each in json.loads(scan.deletes()))
    return FileSet(snapshot_id, partitions, files, scan, deletes)


def read_delete(row: Mapping[str, Any]) -> DeleteFile:
    """A delete file from the bridge's row. Other keys of the row are ignored."""
    known = {name: row[name] for name in DeleteFile.__slots__}
    return DeleteFile(**{**known, "equality_ids": tuple(row["equality_ids"])})


def read_manifests(catalogs: IcebergCatalogs, ref: TableRef, snapshot_id: int) -> list[Manifest]:
    try:
        rows = json.loads(catalogs.bridge.manifests(catalogs.load(ref), snapshot_id))
    except JavaError as error:
        raise _unreadable(error, ref) from error
    return [Manifest(row["path"], row["bytes"], row["spec_id"], row["content"]) for row in rows]


def filter_expression(catalogs: IcebergCatalogs, table: Any, where: str) -> Any:
    """The filter as an expression of the library. Lakewarden parses it itself: no SQL from a client reaches an engine."""
    zone = catalogs.spark.conf.get("spark.sql.session.timeZone") or "UTC"
    try:
        return catalogs.bridge.where(table, filters.expression(where, catalogs.bridge.schema(table), zone))
    except WrongFilter as error:
        raise PolicyError(key="rewrite_where", reason=f"found {where!r}; {error}") from error
    except JavaError as error:
        raise PolicyError(
            key="rewrite_where",
            reason=f"found {where!r}; {java_reason(error)}; {ALLOWED}",
        ) from error


def quoted(ref: TableRef) -> str:
    """The table's name, quoted for SQL."""
    parts = (ref.catalog, *ref.namespace, ref.name)
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def _unreadable(error: BaseException, ref: TableRef) -> LakewardenError:
    """The error for an unreadable manifest or manifest list. It stops the plan: a partial file list is worse than none."""
    return catalog_error(error, f"the metadata of {ref}")


def read_replaced(catalogs: IcebergCatalogs, ref: TableRef, snapshot_id: int) -> ReplacedFiles:
    table = catalogs.load(ref)
    try:
        changes = json.loads(catalogs.history.changes(table, snapshot_id))
        added = _planned(catalogs, table, snapshot_id, changes["added"])
    except JavaError as error:
        raise catalog_error(error, f"snapshot {snapshot_id} of {ref}") from error
    removed, missing = _removed(catalogs, table, snapshot_id, changes["removed"])
    return ReplacedFiles(changes["schema"], removed, added, missing)


# The status of a manifest entry whose file was deleted in the entry's snapshot.
_DELETED = 2


def read_additions(
    catalogs: IcebergCatalogs, view: TableView, snapshot_id: int | None, name: str
) -> pa.Table:
    """Reads Iceberg's metadata tables of manifest entries, in bulk with Spark tasks."""
    spark, name_in_sql = catalogs.spark, quoted(view.ref)
    try:
        spark.catalog.refreshTable(name_in_sql)  # an existing session may have an older version in its cache
        if snapshot_id is None:
            entries = spark.table(f"{name_in_sql}.all_entries")
        else:
            entries = spark.sql(f"select * from {name_in_sql}.entries version as of {snapshot_id}")
            entries = entries.where(f"status <> {_DELETED}")
        path = sf.col("data_file.file_path")
        return (
            entries.where(sf.col("data_file.content") == 0)
            .where(path.endswith(name))
            .select(
                path.alias("path"), sf.col("snapshot_id"), (sf.col("status") == _DELETED).alias("removed")
            )
            .toArrow()
        )
    except JavaError as error:
        raise catalog_error(error, f"the manifests of {view.ref}") from error


def _removed(
    catalogs: IcebergCatalogs, table: Any, snapshot_id: int, rows: list[Mapping[str, Any]]
) -> tuple[FilesWithDeletes, str]:
    """The removed files as in the parent. If the parent is gone: as in the snapshot, and the reason why that is incomplete."""
    remembered = FilesWithDeletes(tuple(_file(row) for row in rows))
    parent = table.snapshot(snapshot_id).parentId()
    if not rows:
        return remembered, ""
    if parent is None or table.snapshot(parent) is None:
        which = "" if parent is None else f" {parent}"
        return remembered, f"its parent snapshot{which} has expired, so the deletes that applied are unknown"
    try:
        files = _planned(catalogs, table, parent, rows)
    except JavaError as error:
        if is_java(error, "NotFoundException", "FileNotFoundException"):
            return remembered, f"the metadata of its parent snapshot {parent} is gone: {java_reason(error)}"
        raise catalog_error(error, f"snapshot {parent}") from error
    absent = {row["path"] for row in rows} - {file.path for file in files.files}
    if absent:
        return remembered, f"its parent snapshot {parent} does not have {min(absent)}"
    return files, ""


def _planned(
    catalogs: IcebergCatalogs, table: Any, snapshot_id: int, rows: list[Mapping[str, Any]]
) -> FilesWithDeletes:
    if not rows:
        return FilesWithDeletes(())
    paths = json.dumps([row["path"] for row in rows])
    planned = json.loads(catalogs.history.planned(table, snapshot_id, paths))
    return FilesWithDeletes(
        tuple(_file(row) for row in planned["files"]), tuple(read_delete(row) for row in planned["deletes"])
    )


def _file(row: Mapping[str, Any]) -> DataFile:
    return DataFile(**{**row, "deletes": tuple(row.get("deletes", ()))})
