"""Reads Paimon's manifest lists, manifests and index manifests as Arrow tables. Runs in the driver's threads
and in workers.

A file's folder depends on its partition, which is stored in Paimon's own bytes. Only Paimon's library turns
those into a path, so the bytes stay here, and the driver asks the library for the few distinct ones.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.rewrite.metadata.avro import decode, one, unpacked
from lakewarden.rewrite.metadata.iceberg_manifests import LISTED

# One row per entry. `external` is the whole path of a file outside the table; `extra` are names of files beside
# it; `vectors`: an index file of deletion vectors.
ENTRIES = pa.schema(
    [
        ("partition", pa.binary()),
        ("bucket", pa.int32()),
        ("name", pa.string()),
        ("size", pa.int64()),
        ("added", pa.bool_()),
        ("external", pa.string()),
        ("extra", pa.list_(pa.string())),
        ("rows", pa.int64()),
        ("vectors", pa.bool_()),
    ]
)
# In addition to the common columns: how many more files a manifest's entries add than they delete.
PAIMON_LISTED = LISTED.append(pa.field("net", pa.int64()))
_ADD = 0
_VECTORS = "DELETION_VECTORS"


def paimon_list(content: bytes) -> pa.Table:
    """For each manifest, its name, length, number of entries, and additions minus deletions."""
    names = ("_FILE_NAME", "_FILE_SIZE", "_NUM_ADDED_FILES", "_NUM_DELETED_FILES")
    table = decode(unpacked(content), names)
    name, size, added, deleted = (one(table[name]) for name in names)
    columns = [
        pc.cast(name, pa.string()),
        pc.cast(size, pa.int64()),
        pc.cast(pc.add(added, deleted), pa.int64()),
        pa.array([False] * table.num_rows, pa.bool_()),
        pc.cast(pc.subtract(added, deleted), pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=PAIMON_LISTED)


def paimon_manifest(content: bytes) -> pa.Table:
    """Every entry, added or deleted: the live files are the sum over all manifests of a snapshot."""
    table = decode(unpacked(content), ("_KIND", "_PARTITION", "_BUCKET", "_FILE"))
    file = one(table["_FILE"])
    have = {field.name for field in file.type}
    nothing = pa.nulls(table.num_rows, pa.string())
    extra = file.field("_EXTRA_FILES") if "_EXTRA_FILES" in have else None
    columns = [
        pc.cast(one(table["_PARTITION"]), pa.binary()),
        pc.cast(one(table["_BUCKET"]), pa.int32()),
        pc.cast(file.field("_FILE_NAME"), pa.string()),
        pc.cast(file.field("_FILE_SIZE"), pa.int64()),
        pc.equal(one(table["_KIND"]), _ADD),
        pc.cast(file.field("_EXTERNAL_PATH"), pa.string()) if "_EXTERNAL_PATH" in have else nothing,
        pc.cast(extra, pa.list_(pa.string())) if extra is not None else _no_lists(table.num_rows),
        pc.cast(file.field("_ROW_COUNT"), pa.int64()),
        pa.repeat(False, table.num_rows),
    ]
    return pa.Table.from_arrays(columns, schema=ENTRIES)


def paimon_index(content: bytes) -> pa.Table:
    """Every index file of a snapshot: deletion vectors, bucket indexes."""
    plain = unpacked(content)
    have = decode(plain, None, rows=1).column_names
    fields = ["_KIND", "_PARTITION", "_BUCKET", "_FILE_NAME", "_FILE_SIZE", "_INDEX_TYPE"]
    table = decode(plain, [*fields, *(["_EXTERNAL_PATH"] if "_EXTERNAL_PATH" in have else [])])
    external = one(table["_EXTERNAL_PATH"]) if "_EXTERNAL_PATH" in have else pa.nulls(table.num_rows)
    columns = [
        pc.cast(one(table["_PARTITION"]), pa.binary()),
        pc.cast(one(table["_BUCKET"]), pa.int32()),
        pc.cast(one(table["_FILE_NAME"]), pa.string()),
        pc.cast(one(table["_FILE_SIZE"]), pa.int64()),
        pc.equal(one(table["_KIND"]), _ADD),
        pc.cast(external, pa.string()),
        _no_lists(table.num_rows),
        pa.repeat(pa.scalar(0, pa.int64()), table.num_rows),
        pc.equal(pc.cast(one(table["_INDEX_TYPE"]), pa.string()), _VECTORS),
    ]
    return pa.Table.from_arrays(columns, schema=ENTRIES)


def _no_lists(rows: int) -> pa.Array:
    return pa.array([[]] * rows, pa.list_(pa.string()))
