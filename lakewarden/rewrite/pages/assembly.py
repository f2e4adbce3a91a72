"""Assembles a Parquet file from copied or encoded column chunks, and reads it back before it may be used.

Arrow writes an empty file with the output's schema first: its footer, filled in, becomes the output's. So
types, ids and orders are Arrow's, and a reader cannot see how the rows were written.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.model.location import is_local
from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.pages.chunks import (
    Column,
    MergedChunk,
    PagesDiffer,
    SourceChunk,
    dictionary_statistics,
)
from lakewarden.rewrite.pages.thrift import Struct
from lakewarden.rewrite.read.project import field_id, leaves
from lakewarden.rewrite.read.store import MissingSource
from lakewarden.rewrite.task import Reading, RewriteTask, WrittenFile
from lakewarden.rewrite.write.encoding import Encodings, writer_settings
from lakewarden.rewrite.write.footer_fixups import amended, int96_paths
from lakewarden.rewrite.write.output import nan_counts, remove_partial, split_offsets

_MAGIC = b"PAR1"
# Bytes read back at a time: from a local disk as many as stay in the processor's cache.
_BLOCK = 8 << 20
_LOCAL_BLOCK = 256 << 10
# ColumnChunk: indexes that are not copied. ColumnMetaData: index page and bloom filter.
_INDEXES = frozenset((4, 5, 6, 7))
_ASIDE = frozenset((10, 14, 15))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A column chunk that Arrow has encoded: its footer entry and its bytes."""

    entry: Struct
    data: memoryview

    def at(self, start: int) -> Struct:
        """The entry, for bytes that have moved to `start`."""
        metadata: Struct = thrift.value_of(self.entry, 3)
        moved = start - _start(metadata)
        metadata = {number: typed for number, typed in metadata.items() if number not in _ASIDE}
        for number in (9, 11):
            if number in metadata:
                metadata[number] = thrift.i64(thrift.value_of(metadata, number) + moved)
        kept = {number: typed for number, typed in self.entry.items() if number not in _INDEXES}
        return kept | {3: thrift.structure(metadata)}


def _start(metadata: Struct) -> int:
    data, dictionary = thrift.value_of(metadata, 9), thrift.value_of(metadata, 11)
    return int(data if dictionary is None else min(data, dictionary))


def arrow_file(
    schema: pa.Schema,
    encodings: Encodings,
    task: RewriteTask,
    rows: pa.Table | None = None,
    hand_over: Callable[[pa.Table], None] | None = None,
) -> pa.Buffer:
    """A file in memory as the task would write it, with one row group or none. `hand_over` receives the rows
    before encoding.
    """
    sink = pa.BufferOutputStream()
    settings = writer_settings(encodings, task.options)
    if rows is not None:
        settings["write_statistics"] = _with_statistics(schema, task, rows)
    with pq.ParquetWriter(sink, schema, **settings) as writer:
        if task.iceberg_schema_json:
            writer.add_key_value_metadata({"iceberg.schema": task.iceberg_schema_json})
        if rows is not None:
            if hand_over is not None:
                hand_over(rows)
            writer.write_table(rows, row_group_size=rows.num_rows)
    return sink.getvalue()


def _with_statistics(schema: pa.Schema, task: RewriteTask, rows: pa.Table) -> list[str]:
    """Columns whose bounds Arrow states. For dictionary columns `encoded_chunks` does that faster."""
    without = {field_id(field) for field in schema if pa.types.is_dictionary(field.type)}
    if task.nan_in_bounds:
        # Bounds would ignore NaN: a column with NaN states none.
        without |= {id_ for id_, count in nan_counts(rows.schema, rows.columns) if count}
    return [leaf.path for leaf in leaves(schema) if leaf.id is None or leaf.id not in without]


def octets(buffer: pa.Buffer) -> memoryview:
    """The buffer's bytes as unsigned numbers; Arrow exposes signed ones."""
    return memoryview(buffer).cast("B")


def footer_of(file: pa.Buffer) -> Struct:
    view = octets(file)
    size = int.from_bytes(view[-8:-4], "little")
    return thrift.read(view[-8 - size : -8])[0]


def encoded_chunks(file: pa.Buffer, rows: pa.Table) -> Iterator[Encoded]:
    """The column chunks of a file with one row group, which holds these rows."""
    view = octets(file)
    (group,) = thrift.value_of(footer_of(file), 4)
    for leaf, entry in zip(leaves(rows.schema), thrift.value_of(group, 1), strict=True):
        metadata = thrift.value_of(entry, 3)
        start = _start(metadata)
        if pa.types.is_dictionary(leaf.field.type):
            metadata[12] = thrift.structure(dictionary_statistics(rows.column(leaf.path)))
        yield Encoded(entry, view[start : start + thrift.value_of(metadata, 7)])


def column_names(footer: Struct) -> Iterator[tuple[bytes, ...]]:
    """The names of each leaf column, from the top level down."""
    elements = iter(thrift.value_of(footer, 2))

    def walk(above: tuple[bytes, ...], count: int) -> Iterator[tuple[bytes, ...]]:
        for _ in range(count):
            element = next(elements)
            names = (*above, thrift.value_of(element, 4))
            children = thrift.value_of(element, 5, 0)
            if children:
                yield from walk(names, children)
            else:
                yield names

    return walk((), thrift.value_of(next(elements), 5, 0))


@dataclass(frozen=True, slots=True)
class _Written:
    """The next part of the file, and the checksum of the bytes sent to the store for it."""

    column: str
    size: int
    checksum: int


class Assembly:
    """The file being assembled. Leaving the block without `finish` removes it."""

    def __init__(self, reading: Reading, path: str, template: Struct) -> None:
        self._reading = reading
        self._path = path
        self._template = template
        self._sink: pa.NativeFile | None = None
        self._at = 0
        self._written: list[_Written] = []
        self._groups: list[Struct] = []
        self._entries: list[Struct] = []
        self._finished = False

    def __enter__(self) -> Assembly:
        return self

    def copy(self, column: Column, parts: Iterable[SourceChunk]) -> None:
        """Add the next column chunk of the row group, from chunks of the sources."""
        merged = MergedChunk(column)
        start = self._begin()
        for part in parts:
            for page in merged.add(part):
                self._store(column.path, page.header)
                self._write(page.body)
                self._written.append(_Written(column.path, len(page.body), page.checksum))
        self._entries.append(merged.entry(start, self._at - start))

    def place(self, column: str, chunk: Encoded) -> None:
        """Add the next column chunk of the row group, as Arrow encoded it."""
        start = self._begin()
        self._store(column, chunk.data)
        self._entries.append(chunk.at(start))

    def end_group(self, rows: int) -> None:
        columns = [thrift.value_of(entry, 3) for entry in self._entries]
        group: Struct = {
            1: thrift.listed(thrift.STRUCT, self._entries),
            2: thrift.i64(sum(thrift.value_of(column, 6) for column in columns)),
            3: thrift.i64(rows),
            5: thrift.i64(_start(columns[0])),
            6: thrift.i64(sum(thrift.value_of(column, 7) for column in columns)),
            7: thrift.i16(len(self._groups)),
        }
        self._reading.throttle.wrote(thrift.value_of(group, 6))
        self._groups.append(group)
        self._entries = []

    def finish(self) -> WrittenFile:
        """Write the footer, close, read all of it back, and describe it."""
        if self._sink is None:
            raise ValueError(f"finish {self._path}: it was never started")
        footer = thrift.write(self._footer())
        self._store("", footer + len(footer).to_bytes(4, "little") + _MAGIC)
        self._sink.close()
        read = self._read_back()
        self._finished = True
        return WrittenFile(self._path, self._at, read.num_rows, split_offsets(read))

    def _footer(self) -> Struct:
        rows = sum(thrift.value_of(group, 3) for group in self._groups)
        # Readers know writers by name and work around their old bugs. Arrow has none that need this, and no
        # page is copied that does. The addition tells people how the file was made.
        maker = thrift.value_of(self._template, 6) + b" (build lakewarden-pages)"
        footer = self._template | {
            3: thrift.i64(rows),
            4: thrift.listed(thrift.STRUCT, self._groups),
            6: thrift.binary(maker),
        }
        int96 = int96_paths(leaves(self._reading.schema))
        return amended(footer, int96, ()) if int96 else footer

    def _write(self, data: bytes | memoryview) -> None:
        if self._sink is None:
            self._sink = self._reading.store.create(self._path)
        self._sink.write(data)
        self._at += len(data)

    def _store(self, column: str, data: bytes | memoryview) -> None:
        self._write(data)
        self._written.append(_Written(column, len(data), zlib.crc32(data)))

    def _begin(self) -> int:
        if not self._at:
            self._store("", _MAGIC)
        return self._at

    def _read_back(self) -> pq.FileMetaData:
        """Verify the stored file. Returns its footer."""
        try:
            with self._reading.store.open(self._path) as stored:
                self._check(stored)
                footer = pq.ParquetFile(stored).metadata
        except (MissingSource, OSError, pa.ArrowException) as error:
            raise PagesDiffer(self._path, "", f"cannot be read back: {error}") from error
        self._check_rows(footer)
        return footer

    def _check(self, stored: pa.NativeFile) -> None:
        """Compare the stored bytes with their checksums: nothing is decoded, so no decoder would notice a page
        that was stored wrongly.
        """
        if stored.size() != self._at:
            raise PagesDiffer(self._path, "", f"wrote {self._at} bytes, {stored.size()} are stored")
        buffer = memoryview(bytearray(_LOCAL_BLOCK if is_local(self._path) else _BLOCK))
        block = buffer[:0]
        for written in self._written:
            left, checksum = written.size, 0
            while left:
                if not block:
                    block = buffer[: stored.readinto(buffer)]
                    self._reading.throttle.read(len(block))
                    if not block:
                        break
                part, block = block[:left], block[left:]
                checksum = zlib.crc32(part, checksum)
                left -= len(part)
            if left or checksum != written.checksum:
                raise PagesDiffer(self._path, written.column, "the stored bytes differ from the written ones")

    def _check_rows(self, footer: pq.FileMetaData) -> None:
        expected = [thrift.value_of(group, 3) for group in self._groups]
        actual = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        if expected != actual or footer.num_rows != sum(expected):
            raise ValueError(
                f"rewrite {self._path}: wrote row groups of {expected} rows, its footer says {actual}"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished:
            return
        # As with any output: closing may fail again, but the file must still be removed.
        with contextlib.suppress(Exception):
            if self._sink is not None:
                self._sink.close()
        remove_partial(self._reading, self._path, error)
