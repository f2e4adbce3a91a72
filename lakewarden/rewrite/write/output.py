"""The files that a rewrite writes. A file under an output's name is always complete: partial output is removed
on failure.

Arrow's Python writer makes a row group of each table it gets, so a row group is gathered in memory first:
rows are held as Arrow data up to the budget, then written. Strings that the sources hold as dictionaries
stay dictionaries throughout.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyspark import TaskContext

from lakewarden.rewrite.pages.thrift import Struct
from lakewarden.rewrite.read.project import children, field_id, leaves
from lakewarden.rewrite.task import Reading, WrittenFile
from lakewarden.rewrite.write.encoding import Encodings, settle, writer_settings
from lakewarden.rewrite.write.footer_fixups import HeldFooter, amended, has_int96, int96_paths


def rows_per_group(reading: Reading) -> int:
    """Rows of a row group: as few groups as size and memory allow, all about equal."""
    rows = reading.task.rows
    # Parquet's Java writer compares the row-group size with its compressed pages, so the files' own sizes are used here.
    stored = reading.bytes_read
    groups = max(
        stored / reading.task.options.row_group_bytes,
        reading.decoded_bytes / held_limit(reading.task.memory_budget),
    )
    return max(1, math.ceil(rows / max(1, math.ceil(groups))))


def held_limit(budget: int) -> int:
    """How many bytes may be held before writing: the budget less a batch, and the indices that unifying copies."""
    return budget * 3 // 4


class RowGroups:
    """Gathers batches and writes them as row groups."""

    def __init__(self, output: Output, rows_per_group: int, budget: int) -> None:
        self._output = output
        self._rows_per_group = rows_per_group
        self._limit = held_limit(budget)
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
            self._output.write(pa.Table.from_batches(self._held))
        self._held, self._rows, self._bytes = [], 0, 0


class Output:
    """The file being written; it exists from the first row group on. Leaving the block without `finish` removes it."""

    def __init__(self, reading: Reading, path: str) -> None:
        self._reading = reading
        self._path = path
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._held: HeldFooter | None = None
        self._footers: list[pq.FileMetaData] = []
        self._finished = False
        self._rows = 0
        self._nans: dict[int, int] = {}

    def __enter__(self) -> Output:
        return self

    def write(self, table: pa.Table) -> None:
        """Write one row group.

        Each source has its own dictionaries; unless they are unified, the writer decodes all but the first.
        """
        table = table.unify_dictionaries()
        if self._writer is None or self._sink is None:
            self._sink = self._reading.store.create(self._path)
            self._writer = self._start(settle(self._reading.encodings, table))
        reading = self._reading
        if reading.task.digest:
            reading.add_written(table)
        before = self._sink.tell()
        self._writer.write_table(table, row_group_size=table.num_rows)
        reading.throttle.wrote(self._sink.tell() - before)
        self._rows += table.num_rows
        for id_, count in nan_counts(table.schema, table.columns):
            self._nans[id_] = self._nans.get(id_, 0) + count

    def _start(self, encodings: Encodings) -> pq.ParquetWriter:
        task = self._reading.task
        settings = writer_settings(encodings, task.options)
        if task.nan_in_bounds or has_int96(self._reading.schema):
            self._held = HeldFooter(self._sink)
        sink = self._sink if self._held is None else pa.PythonFile(self._held, mode="w")
        writer = pq.ParquetWriter(sink, self._reading.schema, metadata_collector=self._footers, **settings)
        if task.iceberg_schema_json:
            writer.add_key_value_metadata({"iceberg.schema": task.iceberg_schema_json})
        return writer

    def finish(self) -> WrittenFile | None:
        """Close the file and describe it; None if there was no row to write."""
        self._finished = self._writer is None
        if self._writer is None or self._sink is None:
            return None
        if self._held is not None:
            self._held.hold()
        self._writer.close()
        if self._held is not None:
            self._held.release(self._amended)
        size = self._sink.tell()
        self._sink.close()
        (footer,) = self._footers
        if footer.num_rows != self._rows:
            raise ValueError(
                f"rewrite {self._path}: wrote {self._rows} rows, its footer says {footer.num_rows}"
            )
        self._finished = True
        return WrittenFile(self._path, size, footer.num_rows, split_offsets(footer), self._nans)

    def _amended(self, footer: Struct) -> Struct:
        columns = leaves(self._reading.schema)
        nans = [leaf.path for leaf in columns if self._nans.get(-1 if leaf.id is None else leaf.id)]
        return amended(footer, int96_paths(columns), nans if self._reading.task.nan_in_bounds else ())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished:
            return
        # Closing a half-written file may fail again, for example on a full disk; the file must still be removed.
        for part in (self._writer, self._sink):
            with contextlib.suppress(Exception):
                if part is not None:
                    part.close()
        remove_partial(self._reading, self._path, error)


def remove_partial(reading: Reading, path: str, error: BaseException | None) -> None:
    try:
        reading.store.remove(path)
    except Exception as failure:
        if error is None:
            raise
        # Report the first failure. It also names the leftover file, and a sweep finds it.
        error.add_note(f"could not remove the partial output {path}: {failure}")


def nan_counts(fields: Iterable[pa.Field], columns: Iterable[pa.ChunkedArray]) -> Iterator[tuple[int, int]]:
    """The number of NaNs in each float column, by field id: Iceberg's bounds need it. Fields inside lists have no bounds."""
    for field, column in zip(fields, columns, strict=True):
        if pt.is_struct(field.type):
            yield from nan_counts(children(field.type), column.flatten())
        elif pt.is_floating(field.type):
            id_ = field_id(field)
            if id_ is not None:
                yield id_, pc.sum(pc.is_nan(column)).as_py() or 0


def split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    """Where each row group starts: readers split the file there."""
    return tuple(_start(footer.row_group(number).column(0)) for number in range(footer.num_row_groups))


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        starts.append(chunk.dictionary_page_offset)
    return int(min(starts))


def attempt_path(prefix: str) -> str:
    """A new file name for the current task.

    The name is a journaled prefix, and a number that no other task of the application has. Spark runs a
    task again after a failure, twice at the same time when it speculates, and from the start, with attempts
    counted from 0, when a stage is repeated. No attempt may overwrite or remove a file that another has
    closed.
    """
    context = TaskContext.get()
    return f"{prefix}{context.taskAttemptId() if context else 0}.parquet"
