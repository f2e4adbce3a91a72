"""Sort keys: which columns order the rows, named by field id, and those columns made comparable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as pt

from lakewarden.rewrite.order.row_sort import Plane, Rows
from lakewarden.rewrite.order.sort_planes import planes, take_rows
from lakewarden.rewrite.order.transforms import is_bytes, is_text, is_uuid, transformed, unfit_transform
from lakewarden.rewrite.read.project import Unfit, field_id
from lakewarden.rewrite.write.footer_fixups import is_int96

_SIMPLE_TYPES = (
    pt.is_boolean,
    pt.is_int32,
    pt.is_int64,
    pt.is_float32,
    pt.is_float64,
    pt.is_decimal128,
    pt.is_date32,
    pt.is_time64,
    pt.is_timestamp,
    pt.is_fixed_size_binary,
    is_text,
    is_bytes,
    is_uuid,
)


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column to order by, with an Iceberg transform: identity, bucket[16], truncate[8], day, void …"""

    field_id: int
    transform: str = "identity"
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class Ordering:
    """How to order the rows of a partition: `sort`, the first key most significant, or `zorder` or `hilbert`,
    all keys equal.
    """

    kind: str
    keys: tuple[SortKey, ...]


def unfit_ordering(ordering: Ordering, schema: pa.Schema) -> str | None:
    """Why rows of this schema cannot be sorted with this ordering; None if they can."""
    if ordering.kind not in ("sort", "zorder", "hilbert"):
        return f"order {ordering.kind} is not known"
    if ordering.kind != "sort" and not 2 <= len(ordering.keys) <= 4:
        return f"{ordering.kind} takes 2 to 4 columns, not {len(ordering.keys)}"
    if not ordering.keys:
        return "there is no column to sort by"
    reasons = (_unfit_key(key, schema) for key in ordering.keys)
    return next((reason for reason in reasons if reason), None)


def _unfit_key(key: SortKey, schema: pa.Schema) -> str | None:
    field = next((field for field in schema if field_id(field) == key.field_id), None)
    if field is None:
        return f"field {key.field_id} is not a top-level column"
    if is_int96(field):
        return f"column {field.name}: INT96 timestamps have no order as bytes"
    kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
    reason = unfit_transform(key.transform, kind)
    if reason is None and key.transform != "void" and not any(known(kind) for known in _SIMPLE_TYPES):
        reason = f"values of type {kind} have no order"
    return f"column {field.name}: {reason}" if reason else None


def check(ordering: Ordering, schema: pa.Schema) -> None:
    if reason := unfit_ordering(ordering, schema):
        raise Unfit(reason)


def key_rows(rows: pa.Table | pa.RecordBatch, ordering: Ordering, numbers: Rows) -> pa.Table:
    """Some rows with only the key columns, each once and as plain values."""
    places = _places(rows.schema)
    indices = dict.fromkeys(places[key.field_id] for key in ordering.keys)
    columns = [take_rows(rows.column(place), numbers) for place in indices]
    fields = [rows.schema.field(place) for place in indices]
    schema = pa.schema(field.with_type(column.type) for field, column in zip(fields, columns, strict=True))
    return pa.Table.from_arrays(columns, schema=schema)


def _places(schema: pa.Schema) -> dict[int | None, int]:
    return {field_id(field): place for place, field in enumerate(schema)}


def key_column(rows: pa.Table | pa.RecordBatch, key: SortKey) -> pa.ChunkedArray:
    """The values of a key.

    Texts and uuids come as bytes; only bytes may be dictionaries, with 32-bit indices and no null among their
    values.
    """
    column = rows.column(_places(rows.schema)[key.field_id])
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array(
        [_key_values(chunk, key.transform) for chunk in chunks or [pa.nulls(0, column.type)]]
    )


def _key_values(chunk: pa.Array, transform: str) -> pa.Array:
    if not pt.is_dictionary(chunk.type):
        return _as_bytes(transformed(chunk, transform))
    # A distinct value is transformed once, however many rows have it.
    values = _as_bytes(transformed(chunk.dictionary, transform))
    indices = chunk.indices.cast(pa.int32())
    if is_bytes(values.type) and not values.null_count:
        return pa.DictionaryArray.from_arrays(indices, values, safe=False)
    return values.take(indices)


def _as_bytes(array: pa.Array) -> pa.Array:
    if is_uuid(array.type):
        return array.storage
    if is_text(array.type):
        return array.cast(pa.binary() if pt.is_string(array.type) else pa.large_binary())
    return array


def key_planes(
    rows: pa.Table | pa.RecordBatch, key: SortKey, marks: pa.Array | None = None
) -> Iterator[Plane]:
    """The planes that order the rows by one key, with marks before the rows if given. Nothing is read before
    the first is used.
    """
    column = key_column(rows, key)
    if marks is not None:
        column = joined(marks, column)
    yield from planes(column, key.descending, key.nulls_first)


def joined(marks: pa.Array, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Marks and rows as one column, the marks first. Marks are plain; rows may be a dictionary."""
    if not pt.is_dictionary(column.type):
        return pa.chunked_array([marks.cast(column.type), *column.chunks])
    encoded = marks.cast(column.type.value_type).dictionary_encode()
    return pa.chunked_array([encoded, *column.chunks]).unify_dictionaries()


# --- keys that travel ---------------------------------------------------------------------------------------


def as_bytes(values: pa.Array) -> bytes:
    """Values of a key as Arrow's IPC bytes."""
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([values], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


# A task uses the same few with every batch of rows.
@lru_cache(maxsize=64)
def from_bytes(data: bytes) -> pa.Array:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all().column(0).combine_chunks()
