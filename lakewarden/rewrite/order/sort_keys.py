"""Sort keys: which columns order the rows, named by field id, and those columns made comparable. A key may
have one of Iceberg's transforms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lakewarden.rewrite.order.row_sort import Plane, Rows
from lakewarden.rewrite.order.sort_planes import is_binary, planes, take_rows
from lakewarden.rewrite.read.project import Unfit, field_id, is_uuid
from lakewarden.rewrite.write.footer_fixups import is_int96


def is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


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
    is_binary,
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
    if is_binary(values.type) and not values.null_count:
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


_Integers = npt.NDArray[Any]

_WITH_WIDTH = re.compile(r"(bucket|truncate)\[([1-9]\d*)\]")
_PER_SECOND = {"us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400
_PERIODS = ("year", "month", "day", "hour")
_WIDEST = 2**31 - 1


def unfit_transform(transform: str, kind: pa.DataType) -> str | None:
    """Why this transform does not work on values of this type; None if it does."""
    name, width = _parsed(transform)
    allowed = _ALLOWED.get(name)
    if allowed is None or width > _WIDEST:
        return f"transform {transform} is not known"
    if not any(known(kind) for known in allowed):
        return f"transform {transform} is not possible on {kind}"
    return None


def transformed(array: pa.Array, transform: str) -> pa.Array:
    """The array's values after the transform; nulls stay null.

    Only the order matters: truncated numbers are returned as quotients, which have the same order as the
    multiples and cannot overflow. All other transforms return Iceberg's value.
    """
    name, width = _parsed(transform)
    match name:
        case "identity":
            return array
        case "void":
            return pa.nulls(len(array), pa.int32())
        case "bucket":
            return _bucket(array, width)
        case "truncate":
            return _truncate(array, width)
        case _:
            return _period(array, name)


def _parsed(transform: str) -> tuple[str, int]:
    if match := _WITH_WIDTH.fullmatch(transform):
        return match[1], int(match[2])
    singular = transform.removesuffix("s")
    return (singular if singular in _PERIODS else transform), 0


def _anything(_: pa.DataType) -> bool:
    return True


def _is_timestamp(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) and kind.unit in _PER_SECOND)


_NUMBERS = (pt.is_int32, pt.is_int64, pt.is_decimal128)
_DATES = (pt.is_date32, _is_timestamp)
_ALLOWED: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "identity": (_anything,),
    "void": (_anything,),
    "bucket": (*_NUMBERS, *_DATES, pt.is_time64, is_text, is_binary, pt.is_fixed_size_binary, is_uuid),
    "truncate": (*_NUMBERS, is_text, is_binary),
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": (_is_timestamp,),
}


def _integers(array: pa.Array) -> _Integers:
    """The numbers of a fixed-width array as 64 bits; zero where null."""
    storage = pa.int32() if array.type.bit_width == 32 else pa.int64()
    plain = array.view(storage).cast(pa.int64())
    numbers: _Integers = plain.fill_null(0).to_numpy()
    return numbers


def _like(array: pa.Array, values: _Integers) -> pa.Array:
    """An Arrow array of the values, null where the other array is null."""
    return pa.array(values, mask=array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None)


# --- truncate -----------------------------------------------------------------------------------------------


def _truncate(array: pa.Array, width: int) -> pa.Array:
    if is_text(array.type):
        return pc.utf8_slice_codeunits(array, 0, width)
    if is_binary(array.type):
        return pc.binary_slice(array, 0, width)
    if pt.is_decimal128(array.type):
        return _truncate_decimal(array, width)
    return _like(array, _integers(array) // width)


def _truncate_decimal(array: pa.Array, width: int) -> pa.Array:
    """Long division of 128-bit numbers, from the top: every remainder fits 31 bits, so the next 32 bits fit beside it."""
    words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
    low, high = words[0::2].view(np.uint64), words[1::2]
    top, rest = np.divmod(high, width)
    half, bottom = np.uint64(32), np.uint64(0xFFFFFFFF)
    upper, rest = np.divmod((rest.astype(np.uint64) << half) | (low >> half), np.uint64(width))
    lower = ((rest << half) | (low & bottom)) // np.uint64(width)
    quotient = np.empty(2 * len(array), dtype=np.int64)
    quotient[0::2] = ((upper << half) | lower).view(np.int64)
    quotient[1::2] = top
    divided = pa.Array.from_buffers(array.type, len(array), [None, pa.py_buffer(quotient)])
    return pc.if_else(array.is_valid(), divided, pa.scalar(None, array.type)) if array.null_count else divided


# --- periods ------------------------------------------------------------------------------------------------


def _period(array: pa.Array, name: str) -> pa.Array:
    """Whole years, months, days or hours since 1970; earlier ones are negative."""
    numbers = _integers(array)
    second = 0 if pt.is_date32(array.type) else _PER_SECOND[array.type.unit]
    if name == "hour":
        return _like(array, numbers // (3_600 * second))
    days = numbers // (_DAY * second) if second else numbers
    if name == "day":
        return _like(array, days)
    return _like(array, _calendar(days, "Y" if name == "year" else "M"))


def _calendar(days: _Integers, unit: str) -> _Integers:
    """A calendar conversion takes 30 ns, and a file has few distinct days: if they are close together, convert
    each day once.
    """
    first, last = int(days.min(initial=0)), int(days.max(initial=0))
    if last - first >= len(days):
        return _steps(days, unit)
    counted: _Integers = _steps(np.arange(first, last + 1), unit)[days - first]
    return counted


def _steps(days: _Integers, unit: str) -> _Integers:
    steps: _Integers = days.view("M8[D]").astype(f"M8[{unit}]").view(np.int64)
    return steps


# --- bucket -------------------------------------------------------------------------------------------------


def _bucket(array: pa.Array, buckets: int) -> pa.Array:
    if pt.is_decimal128(array.type):
        return _bucket_distinct(array, buckets, lambda value: _minimal_bytes(_unscaled(value)))
    if is_uuid(array.type):
        return _bucket_distinct(array.storage, buckets, bytes)
    if pt.is_fixed_size_binary(array.type):
        return _bucket_distinct(array, buckets, bytes)
    if is_text(array.type) or is_binary(array.type):
        return _bucket_distinct(array.cast(pa.large_binary()), buckets, bytes)
    numbers = _integers(array)
    # Iceberg hashes a nanosecond timestamp by its microseconds.
    if pt.is_timestamp(array.type) and array.type.unit == "ns":
        numbers = numbers // 1_000
    hashes = _murmur_of_longs(numbers)
    return _like(array, (hashes & np.uint32(0x7FFFFFFF)) % np.uint32(buckets))


def _bucket_distinct(array: pa.Array, buckets: int, as_bytes: Callable[[Any], bytes]) -> pa.Array:
    """Hash every distinct value once."""
    import mmh3

    encoded = array.dictionary_encode()
    hashes = [mmh3.hash(as_bytes(value)) & 0x7FFFFFFF for value in encoded.dictionary.to_pylist()]
    numbers = pa.array([value % buckets for value in hashes], pa.int64())
    return numbers.take(encoded.indices)


def _unscaled(value: Any) -> int:
    sign, digits, _ = value.as_tuple()
    magnitude = int("".join(map(str, digits)))
    return -magnitude if sign else magnitude


def _minimal_bytes(value: int) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, "big", signed=True)


def _murmur_of_longs(values: _Integers) -> npt.NDArray[np.uint32]:
    """Murmur3 of 32 bits, seed 0, of every number's eight bytes, lowest first."""
    unsigned = values.view(np.uint64)
    state = np.zeros(len(values), dtype=np.uint32)
    for block in (unsigned.astype(np.uint32), (unsigned >> np.uint64(32)).astype(np.uint32)):
        mixed = _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        state = _rotated(state ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state ^= np.uint32(8)
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


def _rotated(words: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))
