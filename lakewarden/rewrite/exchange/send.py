"""The first half of an exchange: a task reads some of the sources and sends each range's rows on as Arrow IPC blobs."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from lakewarden.rewrite.exchange.blobs import TELL, Record
from lakewarden.rewrite.exchange.plan import Exchange, SendReport
from lakewarden.rewrite.order.cluster import gather
from lakewarden.rewrite.order.order import range_of
from lakewarden.rewrite.read.sources import Slice
from lakewarden.rewrite.task import Reading
from lakewarden.rewrite.write.output import held_limit


def spread_out(exchange: Exchange, slices: tuple[Slice, ...]) -> Iterator[Record]:
    """Read these slices of the sources. Yield the rows of each range as one blob, or as several if rows are wider
    than estimated. The last record is the `SendReport`.
    """
    started = time.process_time()
    pa.set_cpu_count(1)
    reading = Reading(replace(exchange.task, slices=slices))
    limit = held_limit(exchange.task.memory_budget) // 2
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reading.batches():
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size >= limit:
            yield from _blobs(exchange, held, reading.schema)
            size = 0
    if held:
        yield from _blobs(exchange, held, reading.schema)
    reading.throttle.settle()
    yield TELL, pa.py_buffer(pickle.dumps(SendReport.by(reading, rows, started)))


def _blobs(exchange: Exchange, held: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[Record]:
    """The held rows as blobs. Empties the list of held rows."""
    ordering = exchange.task.ordering
    assert ordering is not None
    rows = gather((held.pop(0) for _ in range(len(held))), schema)
    numbers = range_of(rows, ordering, exchange.edges)
    order = np.argsort(numbers, kind="stable")  # of 16-bit numbers: a radix sort
    ends = np.cumsum(np.bincount(numbers, minlength=exchange.ranges))
    for number, end in enumerate(ends):
        start = ends[number - 1] if number else 0
        if end > start:
            yield number, _blob(rows.take(pa.array(order[start:end])))


def _blob(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    rows = _without_large_dictionaries(rows)
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def _without_large_dictionaries(rows: pa.Table) -> pa.Table:
    """Decode large dictionaries: a dictionary travels whole with every blob, so one larger than its saving is not sent."""
    columns = []
    for column in rows.columns:
        large = pt.is_dictionary(column.type) and len(column.chunk(0).dictionary) * 4 > rows.num_rows
        columns.append(column.cast(column.type.value_type) if large else column)
    fields = [field.with_type(column.type) for field, column in zip(rows.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
