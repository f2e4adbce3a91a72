"""Chooses the encodings of the output's columns, from the table's options and the source footers.

The writers of the sources already tried a dictionary on every column. If they kept it, we keep it; if they dropped it, we
do not try again. Measured on 1 M rows of telemetry (25 files, 11 columns, zstd), CPU seconds to write and size:

    dictionary for every column (pyarrow's default)           0.49   30.0 MB
    dictionary where the footers show one ("classic")         0.32   26.9 MB   (Iceberg's own rewrite: 27.0 MB)
    + delta for integers, byte stream split for floats        0.29   24.4 MB   ("modern")

Of those 0.29 s, zstd takes 0.12 and statistics 0.06. Level 1 instead of 3 for columns that an encoding already made small
saves 0.01: not enough to differ from the table's level.

Anyone who may alter the table can set its properties to any text, so numbers in them are read with care.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from lakewarden.rewrite.read.project import Leaf

_PREFIX = "write.parquet."
# In addition to Iceberg's own properties: times of day are marked as UTC.
UTC_TIMES = "lakewarden.parquet.utc-times"
_MIB = 1 << 20

# Iceberg's name of a codec → Arrow's.
_CODECS = {
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "brotli": "brotli",
    "lz4_raw": "lz4",
    "uncompressed": "none",
}
# The level that Parquet's Java writer uses if the table names none; Arrow's own defaults differ (zstd 1, gzip 9).
_DEFAULT_LEVELS = {"zstd": 3, "gzip": 6, "brotli": 1}

# A data page of dictionary indices takes at most 21 bits per value plus levels: more means that the writer fell
# back to plain.
_INDEX_BYTES = 2.75
# The share of values that must come from chunks with a dictionary: a single file of one row never has one.
_MOST = 0.9
# Values after which Parquet's Java writer decides for or against a dictionary: its first page.
_TELLING_VALUES = 20_000
# Rows counted if the footers cannot answer.
_COUNTED = 65_536
# Rows compressed to compare levels.
_TRIED = 16_384
# Row groups read to choose a dictionary. A choice is never wrong, only slower, so not all of thousands of footers are read.
_SAMPLE = 64
# Encodings that not every reader knows.
_NEWER = frozenset(
    ("DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT")
)

# The ranges of Iceberg's int and long.
INT, LONG = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """A table's `write.parquet.*` properties, as far as a rewrite follows them.

    encodings: "modern" also uses DELTA_BINARY_PACKED and BYTE_STREAM_SPLIT; "classic" uses only encodings that
    every reader knows; "auto" uses a newer encoding for a column whose sources all use it, because the table's
    readers then know it.
    """

    codec: str
    level: int | None
    row_group_bytes: int
    page_bytes: int
    page_rows: int
    dictionary_bytes: int
    encodings: str = "classic"
    utc_times: bool = False  # times of day are marked as UTC: Paimon does this, Iceberg does not

    @classmethod
    def from_properties(cls, props: Mapping[str, str], encodings: str = "classic") -> WriteOptions:
        """Read the properties, with Iceberg 1.12's defaults. Call `unfit_properties` first; `odd_properties`
        lists the properties that are not followed.
        """
        return cls(
            codec=_codec(props),
            level=_tuned_level(props)[0],
            row_group_bytes=row_group_bytes(props),
            page_bytes=_tuned(props, _PAGE_BYTES)[0],
            page_rows=_tuned(props, _PAGE_ROWS)[0],
            dictionary_bytes=_tuned(props, _DICTIONARY_BYTES)[0],
            encodings=encodings,
            utc_times=props.get(UTC_TIMES, "") == "true",
        )


@dataclass(frozen=True, slots=True)
class _Size:
    """A property that tunes a file. Below the minimum, files become slow to read: thousands of tiny row groups or pages."""

    name: str
    default: int
    floor: int


_ROW_GROUP = _Size("row-group-size-bytes", 128 * _MIB, _MIB)
_PAGE_BYTES = _Size("page-size-bytes", _MIB, 4 << 10)
_PAGE_ROWS = _Size("page-row-limit", 20_000, 100)
_DICTIONARY_BYTES = _Size("dict-size-bytes", 2 * _MIB, 1 << 10)


def row_group_bytes(props: Mapping[str, str]) -> int:
    """The table's row-group size."""
    return _tuned(props, _ROW_GROUP)[0]


def odd_properties(props: Mapping[str, str]) -> list[str]:
    """Properties that are not followed exactly, and the value used instead. None of them is a reason to stop a rewrite."""
    sizes = (_ROW_GROUP, _PAGE_BYTES, _PAGE_ROWS, _DICTIONARY_BYTES)
    warnings = [_tuned_level(props)[1], *(_tuned(props, size)[1] for size in sizes)]
    return [warning for warning in warnings if warning]


def _tuned(props: Mapping[str, str], size: _Size) -> tuple[int, str]:
    """The value used, and a warning if it differs from the property."""
    key = _PREFIX + size.name
    try:
        number = whole_number(props, key)
    except OddProperty as odd:
        return size.default, f"{odd}; {size.default:,} is used"
    if number is None:
        return size.default, ""
    if number < size.floor:
        return size.floor, f"{key} is {props[key]!r}; {size.floor:,} is used, the least"
    return number, ""


def _tuned_level(props: Mapping[str, str]) -> tuple[int | None, str]:
    """The compression level, None if the codec's own default is used; and the warning."""
    codec, key = _codec(props), _PREFIX + "compression-level"
    if codec not in _DEFAULT_LEVELS:
        return None, ""  # the codec has no levels
    least, most = pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec)
    try:
        return whole_number(props, key, least, most), ""
    except OddProperty as odd:
        return None, f"{odd}; the default of {codec} is used"


def _codec(props: Mapping[str, str]) -> str:
    return props.get(_PREFIX + "compression-codec", "zstd").lower()


def unfit_properties(props: Mapping[str, str]) -> str | None:
    """Why a table with these properties needs Iceberg's own rewrite, or None."""
    if props.get("write.format.default", "parquet").lower() != "parquet":
        return f"write.format.default is {props['write.format.default']}"
    if props.get("encryption.key-id"):
        return "the table is encrypted"
    if _codec(props) not in _CODECS:
        # Hadoop's framing of LZ4 is not the one Arrow writes, and readers cannot distinguish them reliably.
        return f"compression codec {_codec(props)} cannot be written"
    for key, value in props.items():
        if key.startswith(_PREFIX + "bloom-filter-enabled.column.") and value.lower() == "true":
            return f"{key} asks for a bloom filter"
    return None


@dataclass(frozen=True, slots=True)
class Chunks:
    """What the sampled footers show about one column, added up; `shared` comes from all of them."""

    rows: int = 0
    values: int = 0
    compressed: int = 0
    uncompressed: int = 0
    dictionary_bytes: int = 0
    kept: int = 0
    chunks: int = 0
    shared: frozenset[str] = frozenset()  # newer encodings that every chunk uses

    def plus(self, chunk: Any, rows: int) -> Chunks:
        dictionary = _dictionary_bytes(chunk)
        return Chunks(
            self.rows + rows,
            self.values + chunk.num_values,
            self.compressed + chunk.total_compressed_size,
            self.uncompressed + chunk.total_uncompressed_size,
            self.dictionary_bytes + dictionary,
            self.kept + (chunk.num_values if _kept_dictionary(chunk, dictionary) else 0),
            self.chunks + 1,
        )

    def suits_dictionary(self, limit: int) -> bool:
        """Whether the writers kept their dictionaries, and these fit one dictionary together or repeat enough."""
        if not self.values or self.kept < _MOST * self.values:
            return False
        return self.dictionary_bytes <= limit // 2 or self.dictionary_bytes * 4 <= self.compressed

    @property
    def too_small_to_tell(self) -> bool:
        """Whether the files are too small to decide: a file of a few rows drops a dictionary that a million rows would need."""
        return self.values < self.chunks * _TELLING_VALUES

    def arrow_row_bytes(self, kind: pa.DataType) -> float:
        """The approximate memory of a decoded row of this column."""
        per_value = _fixed_bytes(kind)
        if per_value is None:
            per_value = 4 + self.uncompressed / max(1, self.values)
        return per_value * self.values / max(1, self.rows)


def _fixed_bytes(kind: pa.DataType) -> float | None:
    try:
        return float(kind.bit_width) / 8 + 0.125
    except ValueError:
        return None


def _dictionary_bytes(chunk: Any) -> int:
    if not chunk.has_dictionary_page or chunk.dictionary_page_offset is None:
        return 0
    return max(0, int(chunk.data_page_offset) - int(chunk.dictionary_page_offset))


def _kept_dictionary(chunk: Any, dictionary: int) -> bool:
    if not chunk.has_dictionary_page:
        return False
    if "PLAIN_DICTIONARY" in chunk.encodings:
        # Parquet's Java writer: a plain data page shows as PLAIN only after a fallback.
        return "PLAIN" not in chunk.encodings
    # Other writers list PLAIN for the dictionary page itself, so only the sizes show a fallback.
    most = _INDEX_BYTES * chunk.num_values
    data = chunk.total_compressed_size - dictionary
    return bool(data <= most and chunk.total_uncompressed_size <= most + 2 * _MIB)


def survey(footers: Iterable[tuple[pq.FileMetaData, list[Leaf]]]) -> dict[int, Chunks]:
    """What the footers show, by field id."""
    groups = [(footer, n, found) for footer, found in footers for n in range(footer.num_row_groups)]
    seen: dict[int, Chunks] = {}
    for footer, n, found in groups[:: max(1, len(groups) // _SAMPLE)]:
        group = footer.row_group(n)
        for leaf in found:
            if leaf.id is not None:
                seen[leaf.id] = seen.get(leaf.id, Chunks()).plus(group.column(leaf.index), group.num_rows)
    shared = _shared(groups)
    return {each: replace(chunks, shared=shared[each]) for each, chunks in seen.items()}


def _shared(groups: Iterable[tuple[pq.FileMetaData, int, list[Leaf]]]) -> dict[int, frozenset[str]]:
    """The newer encodings that every chunk of a column has. A column without any is not examined further."""
    shared: dict[int, frozenset[str]] = {}
    for footer, n, found in groups:
        asked = [
            (leaf.id, leaf.index) for leaf in found if leaf.id is not None and shared.get(leaf.id, _NEWER)
        ]
        if asked:
            group = footer.row_group(n)
            for id_, place in asked:
                shared[id_] = shared.get(id_, _NEWER).intersection(group.column(place).encodings)
    return shared


@dataclass(frozen=True, slots=True)
class Encodings:
    """The choice for each output column, by Parquet path."""

    dictionary: tuple[str, ...]
    special: Mapping[str, str]
    # Ids of top-level strings that are read as dictionaries and written back without decoding.
    carried: frozenset[int]
    # Columns whose sources are too small to decide; settled when the first rows are in memory.
    open_questions: tuple[str, ...] = ()
    # Compression levels, if they differ by column.
    levels: Mapping[str, int] | None = None


def choose(output: list[Leaf], seen: Mapping[int, Chunks], options: WriteOptions) -> Encodings:
    """Encodings for the output's columns."""
    kept = [leaf for leaf in output if _suits(leaf, seen, options)]
    paths = {leaf.path for leaf in kept}
    special = {
        leaf.path: name
        for leaf in output
        if leaf.path not in paths and (name := _special(leaf.field.type)) and takes(name, leaf, seen, options)
    }
    carried = frozenset(leaf.id for leaf in kept if leaf.id is not None and _carries(leaf))
    questions = tuple(leaf.path for leaf in output if leaf.path not in paths and _is_open(leaf, seen))
    return Encodings(tuple(sorted(paths)), special, carried, questions, _levels(output, paths, options))


def takes(name: str, leaf: Leaf, seen: Mapping[int, Chunks], options: WriteOptions) -> bool:
    """Whether a column may use one of the newer encodings."""
    if options.encodings == "auto":
        chunks = None if leaf.id is None else seen.get(leaf.id)
        return chunks is not None and name in chunks.shared
    return options.encodings == "modern"


def _levels(output: list[Leaf], dictionary: set[str], options: WriteOptions) -> dict[str, int] | None:
    """Compression levels by column. Floats without a dictionary gain nothing from zstd 3 over 1, and cause most
    of its cost; integers and timestamps do gain (45 % of a column of regular times), and strings.

    Only if the table names no level: a named level applies to every column.
    """
    if options.codec != "zstd" or options.level is not None:
        return None
    light = {leaf.path for leaf in output if leaf.path not in dictionary and pt.is_floating(leaf.field.type)}
    return {leaf.path: 1 if leaf.path in light else _DEFAULT_LEVELS["zstd"] for leaf in output}


def settle(encodings: Encodings, rows: pa.Table) -> Encodings:
    """Settle the open questions from the first rows: a dictionary pays if values occur twice or more."""
    repeating = {path for path in encodings.open_questions if _repeats(rows.column(path).slice(0, _COUNTED))}
    special = {path: name for path, name in encodings.special.items() if path not in repeating}
    dictionary = {*encodings.dictionary, *repeating}
    return replace(
        encodings,
        dictionary=tuple(sorted(dictionary)),
        special=special,
        open_questions=(),
        levels=_measured_levels(encodings.levels, dictionary | special.keys(), rows),
    )


def _measured_levels(
    levels: Mapping[str, int] | None, settled: set[str], rows: pa.Table
) -> Mapping[str, int] | None:
    """Level 1 for columns where the first rows show that level 3 would gain almost nothing.

    For plain columns zstd is half the cost of writing; on values in no order both levels give about the same
    size (measured on 4 M z-ordered rows: 13 % of all CPU for 3 % of size if used everywhere, so only columns
    that lose under 2 % use it).
    """
    if levels is None:
        return None
    plain = [path for path in levels if path not in settled and path in rows.column_names]
    light = {path: 1 for path in plain if levels[path] > 1 and _gains_nothing(rows.column(path))}
    return {**levels, **light}


def _gains_nothing(column: pa.ChunkedArray) -> bool:
    data = _plain_bytes(column)
    if data is None or not data.size:
        return False
    sizes = [pa.Codec("zstd", compression_level=level).compress(data).size for level in (1, 3)]
    return bool(sizes[0] <= 1.02 * sizes[1])


def _plain_bytes(column: pa.ChunkedArray) -> pa.Buffer | None:
    """The values of the first rows approximately as PLAIN pages hold them: a fixed width, or the characters of strings."""
    kind, chunk = column.type, column.chunk(0).slice(0, _TRIED)
    if pt.is_string(kind) or pt.is_binary(kind):
        offsets = chunk.buffers()[1]
        first, last = (
            int.from_bytes(offsets[at * 4 : at * 4 + 4].to_pybytes(), "little")
            for at in (chunk.offset, chunk.offset + len(chunk))
        )
        return chunk.buffers()[2].slice(first, last - first) if last > first else None
    if pt.is_primitive(kind) and kind.bit_width >= 32:
        width = kind.bit_width // 8
        return chunk.buffers()[1].slice(chunk.offset * width, len(chunk) * width)
    return None


def _repeats(column: pa.ChunkedArray) -> bool:
    present = len(column) - column.null_count
    return bool(2 * pc.count_distinct(column).as_py() <= present)


def _is_open(leaf: Leaf, seen: Mapping[int, Chunks]) -> bool:
    chunks = None if leaf.id is None else seen.get(leaf.id)
    return chunks is not None and chunks.too_small_to_tell and _is_countable(leaf)


def _is_countable(leaf: Leaf) -> bool:
    return _is_top(leaf) and (_carries(leaf) or _special(leaf.field.type) is not None)


def _is_top(leaf: Leaf) -> bool:
    return bool(leaf.path == leaf.field.name)


def _suits(leaf: Leaf, seen: Mapping[int, Chunks], options: WriteOptions) -> bool:
    chunks = None if leaf.id is None else seen.get(leaf.id)
    return chunks is not None and chunks.suits_dictionary(options.dictionary_bytes)


def _carries(leaf: Leaf) -> bool:
    return _is_top(leaf) and bool(pt.is_string(leaf.field.type) or pt.is_binary(leaf.field.type))


def _special(kind: pa.DataType) -> str | None:
    if pt.is_floating(kind):
        return "BYTE_STREAM_SPLIT"
    if pt.is_integer(kind) or pt.is_date32(kind) or pt.is_time64(kind) or pt.is_timestamp(kind):
        return "DELTA_BINARY_PACKED"
    # Decimals of up to 18 digits are written as integers.
    return "DELTA_BINARY_PACKED" if pt.is_decimal128(kind) and kind.precision <= 18 else None


def _level(options: WriteOptions) -> int | None:
    """The compression level, or None where the codec has none."""
    default = _DEFAULT_LEVELS.get(options.codec)
    return default if default is None or options.level is None else options.level


def writer_settings(encodings: Encodings, options: WriteOptions) -> dict[str, Any]:
    """The keyword arguments of pyarrow's ParquetWriter."""
    return {
        "compression": _CODECS[options.codec],
        "compression_level": dict(encodings.levels) if encodings.levels else _level(options),
        "use_dictionary": list(encodings.dictionary) or False,
        "column_encoding": dict(encodings.special) or None,
        "data_page_size": options.page_bytes,
        "max_rows_per_page": options.page_rows,
        "dictionary_pagesize_limit": options.dictionary_bytes,
        # Values passed to a page at a time: 1024 by default; 16384 takes 7 % off the write.
        "write_batch_size": min(16_384, max(64, options.page_rows)),
        # Iceberg stores small decimals as integers, and its metrics come from the footer's statistics.
        "store_decimal_as_integer": True,
        "write_statistics": True,
        # So that damage is found later, and the next rewrite may copy pages without decoding them.
        "write_page_checksum": True,
        # Arrow's own schema would make other readers see dictionaries; Iceberg's files do not have it.
        "store_schema": False,
        "write_time_adjusted_to_utc": options.utc_times,
    }


_NUMBER = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)


class OddProperty(ValueError):
    """A property that is not a valid number."""

    def __init__(self, key: str, text: str, least: int, most: int) -> None:
        super().__init__(key, text, least, most)
        self.key, self.text = key, text
        self.allowed = f"a whole number between {least:,} and {most:,}"

    def __str__(self) -> str:
        return f"{self.key} must be {self.allowed}; got {self.text!r}"


def whole_number(properties: Mapping[str, str], key: str, least: int = 1, most: int = INT) -> int | None:
    """The number in a property, None if it is not set. Raises OddProperty if it is invalid."""
    text = properties.get(key)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        raise OddProperty(key, text, least, most)
    return int(text)
