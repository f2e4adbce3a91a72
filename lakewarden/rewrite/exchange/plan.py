"""Plans how several tasks order a partition that does not fit one task's memory.

One task samples keys and finds where to cut them into ranges. Every sending task (send.py) reads some of the
sources and sends each range's rows as Arrow IPC blobs. Every collecting task (receive.py) gets all blobs of its
ranges, orders them range by range and writes one file.
"""

from __future__ import annotations

import pickle
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from lakewarden.rate_limit import Pace
from lakewarden.rewrite.digest import Digest
from lakewarden.rewrite.exchange.blobs import TELL, Blob, content
from lakewarden.rewrite.order.order import Edges, find_edges, sample
from lakewarden.rewrite.read.sources import Slice
from lakewarden.rewrite.task import Reading, RewriteTask

# Keys to find the cuts from: with a hundred per range, the sizes of ranges differ by 10 to 20 %.
_SAMPLE_ROWS = 400_000
# Sources to sample, evenly spread: this many, and more if they have few rows.
_SAMPLE_FILES = 24


@dataclass(frozen=True, slots=True)
class Exchange:
    """The data that every task of one ordered group gets. `task` names all outputs and no sources."""

    task: RewriteTask
    edges: Edges
    ranges: int
    group_rows: int

    def paced(self, pace: Pace | None) -> Exchange:
        return replace(self, task=replace(self.task, pace=pace))

    def output_of(self, number: int) -> int:
        """The output that a range belongs to."""
        return 0 if number == TELL else number * len(self.task.outputs) // self.ranges


@dataclass(frozen=True, slots=True)
class SendReport:
    """A sending task's report: part of the group's proof."""

    read: Digest
    rows: int
    erased: int
    cpu_seconds: float
    waited: float
    fetched: int
    peak_rss: int

    @classmethod
    def by(cls, reading: Reading, rows: int, started: float) -> SendReport:
        return cls(
            reading.read,
            rows,
            reading.erased,
            time.process_time() - started,
            reading.throttle.waited,
            reading.throttle.bytes_read,
            peak_rss(),
        )

    @staticmethod
    def of(blob: Blob) -> SendReport:
        """Read the report sent under TELL. Raises the error if the task sent one instead."""
        report = pickle.loads(content(blob))
        if isinstance(report, Exception):
            raise report
        assert isinstance(report, SendReport)
        return report


class Sampled(NamedTuple):
    """The result of sampling a group; `row_bytes` is the memory of a decoded row."""

    exchange: Exchange
    row_bytes: float
    told: SendReport


def peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def prepare(task: RewriteTask) -> Sampled:
    """Sample keys, choose encodings for all tasks, and cut into ranges."""
    started = time.process_time()
    pa.set_cpu_count(1)
    assert task.ordering is not None
    reading = Reading(replace(task, slices=_evenly(task.slices)))
    seen = max(1, reading.task.rows)
    keys = reading.columns({key.field_id for key in task.ordering.keys})
    share = min(1.0, _SAMPLE_ROWS / seen)
    samples = [
        sample(batch, task.ordering, share, seed=number * 1_000_003 + position)
        for number in range(len(reading.sources))
        for position, batch in reading.keys(number, keys)
    ]
    ranges = _ranges(task, reading.row_bytes)
    edges = find_edges(pa.concat_tables(samples), task.ordering, ranges)
    per_output = -(-task.rows // len(task.outputs))
    groups = max(1, -(-task.stored_bytes // len(task.outputs) // task.options.row_group_bytes))
    shared = replace(task, slices=(), encodings=reading.encodings)
    reading.throttle.settle()
    exchange = Exchange(shared, edges, ranges, max(1, -(-per_output // groups)))
    return Sampled(exchange, reading.row_bytes, SendReport.by(reading, 0, started))


def _evenly(slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Some of the sources, from the first to the last, with enough rows to sample if they are about equal."""
    rows = sum(piece.wanted for piece in slices)
    enough = max(_SAMPLE_FILES, -(-len(slices) * 2 * _SAMPLE_ROWS // max(1, rows)))
    return slices[:: max(1, len(slices) // enough)]


def _ranges(task: RewriteTask, row_bytes: float) -> int:
    """As many ranges as outputs, or a multiple: a range has to fit a quarter of a task's memory, because it is
    ordered there.
    """
    decoded = task.rows * row_bytes / len(task.outputs)
    per_output = max(1, -(-int(decoded) // (task.memory_budget // 4)))
    return min(len(task.outputs) * per_output, 65_535)


def chunks(task: RewriteTask, row_bytes: float, at_least: int) -> list[tuple[Slice, ...]]:
    """The sources of each sending task: few enough rows to fit a quarter of its memory."""
    rows = min(int(task.memory_budget / 4 / row_bytes), -(-task.rows // at_least))
    parts: list[tuple[Slice, ...]] = []
    held: list[Slice] = []
    taken = 0
    for piece in (part for each in task.slices for part in _cut(each, max(1, rows))):
        if held and taken + piece.wanted > rows:
            parts.append(tuple(held))
            held, taken = [], 0
        held.append(piece)
        taken += piece.wanted
    return [*parts, tuple(held)] if held else parts


def _cut(piece: Slice, rows: int) -> Iterator[Slice]:
    """A file too large for one task as several slices. Both slices read a row group that they share."""
    parts = -(-piece.wanted // (2 * rows))
    for number in range(parts):
        start = piece.from_row + piece.wanted * number // parts
        end = piece.from_row + piece.wanted * (number + 1) // parts
        yield replace(piece, from_row=start, to_row=end)


def proof(parts: Iterable[SendReport]) -> tuple[Digest, int, int]:
    """Digest, rows and deleted rows of everything that was sent."""
    total, rows, erased = Digest(), 0, 0
    for report in parts:
        total, rows, erased = total + report.read, rows + report.rows, erased + report.erased
    return total, rows, erased
