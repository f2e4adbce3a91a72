"""Changes of past snapshots: the files that a snapshot removed and added, and the snapshot that added a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.iceberg.catalog import IcebergCatalogs, catalog_error
from lakewarden.tables.iceberg.view import quoted, read_delete
from lakewarden.tables.interface import DataFile, FilesWithDeletes, ReplacedFiles
from lakewarden.tables.jvm import JavaError, is_java, java_reason


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
