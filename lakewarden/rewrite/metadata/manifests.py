"""Reads manifest lists and manifests as Arrow tables, for Iceberg and for Paimon. Runs in the driver's threads
and in workers.

polars decodes Iceberg's: a thousand lists with half a million entries in 0.9 s on two cores (Iceberg's
library takes 1.3 to 2.4 s), and 100,000 entries of manifests with all their statistics in 1.1 s (1.5 to 2.7
s).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.rewrite.metadata.avro import decode, one, unpacked

# A count of -1 means that it was not stated: format version 1 does not require it.
LISTED = pa.schema(
    [
        ("manifest", pa.string()),
        ("length", pa.int64()),
        ("live", pa.int64()),
        ("encrypted", pa.bool_()),
    ]
)
# Kinds: 0 data, 1 position deletes (vectors too), 2 equality deletes.
NAMED = pa.schema([("path", pa.string()), ("size", pa.int64()), ("kind", pa.int8())])
ICEBERG_ENTRIES = NAMED.append(pa.field("live", pa.bool_()))

_LIST_COLUMNS = (
    "manifest_path",
    "manifest_length",
    "added_files_count",
    "existing_files_count",
    "key_metadata",
)
_DELETED = 2


def iceberg_list(content: bytes) -> pa.Table:
    """For each manifest, its path, length, number of live files, and whether it is encrypted."""
    import polars.exceptions

    try:
        table = decode(content, _LIST_COLUMNS)
    except (polars.exceptions.PolarsError, ValueError):  # columns of an older writer
        table = _older_list(content)
    added, existing = (pc.cast(one(table[name]), pa.int64()) for name in _LIST_COLUMNS[2:4])
    columns = [
        pc.cast(one(table["manifest_path"]), pa.string()),
        pc.cast(one(table["manifest_length"]), pa.int64()),
        pc.fill_null(pc.add(added, existing), -1),
        pc.is_valid(one(table["key_metadata"])),
    ]
    return pa.Table.from_arrays(columns, schema=LISTED)


def _older_list(content: bytes) -> pa.Table:
    """Read a list with the older names of counts, none of which was required."""
    have = decode(content, None, rows=1).column_names
    table = decode(content, [each for each in have if each != "partitions"])
    for name, before in (
        ("added_files_count", "added_data_files_count"),
        ("existing_files_count", "existing_data_files_count"),
        ("key_metadata", ""),
    ):
        if name not in have:
            old = table[before] if before in have else pa.nulls(table.num_rows)
            table = table.append_column(name, old)
    return table


def iceberg_manifest(content: bytes) -> pa.Table:
    """Every entry, and whether it is live: deleted files stay named for a while."""
    table = decode(content, ["status", "data_file"])
    live = pc.not_equal(one(table["status"]), pa.scalar(_DELETED, table.schema.field("status").type))
    files = one(table["data_file"])
    names = {field.name for field in files.type}
    kind = files.field("content") if "content" in names else pa.nulls(len(files), pa.int8())
    columns = [
        pc.cast(files.field("file_path"), pa.string()),
        pc.cast(files.field("file_size_in_bytes"), pa.int64()),
        pc.fill_null(pc.cast(kind, pa.int8()), 0),
    ]
    return pa.Table.from_arrays([*columns, live], schema=ICEBERG_ENTRIES)


def live_only(table: pa.Table) -> pa.Table:
    live, named = one(table["live"]), table.drop_columns("live")
    return named if pc.all(live).as_py() else named.filter(live)


# One row per entry. `external` is the whole path of a file outside the table; `extra` are names of files beside
# it; `vectors`: an index file of deletion vectors.
PAIMON_ENTRIES = pa.schema(
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
    """Every entry, added or deleted: the live files are the sum over all manifests of a snapshot.

    A file's folder depends on its partition, which is stored in Paimon's own bytes. Only Paimon's library
    turns those into a path, so the bytes stay here, and the driver asks the library for the few distinct
    ones.
    """
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
    return pa.Table.from_arrays(columns, schema=PAIMON_ENTRIES)


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
    return pa.Table.from_arrays(columns, schema=PAIMON_ENTRIES)


def _no_lists(rows: int) -> pa.Array:
    return pa.array([[]] * rows, pa.list_(pa.string()))
