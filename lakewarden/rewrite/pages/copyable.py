"""Decides from footers, before any byte is moved, which columns of an output can be copied page by page.

A column is copied if every source of a row group stores it as the output would: the same Parquet type and
levels, so that bytes mean the same; the same codec; encodings that the table's options would choose; no
dictionary, because each chunk has its own. A nested column is copied with all its leaves or not at all. Lists
and maps are not copied, because only their levels say how many rows they have. Columns are matched by id, not
by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.pages.assembly import arrow_file, column_names, footer_of
from lakewarden.rewrite.pages.chunks import ENCODINGS, Column, Doubtful, checksum_of, loses_bounds
from lakewarden.rewrite.pages.thrift import Struct
from lakewarden.rewrite.read.project import Leaf, Projection, children, field_id, is_list, leaves
from lakewarden.rewrite.read.sources import OpenSlice
from lakewarden.rewrite.read.store import MissingSource
from lakewarden.rewrite.task import Reading
from lakewarden.rewrite.write.encoding import Encodings, WriteOptions, takes

# Chunks smaller than both on average are encoded again: a file of thousands of tiny pages is slow to read.
_LEAST_BYTES = 32 << 10
_LEAST_VALUES = 5_000

# Writers whose pages and statistics are trusted, and from which version on. The output's bounds for copied
# columns come from the sources' footers, and a reader that trusts a wrong bound misses rows. So other writers'
# columns are decoded, and their bounds computed again. Readers also work around bugs of old writers, which they
# know by name. Java's wrote delta strings and statistics wrongly before 1.10; Arrow's marked pages of version 2
# wrongly before 5.
_LEAST_VERSIONS = {"parquet-mr": (1, 10), "parquet-java": (1, 15), "parquet-cpp-arrow": (5, 0)}

# Enough bytes of a page for its header; if not, reading the page shows it later.
_PROBED = 4096

_OF_LEVELS = {"RLE", "BIT_PACKED"}
_OF_STRINGS = {"DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"}


def tiny(size: int, values: int, chunks: int) -> bool:
    """Whether this many chunks are too small to be pages of a large file."""
    return size < _LEAST_BYTES * chunks and values < _LEAST_VALUES * chunks


def codec(options: WriteOptions) -> str:
    """The codec as footers name it. LZ4 has two framings under one name, so it is never copied."""
    return options.codec.upper()


def largest_chunk(budget: int) -> int:
    """The largest chunk to copy. Chunks are in memory while they are copied: several at once if their sum fits
    this limit.
    """
    return budget // 4


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group of a source. `places` gives, for leaf columns of the output, the file's column that is stored
    the same way.
    """

    source: OpenSlice
    group: pq.RowGroupMetaData
    places: Mapping[int, int]

    @property
    def path(self) -> str:
        return self.source.slice.path

    @property
    def rows(self) -> int:
        return int(self.group.num_rows)

    def chunk(self, number: int) -> pq.ColumnChunkMetaData:
        """The chunk of the output's leaf column `number`."""
        return self.group.column(self.places[number])


@dataclass(frozen=True, slots=True)
class Layout:
    """The output: its leaf columns, how the decoded ones are encoded, and its footer except for the rows."""

    reading: Reading
    encodings: Encodings
    template: Struct
    leaves: list[Leaf]
    columns: list[Column]

    @classmethod
    def of(cls, reading: Reading, encodings: Encodings) -> Layout:
        empty = arrow_file(reading.schema, encodings, reading.task)
        footer = footer_of(empty)
        kinds = pq.read_metadata(pa.BufferReader(empty)).schema
        parquet_columns = leaves(reading.schema)
        columns = [
            Column(names, kind, _allowed(leaf, kind, encodings, reading))
            for leaf, kind, names in zip(parquet_columns, kinds, column_names(footer), strict=True)
        ]
        return cls(reading, encodings, footer, parquet_columns, columns)

    def pieces(self) -> Iterator[Piece]:
        """Every row group of every source, in order."""
        answers = _Answers(self)
        for source in self.reading.sources:
            places = answers.places(source)
            for first, rows, number in source.row_groups():
                piece = replace(source.slice, from_row=first, to_row=first + rows)
                yield Piece(replace(source, slice=piece), source.footer.row_group(number), places)

    def copied(self, pieces: list[Piece]) -> frozenset[int]:
        """The top-level columns whose pages are copied, for a row group of these pieces."""
        count = len(self.reading.schema)
        # Row lineage comes last, and is computed where a file does not state it.
        tops = set(range(count - 2 if self.reading.task.row_lineage else count))
        return frozenset(tops - {leaf.top for leaf in self.leaves if not self._copies(leaf.index, pieces)})

    def _copies(self, number: int, pieces: list[Piece]) -> bool:
        if not self.columns[number].allowed or any(number not in piece.places for piece in pieces):
            return False
        chunks = [piece.chunk(number) for piece in pieces]
        size = sum(chunk.total_compressed_size for chunk in chunks)
        values = sum(chunk.num_values for chunk in chunks)
        return (
            not tiny(size, values, len(chunks))
            and all(self._copies_chunk(chunk, self.columns[number]) for chunk in chunks)
            and not loses_bounds(chunks, self.columns[number])
        )

    def _copies_chunk(self, chunk: pq.ColumnChunkMetaData, column: Column) -> bool:
        task = self.reading.task
        encodings = {ENCODINGS.get(name, -1) for name in chunk.encodings if name not in _OF_LEVELS}
        return (
            encodings <= column.allowed
            and chunk.compression == codec(task.options)
            and not chunk.has_dictionary_page
            and not chunk.file_path
            and chunk.total_compressed_size <= largest_chunk(task.memory_budget)
        )


class _Answers:
    """Where each file has the output's columns. Files of one Arrow schema may still store it differently in Parquet."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._known: list[tuple[Projection, Any, dict[int, int]]] = []
        self._checked: dict[str, bool] = {}

    def places(self, source: OpenSlice) -> dict[int, int]:
        if not trusted(source.footer.created_by) or not self._has_checksums(source):
            return {}
        schema = source.footer.schema
        for way, known, places in self._known:
            if way is source.way and known.equals(schema):
                return places
        places = dict(self._find(source.way, schema))
        self._known.append((source.way, schema, places))
        return places

    def _has_checksums(self, source: OpenSlice) -> bool:
        """Whether the first page has a checksum. A writer adds checksums to all pages or to none, so one page of
        its first file is enough to know.
        """
        maker = source.footer.created_by
        if maker not in self._checked and source.footer.num_row_groups:
            self._checked[maker] = _first_page_has_checksum(source, self._layout.reading)
        return self._checked.get(maker, True)

    def _find(self, way: Projection, schema: Any) -> Iterator[tuple[int, int]]:
        output = self._layout.reading.schema
        for top, place in enumerate(way.origin):
            if place is None or not _alike(way.source.field(place), output.field(top)):
                continue
            ours = [leaf.index for leaf in self._layout.leaves if leaf.top == top]
            theirs = [leaf.index for leaf in way.leaves if leaf.top == place]
            pairs = list(zip(ours, theirs, strict=True))
            if all(_stored_alike(self._layout.columns[a].kind, schema.column(b)) for a, b in pairs):
                yield from pairs


def _first_page_has_checksum(source: OpenSlice, reading: Reading) -> bool:
    chunk = source.footer.row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    kept = source.handle
    try:
        reading.throttle.read(_PROBED)
        if kept is not None and not kept.closed:
            return _has_checksum(kept.read_at(_PROBED, start))
        with reading.store.open(source.slice.path) as handle:
            return _has_checksum(handle.read_at(_PROBED, start))
    except OSError as error:
        raise MissingSource(source.slice.path, str(error)) from error


def _has_checksum(data: bytes) -> bool:
    try:
        return checksum_of(thrift.read(data)[0]) is not None
    except thrift.Malformed:
        return True  # damaged, or longer than that: reading the page will show it


def check_paths(sources: list[OpenSlice]) -> None:
    """Check that paths are unambiguous: decoded columns are read by path, and Arrow reads everything below a path as well."""
    checked: Any = None
    for source in sources:
        if checked is not None and checked.equals(source.footer.schema):
            continue
        checked = source.footer.schema
        paths = [column.path for column in checked]
        above = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "."}
        if paths != [leaf.path for leaf in source.way.leaves]:
            raise Doubtful("a file has names of its own for the levels of nested columns")
        if len(set(paths)) < len(paths) or above & set(paths):
            raise Doubtful("columns of a file differ only by dots in their names")


def strict(reading: Reading) -> pa.Schema:
    """The output's schema, required where every source says so: pages of a required column have no level for
    nulls.

    Spark's writer calls a column required if its query cannot return nulls, whatever the table says, and
    Iceberg accepts such files. Without this, many files of an optional column could not be copied.
    """
    ways = {id(source.way): source.way for source in reading.sources}.values()
    fields = list(reading.schema)
    count = len(fields) - 2 if reading.task.row_lineage else len(fields)
    for top in range(count):
        origins = [(way, way.origin[top]) for way in ways]
        if all(place is not None and not way.source.field(place).nullable for way, place in origins):
            fields[top] = fields[top].with_nullable(False)
    return pa.schema(fields)


def _allowed(leaf: Leaf, kind: Any, encodings: Encodings, reading: Reading) -> frozenset[int]:
    """Encodings a data page may have: the one the output's writer would choose, or an equally good one. None
    beside a dictionary.

    None for a column that repeats within a row: pages with one row too many would shift the rows of the
    following files, and only decoding the levels shows that.
    """
    names = {encodings.special.get(leaf.path, "PLAIN")}
    if kind.max_repetition_level or leaf.path in encodings.dictionary:
        names = set()
    elif kind.physical_type == "BOOLEAN":
        names.add("RLE")
    elif kind.physical_type == "BYTE_ARRAY":
        names |= {name for name in _OF_STRINGS if takes(name, leaf, reading.seen, reading.task.options)}
    return frozenset(ENCODINGS[name] for name in names)


def _alike(source: pa.Field, target: pa.Field) -> bool:
    """Whether both have the same levels from here down, and the same ids."""
    below = list(zip(children(source.type), children(target.type), strict=False))
    return (
        source.nullable == target.nullable
        and field_id(source) == field_id(target)
        and is_list(source.type) == is_list(target.type)
        and pt.is_map(source.type) == pt.is_map(target.type)
        and len(children(source.type)) == len(children(target.type))
        and all(_alike(*pair) for pair in below)
    )


def _stored_alike(one: Any, other: Any) -> bool:
    """Whether Parquet stores values of both columns in the same way, with the same meaning."""
    same = ("physical_type", "length", "max_definition_level", "max_repetition_level")
    return all(getattr(one, name) == getattr(other, name) for name in same) and str(one.logical_type) == str(
        other.logical_type
    )


def trusted(created_by: str | None) -> bool:
    """Whether this writer's pages mean the same under another writer's name, and its statistics may become the
    table's bounds.
    """
    writer, _, version = (created_by or "").partition(" version ")
    least = _LEAST_VERSIONS.get(writer)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return least is not None and numbers is not None and (int(numbers[1]), int(numbers[2])) >= least
