"""The pure part of clustering: turns key columns into an order of rows, in one task or in many.

One task: `permutation`, then `cuts` into files. Many tasks: `sample` every batch, `find_edges` once, `range_of`
for every batch; the rows of a range go to one task, which orders them by `permutation` with the same edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakewarden.rewrite.order import curves
from lakewarden.rewrite.order.row_sort import Among, Integers, Plane, Rows, Words, ordered, plane_of
from lakewarden.rewrite.order.sort_keys import (
    Ordering,
    as_bytes,
    check,
    from_bytes,
    key_column,
    key_planes,
    key_rows,
)

# Rows to find a table's own buckets from. With 65,536, the sampling error would move the limits of a sixteenth by 4 %.
_OWN_SAMPLE = 1 << 18
_MOST_RANGES = 1 << 16
# How far a cut of a linear order may move, as a share of a part.
_SLACK = 0.02
# Rows of each part that are read to find the cuts of a curve, before the rows directly around the cuts.
_COARSE = 256


@dataclass(frozen=True, slots=True)
class RowEdges:
    """Edges of a sort: the keys of the first row of every range but the first, a column of IPC bytes for each key."""

    columns: tuple[bytes, ...]
    count: int


@dataclass(frozen=True, slots=True)
class CurveEdges:
    """Edges of a z-order or a Hilbert curve: how to compute a row's place, and the first place of every range but the first."""

    scales: tuple[curves.Scale, ...]
    places: tuple[int, ...]


Edges = RowEdges | CurveEdges


def permutation(rows: pa.Table | pa.RecordBatch, ordering: Ordering, edges: Edges | None = None) -> Rows:
    """Row numbers in order; rows with equal keys keep their order. A curve without edges computes its own."""
    check(ordering, rows.schema)
    return ordered(_keys(rows, ordering, edges), rows.num_rows).rows


def _keys(
    rows: pa.Table | pa.RecordBatch, ordering: Ordering, edges: Edges | None
) -> Iterable[Iterable[Plane]]:
    if ordering.kind == "sort":
        return (key_planes(rows, key) for key in ordering.keys)
    return [[plane_of(_places(rows, ordering, edges))]]


def _places(rows: pa.Table | pa.RecordBatch, ordering: Ordering, edges: Edges | None) -> Words:
    return _along(rows, ordering, _of_curve(edges or _curve_of(rows, ordering)))


def _along(rows: pa.Table | pa.RecordBatch, ordering: Ordering, curve: CurveEdges) -> Words:
    places = curves.places(rows, ordering.keys, curve.scales)
    if ordering.kind == "zorder":
        return places
    # Its cells are those of the z-order in another order, so a cut where a z-order cell begins is valid here too.
    return curves.of_zorder(places, len(ordering.keys), curves.levels(len(ordering.keys)))


def _of_curve(edges: Edges) -> CurveEdges:
    if not isinstance(edges, CurveEdges):
        raise ValueError("these are the edges of a sort, not of a curve")
    return edges


def own_edges(rows: pa.Table | pa.RecordBatch, ordering: Ordering) -> Edges | None:
    """The edges that `permutation` and `cuts` would each compute themselves; a sort needs none."""
    return _curve_of(rows, ordering) if ordering.kind != "sort" else None


def _curve_of(rows: pa.Table | pa.RecordBatch, ordering: Ordering) -> Edges:
    share = min(1.0, _OWN_SAMPLE / max(1, rows.num_rows))
    return find_edges(sample(rows, ordering, share, seed=0), ordering, ranges=1)


# --- ranges for many tasks ----------------------------------------------------------------------------------


def sample(rows: pa.Table | pa.RecordBatch, ordering: Ordering, share: float, seed: int) -> pa.Table:
    """The key columns of a random share of the rows, without dictionaries. Give every batch its own seed."""
    check(ordering, rows.schema)
    random = np.random.default_rng(seed)
    count = random.binomial(rows.num_rows, min(1.0, share))
    chosen = random.choice(rows.num_rows, count, replace=False, shuffle=False)
    return key_rows(rows, ordering, np.sort(chosen).astype(np.uint32))


def find_edges(samples: pa.Table, ordering: Ordering, ranges: int) -> Edges:
    """Where to cut a partition into `ranges` ranges of about equal rows, based on a sample of its rows."""
    check(ordering, samples.schema)
    if not 1 <= ranges <= _MOST_RANGES:
        raise ValueError(f"cut a partition into 1 to {_MOST_RANGES} ranges, not {ranges}")
    if not samples.num_rows:
        ranges = 1
    if ordering.kind == "sort":
        return _row_edges(samples, ordering, ranges)
    curve = CurveEdges(curves.scales(samples, ordering.keys), ())
    if ranges == 1:
        return curve
    return replace(curve, places=_first_places(samples, ordering, ranges, curve))


def _row_edges(samples: pa.Table, ordering: Ordering, ranges: int) -> RowEdges:
    order = permutation(samples, ordering)
    inner = cuts(samples, order, ordering, ranges)[1:-1]
    firsts = key_rows(samples, ordering, order[np.array(inner, dtype=np.intp)])
    columns = (key_column(firsts, key).combine_chunks() for key in ordering.keys)
    return RowEdges(tuple(as_bytes(column) for column in columns), len(inner))


def _first_places(samples: pa.Table, ordering: Ordering, ranges: int, curve: CurveEdges) -> tuple[int, ...]:
    places = np.sort(_along(samples, ordering, curve))
    return tuple(_cell_at(places, at) for at in curves.cell_cuts(places, ranges))


def _cell_at(ascending: Words, at: int) -> int:
    """The first place of the cell that begins at a cut."""
    return curves.cell_start(int(ascending[max(0, at - 1)]), int(ascending[at]))


def range_of(rows: pa.Table | pa.RecordBatch, ordering: Ordering, edges: Edges) -> npt.NDArray[np.uint16]:
    """The range of every row.

    All rows of a range come before all rows of the next. Equal keys share a range, unless they span several
    ranges: then they are distributed over these ranges, so that no task gets all of them.
    """
    check(ordering, rows.schema)
    ranges = (
        _among_rows(rows, ordering, edges)
        if ordering.kind == "sort"
        else _among_places(rows, ordering, edges)
    )
    numbers = ranges.through()
    if ranges.repeats:
        before = ranges.before()
        several = np.flatnonzero(numbers > before + 1)
        numbers[several] = before[several] + 1 + several % (numbers[several] - before[several])
    return numbers.astype(np.uint16)


def _among_rows(rows: pa.Table | pa.RecordBatch, ordering: Ordering, edges: Edges) -> Among:
    if not isinstance(edges, RowEdges):
        raise ValueError("these are the edges of a curve, not of a sort")
    pairs = zip(ordering.keys, edges.columns, strict=True)
    keys = (key_planes(rows, key, from_bytes(data)) for key, data in pairs)
    return Among(keys, edges.count, rows.num_rows)


def _among_places(rows: pa.Table | pa.RecordBatch, ordering: Ordering, edges: Edges) -> Among:
    marks = np.array(_of_curve(edges).places, dtype=np.uint64)
    both = np.concatenate([marks, _places(rows, ordering, edges)])
    return Among([[plane_of(both)]], len(marks), rows.num_rows)


# --- cuts into files ----------------------------------------------------------------------------------------


def cuts(
    rows: pa.Table | pa.RecordBatch, order: Rows, ordering: Ordering, parts: int, edges: Edges | None = None
) -> list[int]:
    """Where to cut the ordered rows into `parts` pieces of about equal rows: `parts` + 1 places, from 0 to the
    end.

    A cut of a linear order moves up to 2 % of a part, to a change of keys, of the first key rather than the
    last. A cut of a curve moves up to 25 %, to where a large cell begins. `order` is the result of
    `permutation`; only few rows are read.
    """
    check(ordering, rows.schema)
    if not len(order):
        return [0] * (parts + 1)
    if ordering.kind == "sort":
        inner = _sort_cuts(rows, order, ordering, parts)
    else:
        inner = _curve_cuts(rows, order, ordering, parts, edges or _curve_of(rows, ordering))
    return [0, *inner, len(order)]


def _curve_cuts(
    rows: pa.Table | pa.RecordBatch, order: Rows, ordering: Ordering, parts: int, edges: Edges
) -> list[int]:
    step = max(1, len(order) // (parts * _COARSE))
    coarse = _places(key_rows(rows, ordering, order[::step]), ordering, edges)
    inner = curves.cell_cuts(coarse, parts)
    starts = [max(0, at - 1) * step for at in inner]
    near = np.concatenate([order[:0], *(order[start : start + step] for start in starts)])
    fine = _places(key_rows(rows, ordering, near), ordering, edges).reshape(len(inner), step)
    begins = (
        np.searchsorted(row, np.uint64(_cell_at(coarse, at))) for row, at in zip(fine, inner, strict=True)
    )
    return [start + int(begin) for start, begin in zip(starts, begins, strict=True)]


def _sort_cuts(rows: pa.Table | pa.RecordBatch, order: Rows, ordering: Ordering, parts: int) -> list[int]:
    reach = int(len(order) / parts * _SLACK)
    windows = [_Window.around(part * len(order) // parts, reach, len(order)) for part in range(1, parts)]
    shown = [order[window.first - 1 : window.end] for window in windows]
    near = key_rows(rows, ordering, np.concatenate([order[:0], *shown]))
    changes = np.split(_changes(near, ordering), np.cumsum([len(part) for part in shown]))
    return [window.best(part[1:]) for window, part in zip(windows, changes, strict=False)]


@dataclass(frozen=True, slots=True)
class _Window:
    """Places [first, end) in an order where a cut is allowed."""

    target: int
    first: int
    end: int

    @classmethod
    def around(cls, target: int, reach: int, count: int) -> _Window:
        return cls(target, max(1, target - reach), min(count, target + reach + 1))

    def best(self, changes: Integers) -> int:
        """The place of the greatest change, the nearest to the target if there are several; the target if nothing changes."""
        if not changes.any():
            return self.target
        greatest = self.first + np.flatnonzero(changes == changes.max())
        return int(greatest[np.argmin(np.abs(greatest - self.target))])


def _changes(rows: pa.Table | pa.RecordBatch, ordering: Ordering) -> Integers:
    """How much the keys change from the previous row to each row, 0 if they are equal. The rows are in order."""
    changes = np.zeros(rows.num_rows, dtype=np.int64)
    for count in range(1, len(ordering.keys) + 1):
        prefix = (key_planes(rows, key) for key in ordering.keys[:count])
        # A change of the first key begins a new key in every prefix; a change of the last key only in the longest.
        changes += ordered(prefix, rows.num_rows).begins
    return changes
