"""Reads rows again, long after they were written, and computes their digest. Writes nothing.

Several tasks share a large file. Each has a from-row and a to-row, and takes the row groups that begin between
them: so exactly one task decodes each row group, although no footer has been read when the tasks are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.rewrite.digest import Digest
from lakewarden.rewrite.read.sources import OpenSlice, RowsDiffer, Slice
from lakewarden.rewrite.read.store import MissingSource, Store
from lakewarden.rewrite.task import Reading, RewriteTask

_SCHEMA = b"iceberg.schema"


@dataclass(frozen=True, slots=True)
class Miscounted:
    """A file that does not have as many rows as the table says."""

    path: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of some files: the digest of their live rows, the number of deleted rows, and files with a
    wrong row count.
    """

    rows: Digest = field(default_factory=Digest)
    deleted: int = 0
    bytes_read: int = 0
    miscounted: tuple[Miscounted, ...] = ()

    def __add__(self, other: FileContent) -> FileContent:
        return FileContent(
            self.rows + other.rows,
            self.deleted + other.deleted,
            self.bytes_read + other.bytes_read,
            tuple(dict.fromkeys((*self.miscounted, *other.miscounted))),
        )


def look(task: RewriteTask) -> FileContent:
    """Read the task's slices with their deletes applied. Takes the memory of one batch and of the deletes."""
    pa.set_cpu_count(1)
    reading, miscounted = _open(task)
    reading.sources = [replace(source, slice=_by_groups(source)) for source in reading.sources]
    for _ in reading.batches():
        pass
    reading.throttle.settle()
    return FileContent(reading.read, reading.erased, reading.bytes_read, miscounted)


def _open(task: RewriteTask) -> tuple[Reading, tuple[Miscounted, ...]]:
    """Open the files. A file with a wrong row count is read as it is: its content says more than the difference."""
    miscounted: list[Miscounted] = []
    while True:
        try:
            return Reading(task), tuple(miscounted)
        except RowsDiffer as differs:
            miscounted.append(Miscounted(differs.path, differs.expected, differs.found))
            task = replace(task, slices=tuple(_recounted(piece, miscounted[-1]) for piece in task.slices))


def _recounted(piece: Slice, odd: Miscounted) -> Slice:
    if piece.path != odd.path:
        return piece
    # The last slice of a file goes to its end, whatever its row count.
    end = odd.found if piece.to_row == piece.rows else min(piece.to_row, odd.found)
    return replace(piece, rows=odd.found, from_row=min(piece.from_row, end), to_row=end)


def _by_groups(source: OpenSlice) -> Slice:
    """The slice adjusted to the row groups that begin in it; without rows if none does."""
    piece, first, start, end = source.slice, 0, 0, 0
    for number in range(source.footer.num_row_groups):
        rows = source.footer.row_group(number).num_rows
        if piece.from_row <= first < piece.to_row:
            start, end = (start if end else first), first + rows
        first += rows
    return replace(piece, from_row=start, to_row=end)


def writers_schema(path: str, store: Store) -> str:
    """The Iceberg schema in a data file's footer: the one it was written with. Empty if the footer has none."""
    try:
        with store.open(path) as handle:
            metadata = pq.ParquetFile(handle).metadata.metadata or {}
    except (MissingSource, OSError, pa.ArrowException):
        return ""  # this is only a second check: without it the first result stands
    return bytes(metadata.get(_SCHEMA, b"")).decode("utf-8", "replace")
