"""The second half of an exchange: a task gets all blobs of its ranges, orders them range by range and writes one file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa

from lakewarden.rewrite.exchange.blobs import TELL, BlobBuffer, Record
from lakewarden.rewrite.exchange.plan import Exchange, SendReport, peak_rss
from lakewarden.rewrite.order.cluster import write_range
from lakewarden.rewrite.task import Reading, TaskResult
from lakewarden.rewrite.write.output import Output, held_limit


def collect(
    exchange: Exchange, output: int, records: Iterable[Record]
) -> tuple[TaskResult, list[SendReport]]:
    """One file with every row that was sent to this output, in order, and the reports of the sending tasks."""
    started = time.process_time()
    pa.set_cpu_count(1)
    reading = Reading(exchange.task)
    reports: list[SendReport] = []
    with (
        BlobBuffer(held_limit(reading.task.memory_budget) // 2) as held,
        Output(reading, exchange.task.outputs[output]) as file,
    ):
        for number, blob in records:
            if number == TELL:
                reports.append(SendReport.of(blob))
            else:
                held.add(number, blob)
        for number in held.numbers():
            read = partial(_batches, held, number, reading.schema)
            write_range(file, read, held.size(number), reading, exchange.edges, exchange.group_rows)
            held.release(number)
        done = file.finish()
    reading.throttle.settle()
    return (
        TaskResult(
            files=() if done is None else (done,),
            bytes_read=0,
            cpu_seconds=time.process_time() - started,
            peak_rss=peak_rss(),
            written=reading.written if reading.task.digest else None,
            waited=reading.throttle.waited,
        ),
        reports,
    )


def _batches(held: BlobBuffer, number: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (_as_schema(batch, schema) for batch in held.batches(number))


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Build again the dictionaries that were not sent."""
    columns = [
        column if column.type.equals(field.type) else column.dictionary_encode()
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
