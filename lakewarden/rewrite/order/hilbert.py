"""The Hilbert curve: like a z-order, but without its jumps. Two adjacent places on the curve are adjacent in
space.

A place on the z-order says in which half of every column a row lies, from the largest cells to the smallest.
The Hilbert curve visits the same cells in an order that depends on its state in each cell: where it entered,
and along which column it leaves. So a z-order place is converted level by level, with a table that gives each
cell's number for each state. After Hamilton, "Compact Hilbert Indices", 2006.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from lakewarden.rewrite.order.row_sort import Integers, Words

# Levels that are looked up together have at most this many bits, so the table fits the processor's cache.
_AT_ONCE_BITS = 8


def of_zorder(places: Words, columns: int, levels: int) -> Words:
    """Convert places on the z-order to places on the Hilbert curve, for this many columns with `levels` bits each."""
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
