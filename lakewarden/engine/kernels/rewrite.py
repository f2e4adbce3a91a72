"""The rewrite kernel: source files in, Parquet files out, every row as it was.

Told in order: read every footer once; find the way from each file's schema to the table's; choose encodings; stream the
rows through, cutting row groups by size and by memory; check the counts; close. Whatever fails on the way, the partial
output is removed.
"""

from __future__ import annotations

import resource
import time

import pyarrow as pa

from lakewarden.engine.kernels.encoding import WriteOptions, unfit_properties
from lakewarden.engine.kernels.output import Output, RowGroups, rows_per_group
from lakewarden.engine.kernels.project import Unfit, unfit_schema
from lakewarden.engine.kernels.sources import RowsDiffer, Slice
from lakewarden.engine.kernels.storage import MissingSource
from lakewarden.engine.kernels.task import Reading, RewriteTask, Rewritten, WrittenFile

__all__ = [
    "MissingSource",
    "RewriteTask",
    "Rewritten",
    "RowsDiffer",
    "Slice",
    "Unfit",
    "WriteOptions",
    "WrittenFile",
    "rewrite",
    "unfit_properties",
    "unfit_schema",
]


def rewrite(task: RewriteTask) -> Rewritten:
    """Write the task's slices into its outputs."""
    started = time.process_time()
    # A Spark task owns one core; Arrow would otherwise start a thread for every core of the machine.
    pa.set_cpu_count(1)
    reading = Reading.open(task)
    files = _in_order(reading)
    rows = sum(file.rows for file in files)
    if rows != task.rows:
        raise RowsDiffer(task.outputs[0], task.rows, rows)
    return Rewritten(
        files=files,
        bytes_read=reading.bytes_read,
        cpu_seconds=time.process_time() - started,
        peak_rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


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
