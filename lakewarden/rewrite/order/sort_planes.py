"""Converts a column of any plain type to planes: integers in the order of its values.

A timestamp is one plane. A text is one plane for every eight bytes and one for its length, unless its values
repeat: then it is converted to a dictionary, and the ranks of the dictionary's values are the plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lakewarden.rewrite.order.row_sort import Flags, Integers, Plane, Read, Rows, Words, ordered, pick

_PROBE = 4096
_MAX_DECIMAL_OF_ONE_WORD = 18
_ALL_BITS = (1 << 64) - 1
# Masks that keep the bytes of a text with n bytes left, out of the eight that were read.
_KEPT_BYTES = np.array([_ALL_BITS << (8 * (8 - kept)) & _ALL_BITS for kept in range(9)], dtype=np.uint64)


def planes(column: pa.ChunkedArray, descending: bool = False, nulls_first: bool = True) -> Iterator[Plane]:
    """The planes to order a column by. Texts come as binary; see `sort_keys` for the other types."""
    missing = column.is_null().to_numpy() if column.null_count else None
    if missing is not None:
        yield Plane(partial(pick, missing.view(np.uint8)), descending=nulls_first)
        if missing.all():
            return
    for read in _reads(compact(column), missing):
        yield Plane(read, descending)


def _reads(column: pa.ChunkedArray, missing: Flags | None) -> Iterator[Read]:
    kind = column.type
    if is_binary(kind):
        yield from _Texts(column, missing).reads()
        return
    for values in _fixed_width(column):
        yield partial(_float_bits if pt.is_floating(kind) else pick, _fill(values, missing))


def _fixed_width(column: pa.ChunkedArray) -> Iterator[Integers]:
    kind = column.type
    if pt.is_dictionary(kind):
        yield _dictionary_ranks(column)
    elif pt.is_fixed_size_binary(kind):
        yield from _byte_words(column, kind.byte_width)
    elif pt.is_decimal128(kind):
        yield from _decimal_words(column, kind.precision)
    elif pt.is_boolean(kind):
        yield buffers_of(column.cast(pa.uint8()), np.uint8)
    elif pt.is_floating(kind):
        yield buffers_of(column, np.dtype(f"f{kind.bit_width // 8}"))
    else:
        yield buffers_of(column, np.dtype(f"i{kind.bit_width // 8}"))


def buffers_of(column: pa.ChunkedArray, dtype: npt.DTypeLike, each: int = 1) -> Integers:
    """The values as they are in memory, `each` numbers of the dtype per row; undefined for null rows."""
    parts = [
        np.frombuffer(chunk.buffers()[1], dtype)[chunk.offset * each : (chunk.offset + len(chunk)) * each]
        for chunk in column.chunks
        if len(chunk)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, dtype)])


def _fill(values: Integers, missing: Flags | None) -> Integers:
    """Nulls are separated earlier: here all of them get one value of the column, so that its range stays small."""
    if missing is None:
        return values
    filled: Integers = np.where(missing, values[np.argmin(missing)], values)
    return filled


def _float_bits(floats: Integers, rows: Rows | None) -> Integers:
    """Integers in Iceberg's order of floats: -0.0 comes before 0.0, and every NaN is equal and greatest."""
    values = pick(floats, rows)
    bits = values.view(f"i{values.itemsize}")
    greatest = np.iinfo(bits.dtype).max
    # Negative numbers are stored as sign and magnitude: inverting the magnitude puts the greater first.
    code: Integers = bits >> (8 * values.itemsize - 1)
    code &= greatest
    code ^= bits
    code[np.isnan(values)] = greatest
    return code


def _decimal_words(column: pa.ChunkedArray, precision: int) -> Iterator[Integers]:
    words = buffers_of(column, np.int64, each=2)
    low, high = words[0::2], words[1::2]
    if precision <= _MAX_DECIMAL_OF_ONE_WORD:
        yield low
    else:
        yield high
        yield low.view(np.uint64)


def _byte_words(column: pa.ChunkedArray, width: int) -> Iterator[Integers]:
    """Bytes, eight at a time. The last eight may repeat earlier bytes, which are equal by then."""
    data = buffers_of(column, np.uint8, each=width).reshape(len(column), width)
    if width < 8:
        data = np.pad(data, ((0, 0), (0, 8 - width)))
    last = data.shape[1] - 8
    for start in [*range(0, last, 8), last]:
        yield np.ascontiguousarray(data[:, start : start + 8]).view(">u8")[:, 0].astype(np.uint64)


def take_rows(column: pa.ChunkedArray | pa.Array, rows: Rows) -> pa.Array:
    """Some rows of a column, as plain values. Arrow's own take would first copy all chunks into one."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    by_row = np.argsort(rows, kind="stable")
    ascending = rows[by_row].astype(np.int64)
    starts = np.cumsum([0, *map(len, chunks)])
    limits = np.searchsorted(ascending, starts)
    pieces = [
        _decoded(chunk.take(pa.array(ascending[limits[number] : limits[number + 1]] - starts[number])))
        for number, chunk in enumerate(chunks)
    ]
    back = np.empty(len(rows), dtype=np.uint32)
    back[by_row] = np.arange(len(rows))
    return pa.concat_arrays(pieces or [_decoded(pa.nulls(0, column.type))]).take(pa.array(back))


def _decoded(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pt.is_dictionary(array.type) else array


# --- texts --------------------------------------------------------------------------------------------------


def is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind))


def compact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as a dictionary, if it is binary and a sample shows that its values repeat."""
    if not is_binary(column.type) or len(column) < _PROBE:
        return column
    probe = take_rows(column, (np.arange(_PROBE) * len(column) // _PROBE).astype(np.uint32))
    return pc.dictionary_encode(column) if pc.count_distinct(probe).as_py() * 2 < _PROBE else column


def indices_of(column: pa.ChunkedArray) -> tuple[pa.Array, Integers]:
    """The one dictionary of a column and its indices; a null's index is one past the dictionary."""
    chunks = column.unify_dictionaries().chunks
    dictionary = chunks[0].dictionary
    indices = buffers_of(pa.chunked_array([chunk.indices for chunk in chunks]), np.int32)
    if column.null_count:
        indices = np.where(column.is_null().to_numpy(), np.int32(len(dictionary)), indices)
    return dictionary, indices


def _dictionary_ranks(column: pa.ChunkedArray) -> Integers:
    dictionary, indices = indices_of(column)
    texts = _Texts(pa.chunked_array([dictionary]), None)
    order = ordered([map(Plane, texts.reads())], len(dictionary))
    # Values that a dictionary holds twice begin no new key, so they share a rank.
    ranks = np.zeros(len(dictionary) + 1, dtype=np.uint32)
    ranks[order.rows] = np.cumsum(order.begins)
    return ranks[indices]


class _Texts:
    """Byte strings of any length, read eight bytes at a time, first byte highest; zeros follow the end."""

    def __init__(self, column: pa.ChunkedArray, missing: Flags | None) -> None:
        array = _one_array(column)
        offset_type = np.int64 if pt.is_large_binary(array.type) else np.int32
        _, offsets, data = array.buffers()
        self._ends: Integers = np.frombuffer(offsets, offset_type)[
            array.offset : array.offset + len(array) + 1
        ]
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        if len(self._data) < 8:
            self._data = np.pad(self._data, (0, 8))
        self._missing = missing

    def reads(self) -> Iterator[Read]:
        longest = int(self._lengths(None).max())
        for start in range(0, longest, 8):
            yield partial(self._word, start)
        # Only the length distinguishes zeros at the end of a text from the end of the text.
        yield self._lengths

    def _lengths(self, rows: Rows | None) -> Integers:
        lengths: Integers = pick(self._ends[1:], rows) - pick(self._ends[:-1], rows)
        if self._missing is not None:
            lengths[pick(self._missing, rows)] = 0
        return lengths

    def _word(self, start: int, rows: Rows | None) -> Words:
        at = pick(self._ends[:-1], rows).astype(np.int64) + start
        last = len(self._data) - 8
        # One view that starts at every byte: numpy reads words from odd addresses too.
        view = np.lib.stride_tricks.as_strided(self._data[:8].view("<u8"), (last + 1,), (1,))
        words: Words = view[np.minimum(at, last)].byteswap()
        late = np.flatnonzero(at > last)
        words[late] <<= np.minimum(at[late] - last, 7).astype(np.uint64) * np.uint64(8)
        words &= _KEPT_BYTES[np.clip(self._lengths(rows) - start, 0, 8)]
        return words


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """All chunks as one array, copied only if there are several."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    if column.nbytes >= 1 << 31:
        chunks = [chunk.cast(pa.large_binary()) for chunk in chunks]
    return pa.concat_arrays(chunks)
