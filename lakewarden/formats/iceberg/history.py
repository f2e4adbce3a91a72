"""What a past snapshot replaced: the files it removed, as its parent had them, and the files it added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lakewarden.formats.iceberg.catalog import Catalogs, catalog_error
from lakewarden.formats.iceberg.view import read_delete
from lakewarden.formats.jvm import JavaError, is_java, java_reason
from lakewarden.formats.seam import DataFile, Files, Replaced
from lakewarden.model import TableRef


def read_replaced(catalogs: Catalogs, ref: TableRef, snapshot_id: int) -> Replaced:
    table = catalogs.load(ref)
    try:
        changes = json.loads(catalogs.history.changes(table, snapshot_id))
        added = _planned(catalogs, table, snapshot_id, changes["added"])
    except JavaError as error:
        raise catalog_error(error, f"snapshot {snapshot_id} of {ref}") from error
    removed, missing = _removed(catalogs, table, snapshot_id, changes["removed"])
    return Replaced(changes["schema"], removed, added, missing)


def _removed(
    catalogs: Catalogs, table: Any, snapshot_id: int, rows: list[Mapping[str, Any]]
) -> tuple[Files, str]:
    """As the parent had them; where it is gone, as the snapshot itself remembers them, and why that is not enough."""
    remembered = Files(tuple(_file(row) for row in rows))
    parent = table.snapshot(snapshot_id).parentId()
    if not rows:
        return remembered, ""
    if parent is None or table.snapshot(parent) is None:
        which = "" if parent is None else f" {parent}"
        return remembered, f"its parent snapshot{which} has expired, and with it which deletes applied"
    try:
        found = _planned(catalogs, table, parent, rows)
    except JavaError as error:
        if is_java(error, "NotFoundException", "FileNotFoundException"):
            return remembered, f"the metadata of its parent snapshot {parent} is gone: {java_reason(error)}"
        raise catalog_error(error, f"snapshot {parent}") from error
    absent = {row["path"] for row in rows} - {file.path for file in found.files}
    if absent:
        return remembered, f"its parent snapshot {parent} does not have {min(absent)}"
    return found, ""


def _planned(catalogs: Catalogs, table: Any, snapshot_id: int, rows: list[Mapping[str, Any]]) -> Files:
    if not rows:
        return Files(())
    paths = json.dumps([row["path"] for row in rows])
    found = json.loads(catalogs.history.planned(table, snapshot_id, paths))
    return Files(
        tuple(_file(row) for row in found["files"]), tuple(read_delete(row) for row in found["deletes"])
    )


def _file(row: Mapping[str, Any]) -> DataFile:
    return DataFile(**{**row, "deletes": tuple(row.get("deletes", ()))})
