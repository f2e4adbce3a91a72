"""Putting rows in order over several tasks, for a partition that does not fit one task's memory.

One task samples keys and finds where to cut them into ranges. Every spreading task reads some of the sources and sends
each range's rows on as one Arrow IPC blob. Every collecting task gets all blobs of its ranges, orders them range by range
and writes one file. What a collector cannot hold it keeps in temporary files, so its memory is bounded by one range.
"""

from __future__ import annotations

import pickle
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from lakewarden.engine.kernels.cluster import gather, write_range
from lakewarden.engine.kernels.digest import Digest
from lakewarden.engine.kernels.order import Edges, find_edges, range_of, sample
from lakewarden.engine.kernels.output import Output, held_limit
from lakewarden.engine.kernels.project import Unfit
from lakewarden.engine.kernels.sources import RowsDiffer, Slice
from lakewarden.engine.kernels.storage import MissingSource
from lakewarden.engine.kernels.task import Reading, RewriteTask, Rewritten

# Keys the cuts are found from: with a hundred a range, ranges come out even within a tenth or two.
_SAMPLE_ROWS = 400_000
# Sources looked at for that, evenly spread.
_SAMPLE_FILES = 64
# What spreading tasks tell goes to the first collector under this number; no range has it.
_TELL = -1

Record = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What every task of one ordered group knows. `task` names all outputs and no sources."""

    task: RewriteTask
    edges: Edges
    ranges: int
    group_rows: int

    def output_of(self, number: int) -> int:
        """Which output a range belongs to."""
        return 0 if number == _TELL else number * len(self.task.outputs) // self.ranges


@dataclass(frozen=True, slots=True)
class Told:
    """What a spreading task did: part of the group's proof."""

    read: Digest
    rows: int
    erased: int
    bytes_read: int
    cpu_seconds: float
    waited: float
    peak_rss: int


def peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def prepare(task: RewriteTask) -> tuple[Exchange, float]:
    """Sample keys, choose encodings for all tasks, and cut into ranges; with the memory a row takes once decoded."""
    pa.set_cpu_count(1)
    assert task.ordering is not None
    step = max(1, len(task.slices) // _SAMPLE_FILES)
    reading = Reading(replace(task, slices=task.slices[::step]))
    seen = max(1, reading.task.rows)
    ids = tuple(key.field_id for key in task.ordering.keys)
    share = min(1.0, _SAMPLE_ROWS / seen)
    samples = [
        sample(batch, task.ordering, share, seed=number * 1_000_003 + position)
        for number in range(len(reading.sources))
        for position, batch in reading.keys(number, ids)
    ]
    ranges = _ranges(task, reading.row_bytes)
    edges = find_edges(pa.concat_tables(samples), task.ordering, ranges)
    per_output = -(-task.rows // len(task.outputs))
    groups = max(1, -(-_stored_bytes(task) // len(task.outputs) // task.options.row_group_bytes))
    shared = replace(task, slices=(), encodings=reading.encodings)
    return Exchange(shared, edges, ranges, max(1, -(-per_output // groups))), reading.row_bytes


def _stored_bytes(task: RewriteTask) -> int:
    return sum(piece.size * piece.wanted // max(1, piece.rows) for piece in task.slices)


def _ranges(task: RewriteTask, row_bytes: float) -> int:
    """As many as outputs, or a multiple of it: a range has to fit a quarter of a task's memory, since it is ordered there."""
    decoded = task.rows * row_bytes / len(task.outputs)
    per_output = max(1, -(-int(decoded) // (task.memory_budget // 4)))
    return min(len(task.outputs) * per_output, 65_535)


def chunks(task: RewriteTask, row_bytes: float, at_least: int) -> list[tuple[Slice, ...]]:
    """The sources of each spreading task: few enough rows that they fit a quarter of its memory."""
    rows = min(int(task.memory_budget / 4 / row_bytes), -(-task.rows // at_least))
    found: list[tuple[Slice, ...]] = []
    held: list[Slice] = []
    taken = 0
    for piece in (part for each in task.slices for part in _cut(each, max(1, rows))):
        if held and taken + piece.wanted > rows:
            found.append(tuple(held))
            held, taken = [], 0
        held.append(piece)
        taken += piece.wanted
    return [*found, tuple(held)] if held else found


def _cut(piece: Slice, rows: int) -> Iterator[Slice]:
    """A file too large for one task as several slices; row groups that two of them touch are read by both."""
    parts = -(-piece.wanted // (2 * rows))
    for number in range(parts):
        start = piece.from_row + piece.wanted * number // parts
        end = piece.from_row + piece.wanted * (number + 1) // parts
        yield replace(piece, from_row=start, to_row=end)


# --- spreading ----------------------------------------------------------------------------------------------


def spread_out(exchange: Exchange, slices: tuple[Slice, ...]) -> Iterator[Record]:
    """Each range's rows of these sources as a blob; at the end what was read, or why it could not be."""
    try:
        yield from _spread(exchange, slices)
    except (Unfit, MissingSource, RowsDiffer) as error:
        # Raising would make Spark try it again, with the same end.
        yield _TELL, pickle.dumps(error)


def _spread(exchange: Exchange, slices: tuple[Slice, ...]) -> Iterator[Record]:
    started = time.process_time()
    pa.set_cpu_count(1)
    ordering = exchange.task.ordering
    assert ordering is not None
    reading = Reading(replace(exchange.task, slices=slices))
    rows = gather(reading.batches(), reading.schema)
    numbers = range_of(rows, ordering, exchange.edges)
    order = np.argsort(numbers, kind="stable")  # of 16-bit numbers: a radix sort
    ends = np.cumsum(np.bincount(numbers, minlength=exchange.ranges))
    for number, end in enumerate(ends):
        start = ends[number - 1] if number else 0
        if end > start:
            yield number, _blob(rows.take(pa.array(order[start:end])))
    reading.throttle.settle()
    told = Told(
        reading.read,
        rows.num_rows,
        reading.erased,
        reading.bytes_read,
        time.process_time() - started,
        reading.throttle.waited,
        peak_rss(),
    )
    yield _TELL, pickle.dumps(told)


def _blob(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    rows = _without_large_dictionaries(rows)
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def _without_large_dictionaries(rows: pa.Table) -> pa.Table:
    """A dictionary travels whole with every blob: one that is larger than what it saves is left behind."""
    columns = []
    for column in rows.columns:
        large = pt.is_dictionary(column.type) and len(column.chunk(0).dictionary) * 4 > rows.num_rows
        columns.append(column.cast(column.type.value_type) if large else column)
    fields = [field.with_type(column.type) for field, column in zip(rows.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


# --- collecting ---------------------------------------------------------------------------------------------


def collect(exchange: Exchange, output: int, records: Iterable[Record]) -> tuple[Rewritten, list[Told]]:
    """One file of every row that was sent to this output, in order, and what the spreading tasks told."""
    started = time.process_time()
    pa.set_cpu_count(1)
    reading = Reading(exchange.task)
    told: list[Told] = []
    with (
        Held(held_limit(reading.task.memory_budget) // 2) as held,
        Output(reading, exchange.task.outputs[output]) as file,
    ):
        for number, blob in records:
            if number == _TELL:
                told.append(_told(blob))
            else:
                held.add(number, blob)
        for number in held.numbers():
            read = partial(_batches, held, number, reading.schema)
            write_range(file, read, held.size(number), reading, exchange.edges, exchange.group_rows)
            held.release(number)
        done = file.finish()
    reading.throttle.settle()
    return (
        Rewritten(
            files=() if done is None else (done,),
            bytes_read=0,
            cpu_seconds=time.process_time() - started,
            peak_rss=peak_rss(),
            written=reading.written if reading.task.digest else None,
            waited=reading.throttle.waited,
        ),
        told,
    )


def _told(blob: bytes) -> Told:
    found = pickle.loads(blob)
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Told)
    return found


def _batches(held: Held, number: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (_as_schema(batch, schema) for batch in held.batches(number))


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Dictionaries that were left behind made anew."""
    columns = [
        column if column.type.equals(field.type) else column.dictionary_encode()
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class Held:
    """Blobs by range: in memory up to a limit, then in a temporary file."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._blobs: dict[int, list[bytes]] = {}
        self._spilled: dict[int, list[tuple[int, int]]] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, number: int, blob: bytes) -> None:
        if self._size + len(blob) <= self._limit:
            self._blobs.setdefault(number, []).append(blob)
            self._size += len(blob)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="lakewarden-")  # noqa: SIM115  closed by __exit__
        self._spilled.setdefault(number, []).append((self._file.tell(), len(blob)))
        self._file.write(blob)

    def numbers(self) -> list[int]:
        return sorted({*self._blobs, *self._spilled})

    def size(self, number: int) -> int:
        in_memory = sum(len(blob) for blob in self._blobs.get(number, ()))
        return in_memory + sum(size for _, size in self._spilled.get(number, ()))

    def release(self, number: int) -> None:
        self._blobs.pop(number, None)

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The range's batches, as often as they are asked for."""
        for blob in self._blobs.get(number, ()):
            yield from pa.ipc.open_stream(blob).read_all().to_batches()
        for at, size in self._spilled.get(number, ()):
            assert self._file is not None
            self._file.seek(at)
            yield from pa.ipc.open_stream(self._file.read(size)).read_all().to_batches()


def proof(parts: Iterable[Told]) -> tuple[Digest, int, int]:
    """Digest, rows and deleted rows of everything that was sent."""
    total, rows, erased = Digest(), 0, 0
    for told in parts:
        total, rows, erased = total + told.read, rows + told.rows, erased + told.erased
    return total, rows, erased
