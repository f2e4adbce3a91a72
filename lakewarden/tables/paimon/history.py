"""The changes of a past snapshot of a Paimon table: its data files compared with those of the snapshot before it."""

from __future__ import annotations

import json

import pyarrow.compute as pc

from lakewarden.model.files import FileSet
from lakewarden.model.table import TableView
from lakewarden.tables.interface import DataFile, FilesWithDeletes, ReplacedFiles
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.files import read_files


def read_replaced(catalogs: PaimonCatalogs, view: TableView, snapshot_id: int) -> ReplacedFiles:
    after = read_files(catalogs, view.ref, snapshot_id)
    if view.snapshot(snapshot_id - 1) is None:
        missing = f"snapshot {snapshot_id - 1} before it has expired, so the removed files are unknown"
        return ReplacedFiles(
            _schema(catalogs, view, after, after), FilesWithDeletes(()), _files(after, None), missing
        )
    before = read_files(catalogs, view.ref, snapshot_id - 1)
    return ReplacedFiles(_schema(catalogs, view, after, before), _files(before, after), _files(after, before))


def _files(mine: FileSet, others: FileSet | None) -> FilesWithDeletes:
    """The files of one snapshot that the other does not have."""
    table = mine.files
    if others is not None:
        table = table.filter(pc.invert(pc.is_in(table["path"], others.files["path"].combine_chunks())))
    names = ("path", "format", "bytes", "records", "sequence_number", "row_groups", "encrypted", "deletes")
    rows = table.select(names).to_pylist()
    return FilesWithDeletes(
        tuple(DataFile(**{**row, "spec_id": 0, "deletes": tuple(row["deletes"])}) for row in rows),
        mine.deletes,
    )


def _schema(catalogs: PaimonCatalogs, view: TableView, after: FileSet, before: FileSet) -> str:
    """The schema of the newest added file."""
    paths = [file.path for file in _files(after, before).files]
    if not paths:
        return view.schema_json
    schema: str = catalogs.files.schemaOf(catalogs.load(view.ref), after.handle, json.dumps(paths))
    return schema
