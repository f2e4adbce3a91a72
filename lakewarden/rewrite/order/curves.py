"""Z-order and the Hilbert curve: rows that are near in every key are stored near each other.

Each column is cut into buckets of about equal rows, so a skewed column is cut as evenly as any other. A
row's bucket numbers, in binary and interleaved, are its place on the z-order. The Hilbert curve is the same
without jumps: two adjacent places on it are adjacent in space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lakewarden.rewrite.order.row_sort import Among, Integers, Rows, Words, ordered
from lakewarden.rewrite.order.sort_keys import SortKey, as_bytes, from_bytes, joined, key_column
from lakewarden.rewrite.order.sort_planes import compact, indices_of, is_binary, planes, take_rows

# With 4096 buckets per column, a bucket is far smaller than a page of rows, and the limits stay a few kilobytes.
# With four columns there are 1024: place and row number then still fit one word, and are sorted at once.
_MOST_BITS = 12
_ALL_COLUMNS_BITS = 40
_LONGEST_LIMIT = 256
# How far a piece's size may differ from the average, and a cut from its even position, as shares of a piece. A
# cut just beside the limit of a large cell doubles the spread of a piece. If one value has an eighth of the
# rows, cells differ in size by a quarter: 16 pieces of such a column and an even one covered 25 % of each; cut
# by rows within 10 %, up to 35 %.
_SLACK = 0.25
_WANDER = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    """A column's buckets: the least value of each but the first, as IPC bytes, and each bucket's part of the
    place.

    There is one more bucket for nulls: the first or the last, as the key says.
    """

    limits: bytes
    parts: bytes


def levels(columns: int) -> int:
    """Bits of a place for each column, if there are this many columns."""
    return min(_MOST_BITS, _ALL_COLUMNS_BITS // columns)


def scales(samples: pa.Table, keys: Sequence[SortKey]) -> tuple[Scale, ...]:
    """Buckets of about equal rows for every key, from a sample of rows."""
    bits = levels(len(keys))
    return tuple(
        _scale(key_column(samples, key), key, bits, len(keys), len(keys) - 1 - number)
        for number, key in enumerate(keys)
    )


def places(rows: pa.Table | pa.RecordBatch, keys: Sequence[SortKey], found: Sequence[Scale]) -> Words:
    """Every row's place on the curve."""
    total: Words | None = None
    for key, scale in zip(keys, found, strict=True):
        parts = np.frombuffer(scale.parts, dtype=np.uint64)
        part = _by_bucket(key_column(rows, key), from_bytes(scale.limits), key, parts)
        total = part if total is None else np.bitwise_or(total, part, out=total)
    assert total is not None, "a curve has at least two keys"
    return total


def cell_cuts(ascending: Words, parts: int) -> list[int]:
    """Where to cut ordered rows into `parts` pieces: near equal rows, where the largest cell begins."""
    count, cuts = len(ascending), [0]
    for part in range(1, parts):
        even = (count - cuts[-1]) / (parts - part + 1)
        least = max(cuts[-1] + even * (1 - _SLACK), (part - _WANDER) * count / parts)
        most = min(cuts[-1] + even * (1 + _SLACK), (part + _WANDER) * count / parts)
        first, last = max(1, math.ceil(least)), min(count - 1, int(most))
        if first <= last and ascending[first - 1] != ascending[last]:
            start = cell_start(int(ascending[first - 1]), int(ascending[last]))
            cuts.append(int(np.searchsorted(ascending, np.uint64(start))))
        else:
            cuts.append(int(cuts[-1] + even))
    return cuts[1:]


def cell_start(before: int, after: int) -> int:
    """The first place of the largest cell that begins after `before` and not later than `after`."""
    clear = max(0, (before ^ after).bit_length() - 1)
    return after >> clear << clear


# --- buckets ------------------------------------------------------------------------------------------------


def _scale(column: pa.ChunkedArray, key: SortKey, bits: int, columns: int, shift: int) -> Scale:
    limits = _limits(column, key, (1 << bits) - 1)
    buckets = _by_bucket(column, limits, key, np.arange(len(limits) + 2))
    rows = np.bincount(buckets, minlength=len(limits) + 2)
    levels = _levels(rows, bits, key.nulls_first)
    return Scale(as_bytes(limits), (_spaced(levels, columns) << np.uint64(shift)).tobytes())


def _limits(column: pa.ChunkedArray, key: SortKey, count: int) -> pa.Array:
    """Distinct values that cut the rows into parts of about equal size."""
    order = ordered([planes(column, key.descending, key.nulls_first)], len(column))
    at = np.arange(1, count + 1) * len(column) // (count + 1) if len(column) else np.arange(0)
    _, distinct = np.unique(np.cumsum(order.begins)[at], return_index=True)
    limits = take_rows(column, order.rows[at[distinct]]).drop_null()
    # Any ascending values work as limits, and short ones are smaller to send.
    return pc.binary_slice(limits, 0, _LONGEST_LIMIT) if is_binary(limits.type) else limits


def _by_bucket(column: pa.ChunkedArray, limits: pa.Array, key: SortKey, parts: Integers) -> Integers:
    """For every row, the part that belongs to its bucket."""
    column = compact(column)
    if not pt.is_dictionary(column.type):
        return parts[_buckets(column, limits, key)]
    dictionary, indices = indices_of(column)
    by_value = parts[_buckets(pa.chunked_array([dictionary]), limits, key)]
    result: Integers = np.append(by_value, parts[0 if key.nulls_first else -1])[indices]
    return result


def _buckets(column: pa.ChunkedArray, limits: pa.Array, key: SortKey) -> Rows:
    both = planes(joined(limits, column), key.descending, key.nulls_first)
    buckets: Rows = Among([both], len(limits), len(column)).through()
    missing = column.is_null().to_numpy() if column.null_count else np.zeros(len(column), dtype=np.bool_)
    buckets += ~missing if key.nulls_first else missing
    return buckets


def _levels(rows: Integers, bits: int, nulls_first: bool) -> Words:
    """A number of `bits` bits for every bucket: how far along the column its middle row lies.

    So a column of few values is spread over all bits, and one of two values differs in the highest bit, however
    many rows have each.
    """
    middles = np.cumsum(rows) - rows / 2
    levels = (middles / max(1, rows.sum()) * (1 << bits)).astype(np.int64).clip(0, (1 << bits) - 1)
    # Nulls do not share their number with a value.
    if nulls_first:
        levels[0] = min(levels[0], (1 << bits) - 2)
        levels[1:] = np.maximum(levels[1:], levels[0] + 1)
    else:
        levels[-1] = max(levels[-1], 1)
        levels[:-1] = np.minimum(levels[:-1], levels[-1] - 1)
    return np.asarray(levels, dtype=np.uint64)


def _spaced(levels: Words, columns: int) -> Words:
    """Every bit moved up, so that bits of the other columns fit between."""
    spaced = np.zeros_like(levels)
    for bit in range(_MOST_BITS):
        spaced |= (levels >> np.uint64(bit) & np.uint64(1)) << np.uint64(bit * columns)
    return spaced


# Levels that are looked up together have at most this many bits, so the table fits the processor's cache.
_AT_ONCE_BITS = 8


def of_zorder(places: Words, columns: int, levels: int) -> Words:
    """Convert places on the z-order to places on the Hilbert curve, for this many columns with `levels` bits
    each.

    A place on the z-order says in which half of every column a row lies, from the largest cells to the
    smallest. The Hilbert curve visits the same cells in an order that depends on its state in each cell:
    where it entered, and along which column it leaves. So a place is converted level by level, with a table
    that gives each cell's number for each state. After Hamilton, "Compact Hilbert Indices", 2006.
    """
    at_once = max(
        number
        for number in range(1, levels + 1)
        if levels % number == 0 and number * columns <= _AT_ONCE_BITS
    )
    table, bits = _table(columns, at_once), at_once * columns
    state = np.zeros(len(places), dtype=np.intp)
    result = np.zeros_like(places)
    for shift in reversed(range(0, levels * columns, bits)):
        cell = (places >> np.uint64(shift) & np.uint64((1 << bits) - 1)).astype(np.intp)
        at = state << bits | cell
        result = result << np.uint64(bits) | table.number[at]
        state = table.following[at]
    return result


@dataclass(frozen=True, slots=True)
class _Table:
    """By state and cell: the cell's number along the curve, and the state inside the cell."""

    number: Words
    following: Integers


@cache
def _table(columns: int, levels: int) -> _Table:
    """The table for cells inside cells, `levels` deep."""
    one, states = _one_level(columns), columns << columns
    state = np.repeat(np.arange(states), 1 << levels * columns)
    cells = np.tile(np.arange(1 << levels * columns), states)
    number = np.zeros(len(cells), dtype=np.uint64)
    for level in reversed(range(levels)):
        at = state << columns | cells >> level * columns & (1 << columns) - 1
        number = number << np.uint64(columns) | one.number[at]
        state = one.following[at]
    return _Table(number, state)


def _one_level(columns: int) -> _Table:
    cells = 1 << columns
    shape = (
        columns * cells,
        cells,
    )  # a state: the corner where the curve enters, and the column along which it leaves
    number, following = np.zeros(shape, dtype=np.uint64), np.zeros(shape, dtype=np.intp)
    for along, corner, cell in product(range(columns), range(cells), range(cells)):
        place = _gray_inverse(_rotated(cell ^ corner, -(along + 1), columns))
        enters = corner ^ _rotated(_entry(place), along + 1, columns)
        leaves = (along + _direction(place, columns) + 1) % columns
        number[along * cells + corner, cell] = place
        following[along * cells + corner, cell] = leaves * cells + enters
    return _Table(number.ravel(), following.ravel())


def _gray(number: int) -> int:
    return number ^ number >> 1


def _gray_inverse(code: int) -> int:
    number = 0
    while code:
        number ^= code
        code >>= 1
    return number


def _entry(place: int) -> int:
    """The corner where the curve enters the cell of this number."""
    return 0 if place == 0 else _gray(2 * ((place - 1) // 2))


def _direction(place: int, columns: int) -> int:
    """The column along which the curve crosses that cell."""
    if place == 0:
        return 0
    odd = place if place % 2 else place - 1
    return _trailing_ones(odd) % columns


def _trailing_ones(number: int) -> int:
    count = 0
    while number & 1:
        count, number = count + 1, number >> 1
    return count


def _rotated(number: int, by: int, columns: int) -> int:
    by %= columns
    return (number << by | number >> columns - by) & (1 << columns) - 1
