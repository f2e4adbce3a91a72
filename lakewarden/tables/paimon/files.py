"""Reads the data files of a Paimon snapshot, in bulk."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakewarden.model.files import DeleteFile, FileSet, Partition
from lakewarden.model.table_name import TableRef
from lakewarden.tables.jvm import JavaError
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.errors import catalog_error

# Bytes around a deletion vector: its length before it, its checksum after it.
_FRAME = 8


def read_files(catalogs: PaimonCatalogs, ref: TableRef, snapshot_id: int) -> FileSet:
    """All live data files as Arrow. The JVM writes them to one local stream file.

    Each bucket of a partition counts as an own partition for the planner, so that an output never mixes files of two buckets.
    """
    table = catalogs.load(ref)
    with tempfile.TemporaryDirectory(prefix="lakewarden-") as folder:
        stream = Path(folder) / "files.arrow"
        try:
            scan = catalogs.files.scan(table, snapshot_id, str(stream))
        except JavaError as error:
            # An unreadable manifest stops the plan: a partial file list is worse than none.
            raise catalog_error(error, f"the metadata of {ref}") from error
        files = pa.ipc.open_stream(stream.read_bytes()).read_all()
    partitions = tuple(
        Partition(number, 0, each["path"], tuple(each["values"]))
        for number, each in enumerate(json.loads(scan.places()))
    )
    deletes = tuple(_vector(each) for each in json.loads(scan.deletes()))
    return FileSet(snapshot_id, partitions, files, scan, deletes, ordered=bool(scan.ordered()))


def _vector(row: dict[str, Any]) -> DeleteFile:
    return DeleteFile(
        key=f"{row['path']}#{row['offset']}",
        kind="vector",
        path=row["path"],
        format="paimon",
        bytes=row["length"] + _FRAME,
        records=row["records"] or -1,
        sequence_number=0,
        content_offset=row["offset"],
        content_size=row["length"] + _FRAME,
    )
