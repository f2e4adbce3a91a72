"""The bin-pack kernel: many source files in, one Parquet file out, every row as it was.

Told in order: read every footer once; find the way from each file's schema to the table's; choose encodings; stream the
rows through, cutting row groups by size and by memory; check the counts; close. Whatever fails on the way, the partial
output is removed, so a file under the output's name is a whole one.

Arrow's Python writer makes a row group of each table it is handed, so a row group is gathered in memory first: rows are
held as Arrow data up to the budget, then written. Strings the sources hold as dictionaries stay dictionaries throughout.
"""

from __future__ import annotations

import contextlib
import math
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewarden.engine.kernels.encoding import (
    Chunks,
    Encodings,
    WriteOptions,
    choose,
    settle,
    survey,
    unfit_properties,
    writer_settings,
)
from lakewarden.engine.kernels.project import (
    Projection,
    Unfit,
    defaulted_ids,
    field_id,
    leaves,
    output_schema,
    projection,
    unfit_schema,
)
from lakewarden.engine.kernels.storage import MissingSource, Store, is_local

__all__ = [
    "MissingSource",
    "RewriteTask",
    "Rewritten",
    "RowsDiffer",
    "Slice",
    "Unfit",
    "WriteOptions",
    "rewrite",
    "unfit_properties",
    "unfit_schema",
]

_MIB = 1 << 20
# Rows decoded at a time. Larger batches decode no faster; smaller ones (8192) cost a tenth more.
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [from_row, to_row) of a source file."""

    path: str
    size: int
    rows: int
    from_row: int
    to_row: int
    data_sequence_number: int
    first_row_id: int | None

    @property
    def wanted(self) -> int:
        return self.to_row - self.from_row


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """All that one output file needs; travels to the task by pickle."""

    output: str
    slices: tuple[Slice, ...]
    schema: bytes
    iceberg_schema_json: str
    options: WriteOptions
    io: Mapping[str, str] = field(default_factory=dict, repr=False)
    row_lineage: bool = False
    partition_ids: frozenset[int] = frozenset()
    memory_budget: int = 512 * _MIB

    @property
    def rows(self) -> int:
        return sum(piece.wanted for piece in self.slices)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What came out. The peak is the process's, so in a reused worker it includes earlier tasks."""

    path: str
    size: int
    rows: int
    split_offsets: tuple[int, ...]
    bytes_read: int
    cpu_seconds: float
    peak_rss: int


class RowsDiffer(Exception):
    """A count that must be equal is not: the source is not what the table says, or rows were lost on the way."""

    def __init__(self, path: str, expected: int, found: int) -> None:
        super().__init__(path, expected, found)
        self.path, self.expected, self.found = path, expected, found

    def __str__(self) -> str:
        return f"rewrite {self.path}: expected {self.expected} rows, found {self.found}"


@dataclass(frozen=True, slots=True)
class Source:
    """A slice whose footer has been read."""

    slice: Slice
    footer: pq.FileMetaData
    way: Projection
    handle: pa.NativeFile | None


def rewrite(task: RewriteTask) -> Rewritten:
    """Write the task's slices, in order, into its output file."""
    started = time.process_time()
    # A Spark task owns one core; Arrow would otherwise start a thread for every core of the machine.
    pa.set_cpu_count(1)
    store = Store(task.io)
    target = output_schema(pa.ipc.read_schema(pa.py_buffer(task.schema)), task.row_lineage)
    sources = _open_sources(task, store, target)
    seen = survey((source.footer, source.way.leaves) for source in sources)
    encodings = choose(leaves(target), seen, task.options)
    schema = _with_dictionaries(target, encodings)
    row_bytes = _row_bytes(schema, seen)
    with Output(task, store, schema, encodings) as output:
        groups = RowGroups(output, _rows_per_group(task, sources, row_bytes), task.memory_budget)
        for batch in _batches(task, store, sources, schema, row_bytes):
            groups.add(batch)
        groups.flush()
        footer = output.finish()
    return Rewritten(
        path=task.output,
        size=output.size,
        rows=footer.num_rows,
        split_offsets=_split_offsets(footer),
        bytes_read=sum(_bytes_read(source) for source in sources),
        cpu_seconds=time.process_time() - started,
        peak_rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


# --- sources ------------------------------------------------------------------------------------------------


def _open_sources(task: RewriteTask, store: Store, target: pa.Schema) -> list[Source]:
    # A column a file lacks may be known from its partition alone, as in files imported from Hive: it is not null there.
    defaults = defaulted_ids(task.iceberg_schema_json) | task.partition_ids
    ways: list[Projection] = []
    return [_open_source(piece, store, target, defaults, ways) for piece in task.slices]


def _open_source(
    piece: Slice, store: Store, target: pa.Schema, defaults: frozenset[int], ways: list[Projection]
) -> Source:
    """Read a footer. An object store's handle is kept, which saves asking for its size again; a local one is closed."""
    handle = store.open(piece.path)
    footer = _footer(handle, piece.path)
    if footer.num_rows != piece.rows:
        raise RowsDiffer(piece.path, piece.rows, footer.num_rows)
    try:
        way = _way(footer, target, defaults, ways)
    except Unfit as unfit:
        raise Unfit(unfit.reason, piece.path) from unfit
    if is_local(piece.path):
        handle.close()
        return Source(piece, footer, way, None)
    return Source(piece, footer, way, handle)


def _footer(handle: pa.NativeFile, path: str) -> pq.FileMetaData:
    try:
        return pq.ParquetFile(handle).metadata
    except (OSError, pa.ArrowException) as error:
        if "encrypted" in str(error):
            raise Unfit("the file is encrypted", path) from error
        raise MissingSource(path, str(error)) from error


def _way(
    footer: pq.FileMetaData, target: pa.Schema, defaults: frozenset[int], ways: list[Projection]
) -> Projection:
    """The projection for this file; files of one schema share it."""
    source = footer.schema.to_arrow_schema().remove_metadata()
    for way in ways:
        if way.source.equals(source, check_metadata=True):
            return way
    way = projection(source, target, defaults)
    _check_columns(footer, way)
    ways.append(way)
    return way


def _check_columns(footer: pq.FileMetaData, way: Projection) -> None:
    if len(way.leaves) != footer.num_columns:
        raise Unfit(f"{footer.num_columns} Parquet columns decode to {len(way.leaves)}")
    for leaf in way.leaves:
        if footer.schema.column(leaf.index).physical_type == "INT96":
            raise Unfit(f"column {leaf.path} is an INT96 timestamp")


def _bytes_read(source: Source) -> int:
    rows = sum(rows for _, rows, _ in _overlapping(source))
    return source.slice.size * rows // max(1, source.slice.rows)


# --- rows ---------------------------------------------------------------------------------------------------


def _batches(
    task: RewriteTask, store: Store, sources: list[Source], schema: pa.Schema, row_bytes: float
) -> Iterator[pa.RecordBatch]:
    """Every row of every slice, in order, as the output has it."""
    for source in sources:
        rows = 0
        batch_rows = max(1, min(_BATCH_ROWS, int(task.memory_budget / 8 / row_bytes)))
        for position, batch in _source_batches(source, store, schema, batch_rows):
            rows += batch.num_rows
            # Footers tell little of strings that repeat; the rows themselves do, from the first file on.
            row_bytes = max(row_bytes, batch.nbytes / batch.num_rows)
            yield _output_batch(task, source, position, batch, schema)
        if rows != source.slice.wanted:
            raise RowsDiffer(source.slice.path, source.slice.wanted, rows)


def _source_batches(
    source: Source, store: Store, schema: pa.Schema, batch_rows: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of the slice's rows, each with the position of its first row in the file."""
    path = source.slice.path
    carried = {field_id(column) for column in schema if pa.types.is_dictionary(column.type)}
    as_dictionary = [leaf.index for leaf in source.way.leaves if leaf.id in carried]
    handle = source.handle or store.open(path)
    try:
        reader = pq.ParquetFile(
            handle,
            metadata=source.footer,
            read_dictionary=as_dictionary,
            # Merging ranges into few requests pays on an object store; on a local disk it only costs.
            pre_buffer=not is_local(path),
        )
        for first, _, group in _overlapping(source):
            position = first
            for batch in reader.iter_batches(batch_rows, [group], source.way.columns, use_threads=False):
                yield from _cut(batch, position, source.slice)
                position += batch.num_rows
    except pa.ArrowNotImplementedError as error:
        raise Unfit(str(error), path) from error
    except (OSError, pa.ArrowException) as error:
        raise MissingSource(path, str(error)) from error
    finally:
        handle.close()


def _overlapping(source: Source) -> Iterator[tuple[int, int, int]]:
    """The row groups a slice touches: position of the first row, rows, number."""
    first = 0
    for number in range(source.footer.num_row_groups):
        rows = source.footer.row_group(number).num_rows
        if rows and first < source.slice.to_row and first + rows > source.slice.from_row:
            yield first, rows, number
        first += rows


def _cut(batch: pa.RecordBatch, position: int, piece: Slice) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The part of a batch that lies inside the slice, if any."""
    start = max(position, piece.from_row)
    end = min(position + batch.num_rows, piece.to_row)
    if start < end:
        yield start, batch.slice(start - position, end - start)


def _output_batch(
    task: RewriteTask, source: Source, position: int, batch: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    try:
        columns = source.way.apply(batch, schema)
    except Unfit as unfit:
        raise Unfit(unfit.reason, source.slice.path) from unfit
    if task.row_lineage:
        columns[-2:] = _lineage(columns[-2], columns[-1], source.slice, position)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _lineage(row_id: pa.Array, updated: pa.Array, piece: Slice, position: int) -> list[pa.Array]:
    """A row keeps the id and sequence number its file states; where it states none, they follow from the file's own."""
    if row_id.null_count and piece.first_row_id is not None:
        first = piece.first_row_id + position
        row_id = pc.coalesce(row_id, pa.arange(first, first + len(row_id)))
    if updated.null_count:
        updated = updated.fill_null(piece.data_sequence_number)
    return [row_id, updated]


# --- row groups ---------------------------------------------------------------------------------------------


def _with_dictionaries(target: pa.Schema, encodings: Encodings) -> pa.Schema:
    """The output's schema with the carried strings as dictionaries; Parquet sees no difference."""
    return pa.schema(
        column.with_type(pa.dictionary(pa.int32(), column.type))
        if field_id(column) in encodings.carried
        else column
        for column in target
    )


def _row_bytes(schema: pa.Schema, seen: Mapping[int, Chunks]) -> float:
    """About how much memory a row takes once decoded, from the footers."""
    found = ((leaf.field.type, seen.get(leaf.id)) for leaf in leaves(schema) if leaf.id is not None)
    return 1 + sum(chunks.arrow_row_bytes(kind) for kind, chunks in found if chunks is not None)


def _rows_per_group(task: RewriteTask, sources: list[Source], row_bytes: float) -> int:
    """Rows of a row group: as few groups as size and memory allow, all about equal."""
    rows = task.rows
    # Parquet's Java writer compares the row-group size with its compressed pages, so the files' own sizes are the measure.
    stored = sum(_bytes_read(source) for source in sources)
    decoded = rows * row_bytes
    groups = max(stored / task.options.row_group_bytes, decoded / _held_limit(task.memory_budget))
    return max(1, math.ceil(rows / max(1, math.ceil(groups))))


def _held_limit(budget: int) -> int:
    """How much may be held before it is written: the budget less a batch, and the indices that unifying copies."""
    return budget * 3 // 4


class RowGroups:
    """Gathers batches and writes them as row groups."""

    def __init__(self, output: Output, rows_per_group: int, budget: int) -> None:
        self._output = output
        self._rows_per_group = rows_per_group
        self._limit = _held_limit(budget)
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            room = self._rows_per_group - self._rows
            self._hold(batch.slice(0, room))
            batch = batch.slice(min(room, batch.num_rows))
            if self._rows >= self._rows_per_group or self._bytes >= self._limit:
                self.flush()

    def _hold(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

    def flush(self) -> None:
        if self._held:
            self._output.write(self._held)
        self._held, self._rows, self._bytes = [], 0, 0


class Output:
    """The file being written. Leaving the block without `finish` removes it."""

    def __init__(self, task: RewriteTask, store: Store, schema: pa.Schema, encodings: Encodings) -> None:
        self._task = task
        self._store = store
        self._schema = schema
        self._encodings = encodings
        self._writer: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []
        self._finished = False
        self.size = 0

    def __enter__(self) -> Output:
        self._sink = self._store.create(self._task.output)
        return self

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """One row group.

        Each source has its own dictionaries; unless they are made one, the writer decodes all but the first.
        """
        table = pa.Table.from_batches(batches, self._schema).unify_dictionaries()
        if self._writer is None:
            self._writer = self._start(settle(self._encodings, table))
        self._writer.write_table(table, row_group_size=table.num_rows)

    def _start(self, encodings: Encodings) -> pq.ParquetWriter:
        settings = writer_settings(encodings, self._task.options)
        writer = pq.ParquetWriter(self._sink, self._schema, metadata_collector=self._footers, **settings)
        writer.add_key_value_metadata({"iceberg.schema": self._task.iceberg_schema_json})
        return writer

    def finish(self) -> pq.FileMetaData:
        """Close the file, and answer with its footer once the rows in it are as many as were asked for."""
        if self._writer is None:
            raise ValueError(f"rewrite {self._task.output}: the task has no rows")
        self._writer.close()
        self.size = self._sink.tell()
        self._sink.close()
        (footer,) = self._footers
        if footer.num_rows != self._task.rows:
            raise RowsDiffer(self._task.output, self._task.rows, footer.num_rows)
        self._finished = True
        return footer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished:
            return
        # Closing a half-written file may fail again, as a full disk does; the removal still has to happen.
        for part in (self._writer, self._sink):
            with contextlib.suppress(Exception):
                if part is not None:
                    part.close()
        self._remove(error)

    def _remove(self, error: BaseException | None) -> None:
        try:
            self._store.remove(self._task.output)
        except Exception as failure:
            if error is None:
                raise
            # The first failure is the one to tell; the leftover is named with it, and a sweep finds it.
            error.add_note(f"could not remove the partial output {self._task.output}: {failure}")


def _split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    """Where each row group starts: readers split the file there."""
    return tuple(_start(footer.row_group(number).column(0)) for number in range(footer.num_row_groups))


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        starts.append(chunk.dictionary_page_offset)
    return int(min(starts))
