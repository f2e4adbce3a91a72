"""Orders a partition's rows inside one task: all rows in memory, one permutation, several files.

Rows are held once, column by column; each row group of an output gathers its rows from there. So peak memory is
the rows themselves, the permutation, and one row group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lakewarden.rewrite.order.order import Edges, cuts, own_edges, permutation
from lakewarden.rewrite.order.row_sort import Rows
from lakewarden.rewrite.read.project import field_id
from lakewarden.rewrite.task import Reading, RewriteTask, WrittenFile
from lakewarden.rewrite.write.output import Output, held_limit, rows_per_group

# The share of memory for the rows. The rest holds the permutation and one row group.
_BESIDE = 0.75
# After this many bytes, memory left over from decoding is given back.
_MUCH = 64 << 20


class TooLarge(Exception):
    """The rows do not fit the task's memory: several tasks have to share them first."""

    def __init__(self, rows: int, needed: int, budget: int) -> None:
        super().__init__(rows, needed, budget)
        self.rows, self.needed, self.budget = rows, needed, budget

    def __str__(self) -> str:
        return (
            f"{self.rows} rows need about {self.needed >> 20} MiB in memory, the task has {self.budget >> 20}"
        )


def looks_too_large(task: RewriteTask) -> bool:
    """An estimate without reading footers: rows almost never take less memory than they take on disk.

    If they do, as in files full of dropped columns, several tasks order what one task could have ordered.
    """
    return task.ordering is not None and task.stored_bytes > _BESIDE * task.memory_budget


def clustered(reading: Reading) -> tuple[WrittenFile, ...]:
    """All rows in order, cut into the task's outputs. Raises TooLarge before reading anything if they do not fit."""
    task = reading.task
    assert task.ordering is not None
    if reading.decoded_bytes > _BESIDE * task.memory_budget:
        raise TooLarge(task.rows, int(reading.decoded_bytes), task.memory_budget)
    rows = gather(reading.batches(), reading.schema)
    edges = own_edges(rows, task.ordering)
    order = permutation(rows, task.ordering, edges)
    places = cuts(rows, order, task.ordering, len(task.outputs), edges)
    files = []
    for path, start, end in zip(task.outputs, places, places[1:], strict=False):
        with Output(reading, path) as output:
            write_ordered(output, rows, order[start:end], rows_per_group(reading))
            files.append(output.finish())
    return tuple(file for file in files if file is not None)


def gather(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches as one table of whole columns. The pieces of a column are freed when it is joined, if they
    own their memory.
    """
    # Decoding leaves pages in the allocator that it does not give back by itself: a third of the peak for 4 M
    # rows. Asking for them costs as much as joining, so small sets of rows are joined without it.
    pool = pa.default_memory_pool()
    pieces: list[list[pa.Array]] = [[] for _ in schema]
    size = due = 0
    for batch in batches:
        for column, piece in zip(pieces, batch.columns, strict=True):
            column.append(piece)
        size += batch.nbytes
        if size - due > 4 * _MUCH:
            due = size
            pool.release_unused()
    joined = []
    for number, field in enumerate(schema):
        column = pa.chunked_array(pieces[number], field.type)
        pieces[number] = []
        joined.append(column.unify_dictionaries().combine_chunks())
        del column
        if size > _MUCH:
            pool.release_unused()
    return pa.Table.from_arrays(joined, schema=schema)


def write_ordered(output: Output, rows: pa.Table, order: Rows, group_rows: int) -> None:
    """Write these rows, in this order, as row groups of about equal size."""
    groups = max(1, -(-len(order) // group_rows))
    for number in range(groups):
        part = order[len(order) * number // groups : len(order) * (number + 1) // groups]
        if len(part):
            output.write(rows.take(pa.array(part)))


def write_range(
    output: Output,
    read: Callable[[], Iterator[pa.RecordBatch]],
    size: int,
    reading: Reading,
    edges: Edges,
    group_rows: int,
) -> None:
    """Write one range of a partition in order. `read` returns its batches; `size` is their approximate size in bytes."""
    ordering = reading.task.ordering
    assert ordering is not None
    pieces = max(1, -(-size // (held_limit(reading.task.memory_budget) // 2)))
    if pieces == 1:
        rows = gather(read(), reading.schema)
        write_ordered(output, rows, permutation(rows, ordering, edges), group_rows)
        return
    # The rows are wider than the sample showed. The keys alone fit: they give each row's place, and the rows
    # are read once for each piece of the order.
    key_ids = {key.field_id for key in ordering.keys}
    narrow = pa.schema([field for field in reading.schema if field_id(field) in key_ids])
    keys = gather((_copy(batch.select(narrow.names)) for batch in read()), narrow)
    order = permutation(keys, ordering, edges)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    for piece in range(pieces):
        first, end = len(order) * piece // pieces, len(order) * (piece + 1) // pieces
        _write_piece(output, read(), reading, (places, first, end), group_rows)


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy with its own memory: a batch as it is read keeps its whole blob alive, with every column, even
    through one dictionary.
    """
    return pa.RecordBatch.from_arrays([_copy_of(column) for column in batch.columns], schema=batch.schema)


def _copy_of(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(_copy_of(column.indices), _copy_of(column.dictionary))
    return column.take(pa.array(np.arange(len(column))))


def _write_piece(
    output: Output,
    batches: Iterable[pa.RecordBatch],
    reading: Reading,
    piece: tuple[NDArray[np.int64], int, int],
    group_rows: int,
) -> None:
    """Write the rows whose places are in [first, end), in order."""
    places, first, end = piece
    held, local_places, seen = [], [], 0
    for batch in batches:
        here = places[seen : seen + batch.num_rows]
        seen += batch.num_rows
        inside = (here >= first) & (here < end)
        if inside.any():
            held.append(_copy(batch.filter(pa.array(inside))))
            local_places.append(here[inside])
    if held:
        rows = gather(held, reading.schema)
        order: Rows = np.argsort(np.concatenate(local_places)).astype(np.uint32)
        write_ordered(output, rows, order, group_rows)
