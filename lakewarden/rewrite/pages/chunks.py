"""Merges the pages of many column chunks into one output chunk, with its footer entry.

The body of a page is copied, so levels, values and compression stay as their writer made them. A page is copied
only if it has a correct checksum: otherwise damage would spread to the healthy rows beside it. The checksum
does not cover the page's header, so no byte of a header is copied: the header is written again from checked
values. The checksum does not cover the footer either: the codec that the footer states is compared with the
page's bytes. The new chunk's statistics are the sum of what the pages and the source footers state, and are
left out in doubt.
"""

from __future__ import annotations

import math
import struct as packing
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.pages.thrift import Struct

# Numbers of parquet.thrift: physical types, codecs, encodings, kinds of pages.
PHYSICAL = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "FLOAT": 4,
    "DOUBLE": 5,
    "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}
# Codecs whose pages can be recognised. Brotli's cannot, so they are decoded.
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "ZSTD": 6}
ENCODINGS = {
    "PLAIN": 0,
    "RLE": 3,
    "BIT_PACKED": 4,
    "DELTA_BINARY_PACKED": 5,
    "DELTA_LENGTH_BYTE_ARRAY": 6,
    "DELTA_BYTE_ARRAY": 7,
    "BYTE_STREAM_SPLIT": 9,
}
_PAGE = 0
_RLE, _BIT_PACKED = ENCODINGS["RLE"], ENCODINGS["BIT_PACKED"]

_FLOATS = ("FLOAT", "DOUBLE")
_PACKED = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
# Longer statistics cost every reader of the footer more than they save; Arrow's writer uses the same limit.
_LONGEST_BOUND = 4096


class Doubtful(Exception):
    """These pages may not be copied. The rows are not wrong: decode them instead."""


class PagesDiffer(ValueError):
    """Pages contradict their header or their footer, or were not stored as they were written.

    Without a column, the file as a whole is meant.
    """

    def __init__(self, path: str, column: str, reason: str) -> None:
        super().__init__(path, column, reason)
        self.path, self.column, self.reason = path, column, reason

    def __str__(self) -> str:
        column = f", column {self.column}" if self.column else ""
        return f"copy pages of {self.path}{column}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the output: its names from the top level down, and Parquet's description of it."""

    names: tuple[bytes, ...]
    kind: Any
    allowed: frozenset[int]

    @property
    def path(self) -> str:
        return str(self.kind.path)


@dataclass(frozen=True, slots=True)
class SourceChunk:
    """A column chunk of a source: its footer entry and its bytes."""

    path: str
    rows: int
    chunk: pq.ColumnChunkMetaData
    data: memoryview


@dataclass(slots=True)
class MergedChunk:
    """The output's chunk, as far as its parts have been added."""

    column: Column
    values: int = 0
    uncompressed: int = 0
    pages: Counter[int] = field(default_factory=Counter)  # by encoding
    chunks: list[pq.ColumnChunkMetaData] = field(default_factory=list)

    def add(self, part: SourceChunk) -> list[ParquetPage]:
        """The pages of a part as the output stores them. Raises Doubtful or PagesDiffer before any of its bytes is written."""
        pages = list(_pages(part, self.column))
        values = sum(page.values for page in pages)
        if values != part.chunk.num_values:
            raise self._differs(part, f"the footer says {part.chunk.num_values} values, its pages {values}")
        # If values repeat within a row, pages do not show where rows begin: no such column is copied.
        if values != part.rows:
            raise self._differs(part, f"the footer says {part.rows} rows, its pages {values}")
        self.values += values
        self.uncompressed += sum(len(page.header) + page.inflated for page in pages)
        self.pages.update(page.encoding for page in pages)
        self.chunks.append(part.chunk)
        return pages

    def _differs(self, part: SourceChunk, reason: str) -> PagesDiffer:
        return PagesDiffer(part.path, self.column.path, reason)

    def entry(self, start: int, size: int) -> Struct:
        """The footer's ColumnChunk, for pages that begin at `start`."""
        metadata: Struct = {
            1: thrift.i32(PHYSICAL[self.column.kind.physical_type]),
            2: thrift.listed(thrift.I32, sorted({_RLE, *self.pages})),
            3: thrift.listed(thrift.BINARY, self.column.names),
            4: thrift.i32(CODECS[self.chunks[0].compression]),
            5: thrift.i64(self.values),
            6: thrift.i64(self.uncompressed),
            7: thrift.i64(size),
            9: thrift.i64(start),
            12: thrift.structure(statistics(self.chunks, self.column)),
            13: thrift.listed(thrift.STRUCT, self._page_counts()),
        }
        return {2: thrift.i64(0), 3: thrift.structure(metadata)}

    def _page_counts(self) -> Iterator[Struct]:
        for encoding, count in sorted(self.pages.items()):
            yield {1: thrift.i32(_PAGE), 2: thrift.i32(encoding), 3: thrift.i32(count)}


@dataclass(frozen=True, slots=True)
class ParquetPage:
    """A data page: its header for the output, its body as the source has it, and the body's checksum."""

    encoding: int
    values: int
    inflated: int
    header: bytes
    body: memoryview
    checksum: int


@dataclass(frozen=True, slots=True)
class _Header:
    """The fields of a data page's header, each in its Parquet type."""

    inflated: int
    size: int
    checksum: int | None
    values: int
    encoding: int
    definition_levels: int
    repetition_levels: int

    def fits(self, column: Column) -> bool:
        return (
            self.encoding in column.allowed
            and self.values > 0
            and self.inflated >= 0
            and _levels_fit(self.definition_levels, column.kind.max_definition_level)
            and _levels_fit(self.repetition_levels, column.kind.max_repetition_level)
        )

    def write(self, checksum: int) -> bytes:
        """The header for the output. The page's own statistics are left out: nothing proves that they are right."""
        levels = thrift.i32(_RLE)
        page = {1: thrift.i32(self.values), 2: thrift.i32(self.encoding), 3: levels, 4: levels}
        return thrift.write(
            {
                1: thrift.i32(_PAGE),
                2: thrift.i32(self.inflated),
                3: thrift.i32(self.size),
                4: thrift.i32(checksum - (checksum >> 31 << 32)),  # the same bits, as a signed number
                5: thrift.structure(page),
            }
        )


def _levels_fit(encoding: int, deepest: int) -> bool:
    """Whether the level encoding matches the output's header. For columns without levels, writers name either encoding."""
    return encoding == _RLE or (deepest == 0 and encoding == _BIT_PACKED)


def checksum_of(header: Struct) -> int | None:
    """The checksum in a page's header. Malformed if it is not a number."""
    stated = thrift.typed(header, 4, thrift.I32)
    return None if stated is None else int(stated) & 0xFFFFFFFF


def _pages(part: SourceChunk, column: Column) -> Iterator[ParquetPage]:
    """The data pages of a part. Their sizes must add up exactly to its end."""
    at, end, inflated = 0, len(part.data), 0
    stated = {ENCODINGS.get(encoding) for encoding in part.chunk.encodings}
    while at < end:
        header, body = _read_header(part, column, at)
        start, at = at, body + (header.size if header else 0)
        if header is None or not body < at <= end or not header.fits(column) or header.encoding not in stated:
            raise Doubtful(f"{part.path}, column {column.path}: a page that cannot be copied")
        data = part.data[body:at]
        checksum = _check_sum(part, column, header.checksum, data)
        _check_codec(part, column, header.inflated, data)
        inflated += body - start + header.inflated
        yield ParquetPage(
            header.encoding, header.values, header.inflated, header.write(checksum), data, checksum
        )
    # Checksums cover only bodies. The other header fields are compared with the footer.
    if inflated != part.chunk.total_uncompressed_size:
        raise Doubtful(
            f"{part.path}, column {column.path}: its pages have different sizes than the footer states"
        )


def _read_header(part: SourceChunk, column: Column, at: int) -> tuple[_Header | None, int]:
    """The header at this place, None if it is not a data page's, and where it ends. Doubtful if it is damaged."""
    try:
        header, end = thrift.read(part.data, at)
        return _data_page(header), end
    except thrift.Malformed as error:
        raise Doubtful(
            f"{part.path}, column {column.path}: damaged page header at byte {at}: {error}"
        ) from error


def _data_page(header: Struct) -> _Header | None:
    """The fields of a data page's header; None for any other kind of page, or if a field is missing.

    Pages of version 2 are decoded, not copied: their headers say where levels end, and no checksum covers that.
    """
    kind, inflated, size = (thrift.typed(header, number, thrift.I32) for number in (1, 2, 3))
    inner = thrift.typed(header, 5, thrift.STRUCT)
    # A page has one kind: with a second kind's header beside its own, the kind is uncertain.
    if kind != _PAGE or inner is None or not header.keys() <= {1, 2, 3, 4, 5}:
        return None
    fields = [thrift.typed(inner, number, thrift.I32) for number in (1, 2, 3, 4)]
    if None in (inflated, size, *fields):
        return None
    return _Header(inflated, size, checksum_of(header), *fields)


def _check_sum(part: SourceChunk, column: Column, stated: int | None, body: memoryview) -> int:
    """Verify the checksum. Decoding would find most damage. Here nothing is decoded, so a page without a
    checksum is not copied.
    """
    if stated is None:
        raise Doubtful(f"{part.path}, column {column.path}: a page without a checksum")
    if zlib.crc32(body) != stated:
        raise PagesDiffer(part.path, column.path, "a page does not have the checksum in its header")
    return stated


def _check_codec(part: SourceChunk, column: Column, inflated: int, body: memoryview) -> None:
    """Check the codec. Only the footer states it, without a checksum: the page itself must match it."""
    codec = part.chunk.compression
    reason = f"a page does not look like {codec}, the codec in the footer"
    if codec == "UNCOMPRESSED" and len(body) != inflated:
        # Decoding could read compressed bytes as values. No writer makes such a page.
        raise PagesDiffer(part.path, column.path, reason)
    if not _looks_like(codec, inflated, body):
        raise Doubtful(f"{part.path}, column {column.path}: {reason}")


def _looks_like(codec: str, inflated: int, body: memoryview) -> bool:
    match codec:
        case "SNAPPY":
            return _leading_varint(body) == inflated
        case "GZIP":
            return bytes(body[:2]) == b"\x1f\x8b"
        case "ZSTD":
            return bytes(body[:4]) == b"\x28\xb5\x2f\xfd" and _zstd_size(body) in (None, inflated)
        case _:
            return codec == "UNCOMPRESSED"


def _leading_varint(body: memoryview) -> int:
    """Snappy begins with the uncompressed size. A size in Parquet takes at most five bytes."""
    number = 0
    for place, byte in enumerate(body[:5]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number
    return -1


def _zstd_size(body: memoryview) -> int | None:
    """The uncompressed size of a zstd frame, None if its header does not state it (RFC 8878, 3.1.1.1)."""
    flags = body[4] if len(body) > 4 else 0
    single = flags >> 5 & 1
    width = (single, 2, 4, 8)[flags >> 6]
    start = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    stated = int.from_bytes(body[start : start + width], "little")
    return None if width == 0 else stated + (256 if width == 2 else 0)


# --- statistics ---------------------------------------------------------------------------------------------

# For each chunk: its stated value, and its number of values.
_Stated = Sequence[tuple[Any, int]]


def statistics(chunks: Iterable[pq.ColumnChunkMetaData], column: Column) -> Struct:
    """Statistics of all chunks together: nulls, least and greatest value, each only if every chunk states it.

    Whether a bound is exact is not stated: not every writer says so, and a shortened bound is still a bound.
    """
    stated = [(chunk.statistics, chunk.num_values) for chunk in chunks]
    merged: Struct = {}
    if all(one is not None and one.has_null_count for one, _ in stated):
        merged[3] = thrift.i64(sum(one.null_count for one, _ in stated))
    bounds = _bounds(stated, column)
    if bounds is not None:
        merged[6], merged[5] = map(thrift.binary, bounds)
    return merged


def dictionary_statistics(column: pa.ChunkedArray) -> Struct:
    """Nulls, least and greatest value of strings whose chunks share one dictionary, in the form of Arrow's
    writer.

    Arrow's writer would find the used entries with a hash table of all rows, in more than half the time of the
    whole column.
    """
    stated: Struct = {3: thrift.i64(column.null_count)}
    dictionary = column.chunk(0).dictionary
    used = np.zeros(len(dictionary), bool)
    for chunk in column.chunks:
        if not chunk.dictionary.equals(dictionary):
            raise ValueError("find bounds: the chunks have different dictionaries")
        if not used.all():
            used[chunk.indices.drop_null().to_numpy()] = True
    values = dictionary.filter(pa.array(used))
    bounds = pc.min_max(values.cast(pa.binary()))
    for number, exact, name in ((5, 7, "max"), (6, 8, "min")):
        bound = bounds[name].as_py()
        if bound is not None and len(bound) <= _LONGEST_BOUND:
            stated[number], stated[exact] = thrift.binary(bound), thrift.boolean(True)
    return stated


def loses_bounds(chunks: Iterable[pq.ColumnChunkMetaData], column: Column) -> bool:
    """Whether copying would leave floats without bounds that encoding them again would find. Java's writer
    states no bounds for a chunk with NaN. The table had them, because Iceberg counts NaN separately, and would
    lose them.
    """
    stated = [(chunk.statistics, chunk.num_values) for chunk in chunks]
    return column.kind.physical_type in _FLOATS and _bounds(stated, column) is None and not _all_null(stated)


def _all_null(stated: _Stated) -> bool:
    return all(one is not None and one.has_null_count and one.null_count == values for one, values in stated)


def _bounds(stated: _Stated, column: Column) -> tuple[bytes, bytes] | None:
    """Least and greatest value as stored in a footer, or None."""
    pairs = []
    for one, values in stated:
        if one is not None and one.has_min_max:
            pairs.append((one.min_raw, one.max_raw))
        elif not _all_null([(one, values)]):
            return None
    if not pairs:
        return None
    if column.kind.physical_type in _FLOATS:
        return _float_bounds(pairs, column.kind.physical_type)
    order = _order(column.kind)
    low = min((low for low, _ in pairs), key=order)
    high = max((high for _, high in pairs), key=order)
    bounds = _pack(low, column.kind.physical_type), _pack(high, column.kind.physical_type)
    return None if max(map(len, bounds)) > _LONGEST_BOUND else bounds


def _float_bounds(pairs: list[tuple[float, float]], physical: str) -> tuple[bytes, bytes] | None:
    """The bounds of floats. A NaN gives no bound for the other values; a zero may be either zero, so the outer one is used."""
    if any(map(math.isnan, (value for pair in pairs for value in pair))):
        return None
    low, high = min(low for low, _ in pairs), max(high for _, high in pairs)
    return _pack(low or -0.0, physical), _pack(high or 0.0, physical)


def _order(kind: Any) -> Callable[[Any], Any]:
    """Parquet's order for values of this kind: bytes are unsigned, except the digits of a decimal."""
    if kind.physical_type == "FIXED_LEN_BYTE_ARRAY" and str(kind.logical_type).startswith("Decimal"):
        return lambda digits: int.from_bytes(digits, "big", signed=True)
    return lambda value: value


def _pack(value: Any, physical: str) -> bytes:
    packed = _PACKED.get(physical)
    return bytes(value) if packed is None else packing.pack(packed, value)
