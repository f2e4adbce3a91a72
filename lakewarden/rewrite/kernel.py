"""The rewrite kernel: source files in, Parquet files out, with every row unchanged.

In order: read every footer once; find the projection from each file's schema to the table's; choose encodings;
stream the rows through and cut row groups by size and by memory; check the counts; close. If any step fails,
the partial output is removed.
"""

from __future__ import annotations

import resource
import time

import pyarrow as pa

from lakewarden.rewrite.order.cluster import clustered
from lakewarden.rewrite.pages import copy as pages
from lakewarden.rewrite.pages.chunks import Doubtful
from lakewarden.rewrite.read.sources import RowsDiffer
from lakewarden.rewrite.task import Reading, RewriteTask, TaskResult, WrittenFile
from lakewarden.rewrite.write.output import Output, RowGroups, rows_per_group


def rewrite(task: RewriteTask) -> TaskResult:
    """Write the task's slices into its outputs."""
    started = time.process_time()
    # A Spark task owns one core; Arrow would otherwise start a thread for every core of the machine.
    pa.set_cpu_count(1)
    reading = Reading(task)
    copied = _by_pages(reading)
    files = copied or (_in_order(reading) if task.ordering is None else clustered(reading))
    reading.throttle.settle()
    rows = sum(file.rows for file in files)
    # Digests of all rows cover the count too. If they differ, the caller keeps the files as evidence.
    if (copied or not task.digest) and rows != task.rows - reading.erased:
        raise RowsDiffer(task.outputs[0], task.rows - reading.erased, rows)
    return TaskResult(
        files=files,
        bytes_read=reading.bytes_read,
        cpu_seconds=time.process_time() - started,
        peak_rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        erased=reading.erased,
        read=reading.read if task.digest else None,
        written=reading.written if task.digest else None,
        parts=reading.parts() if task.ordering is None else (),
        waited=reading.throttle.waited,
        fetched=reading.throttle.bytes_read,
        copied=bool(copied),
    )


def _by_pages(reading: Reading) -> tuple[WrittenFile, ...]:
    """All rows into one file, with as many copied pages as possible. Empty if rows have to be decoded."""
    task = reading.task
    if task.ordering is not None or not task.copy_pages or not pages.suits(reading):
        return ()
    try:
        return pages.concatenate(reading)
    except Doubtful:
        # No output is left behind. Decoding instead costs only time.
        return ()


def _in_order(reading: Reading) -> tuple[WrittenFile, ...]:
    """All rows into one file, in the order of the sources."""
    (path,) = reading.task.outputs
    with Output(reading, path) as output:
        groups = RowGroups(output, rows_per_group(reading), reading.task.memory_budget)
        for batch in reading.batches():
            groups.add(batch)
        groups.flush()
        file = output.finish()
    return () if file is None else (file,)
