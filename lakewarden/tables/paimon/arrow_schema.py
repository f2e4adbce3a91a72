"""A Paimon schema as Arrow, and the check whether the Arrow kernel may write a table.

To learn how Paimon stores a schema, Paimon's own writer creates a file without rows, and Arrow reads its footer. A schema
that Arrow would store differently is left to Paimon's writer.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from lakewarden.model.table import TableView
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon.catalog import PaimonCatalogs

# Field metadata for the kernel about types that Arrow does not have (rewrite/write/footer_fixups.py, encoding.py).
INT96 = b"lakewarden.int96"
INT96_BYTES = 12
UTC_TIMES = "lakewarden.parquet.utc-times"

# Types that are stored in several columns, or in separate files.
_SPECIAL = re.compile(r"\b(VARIANT|BLOB|VECTOR)\b")
_SIZE = re.compile(r"(\d+)\s*([a-z]*)", re.IGNORECASE)
_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}

# Paimon's options for properties that the kernel supports; the first option that is set counts.
_SIZES = {
    "row-group-size-bytes": ("file.block-size", "parquet.block.size"),
    "page-size-bytes": ("parquet.page.size",),
    "page-row-limit": ("parquet.page.row.count.limit",),
    "dict-size-bytes": ("parquet.dictionary.page.size",),
}
_DEFAULT_ZSTD_LEVEL = "1"


class StoredSchemas:
    """Schemas as Paimon stores them in files. Each is determined once."""

    def __init__(self, catalogs: PaimonCatalogs) -> None:
        self._catalogs = catalogs
        self._known: dict[tuple[str, int], Any] = {}

    def arrow(self, view: TableView) -> pa.Schema:
        """The table's schema with field ids at every level."""
        return pa.schema([_raw(field) for field in self._stored(view).to_arrow_schema().remove_metadata()])

    def unfit(self, view: TableView) -> str | None:
        """Why the Arrow kernel cannot write this table; None if it can."""
        for key in sorted(view.properties):
            if key.startswith("file-index.") and key.endswith(".columns"):
                return f"{key} asks for a file index"
            if key.startswith("parquet.bloom.filter.enabled") and view.properties[key].lower() == "true":
                return f"{key} asks for a bloom filter"
        for key in ("file.format.per.level", "file.compression.per.level"):
            if key in view.properties:
                return f"{key} is set"
        special = special_column(view)
        if special:
            return f"the schema has a {special} column"
        try:
            return _differs(self._stored(view), self.arrow(view))
        except JavaError as error:
            return f"Paimon cannot store this schema in Parquet ({java_reason(error)})"

    def _stored(self, view: TableView) -> Any:
        # Not only the schema id: a view of the past may contain another schema.
        key = (view.uuid, json.loads(view.schema_json)["id"])
        if key not in self._known:
            with tempfile.TemporaryDirectory(prefix="lakewarden-") as folder:
                path = Path(folder) / "empty.parquet"
                self._catalogs.files.writeEmpty(self._catalogs.load(view.ref), key[1], str(path))
                self._known[key] = pq.read_metadata(path).schema
        return self._known[key]


def special_column(view: TableView) -> str | None:
    """The first column type that is not stored as one column of a Parquet file; None if there is none."""
    match = _SPECIAL.search(_types(view))
    return match.group(1) if match else None


def _types(view: TableView) -> str:
    return json.dumps([each["type"] for each in json.loads(view.schema_json)["fields"]])


def _raw(field: pa.Field) -> pa.Field:
    """The field with every INT96 timestamp in it as raw bytes. Paimon writes nanoseconds only as INT96."""
    kind = field.type
    if pt.is_timestamp(kind) and kind.unit == "ns":
        marked = {**(field.metadata or {}), INT96: b"true"}
        return field.with_type(pa.binary(INT96_BYTES)).with_metadata(marked)
    if pt.is_list(kind):
        return field.with_type(pa.list_(_raw(kind.value_field)))
    if pt.is_map(kind):
        return field.with_type(pa.map_(_raw(kind.key_field), _raw(kind.item_field)))
    if pt.is_struct(kind):
        return field.with_type(pa.struct([_raw(kind.field(i)) for i in range(kind.num_fields)]))
    return field


def _differs(stored: Any, schema: pa.Schema) -> str | None:
    """Describes the first column that Arrow would store differently than Paimon; None if there is none."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(
        sink, schema, store_decimal_as_integer=True, store_schema=False, write_time_adjusted_to_utc=True
    ).close()
    ours = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    if len(ours) != len(stored):
        return f"Paimon stores {len(stored)} columns, Arrow {len(ours)}"
    for one, other in zip(ours, stored, strict=True):
        if _storage(one) != _storage(other):
            return f"column {other.path} is stored as {_storage(other)}, by Arrow as {_storage(one)}"
    return None


def _storage(column: Any) -> tuple[Any, ...]:
    is_int96 = column.physical_type == "INT96" or (
        column.physical_type == "FIXED_LEN_BYTE_ARRAY"
        and column.length == INT96_BYTES
        and str(column.logical_type) == "None"
    )
    kind = ("INT96", "None") if is_int96 else (column.physical_type, str(column.logical_type))
    length = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" and not is_int96 else 0
    return column.path, *kind, length, column.max_definition_level, column.max_repetition_level


def left_alone(view: TableView) -> str | None:
    """Why files of this table may not be rewritten in groups; None if they may."""
    schema, options = json.loads(view.schema_json), view.properties
    if schema.get("primaryKeys"):
        return "rows of one key are merged: only Paimon's own compaction can do that"
    for key in ("row-tracking.enabled", "data-evolution.enabled", "clustering.incremental"):
        if options.get(key, "").lower() == "true":
            return f"{key} is set, and only Paimon may rewrite its files"
    # Paimon detects concurrent deletes only in tables without buckets. With buckets, a delete would be lost and its rows would be back.
    if int(options.get("bucket", "-1")) > 0 and options.get("deletion-vectors.enabled", "").lower() == "true":
        return "deletes that arrive during the rewrite of a bucket would be lost (deletion-vectors.enabled)"
    return None


def parquet_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The table's Parquet options as Iceberg's `write.parquet.` properties, which the kernel understands."""
    codec = options.get("parquet.compression", options.get("file.compression", "zstd")).lower()
    properties = {
        "write.format.default": options.get("file.format", "parquet"),
        "write.parquet.compression-codec": "uncompressed" if codec == "none" else codec,
        UTC_TIMES: "true",
    }
    if codec == "zstd":
        level = options.get("file.compression.zstd-level", _DEFAULT_ZSTD_LEVEL)
        properties["write.parquet.compression-level"] = options.get(
            "parquet.compression.codec.zstd.level", level
        )
    for ours, theirs in _SIZES.items():
        value = next((options[key] for key in theirs if key in options), None)
        if value is not None:
            properties[f"write.parquet.{ours}"] = _bytes(value)
    return properties


def _bytes(text: str) -> str:
    """A size in Paimon's notation (128 mb, 64k, 1024) in bytes. Other text stays unchanged; the kernel warns about it."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2][:1].lower() not in _UNITS:
        return text
    return str(int(match[1]) << _UNITS[match[2][:1].lower()])
