"""The deleted rows of one file as one bit per row: memory depends on its row count, not on the number of
deletes. `remap` maps deleted positions in the sources to positions in an output that kept their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.task import Reading, RewriteTask, SlicePart

# Bytes of bits unpacked at a time; they take eight times as much memory when unpacked.
_STEP = 1 << 17


class RowBits:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        # Allocated on first use: most files of a task have no deleted row.
        self._bits: npt.NDArray[np.uint8] | None = None

    def add(self, positions: npt.NDArray[np.int64]) -> None:
        """Delete rows by position. A position the file does not have deletes nothing."""
        positions = positions[(positions >= 0) & (positions < self._rows)]
        if len(positions):
            np.bitwise_or.at(
                self._allocated(), positions >> 3, np.left_shift(1, positions & 7).astype(np.uint8)
            )

    def add_page(self, start: int, page: npt.NDArray[np.uint8]) -> None:
        """Delete the rows whose bits are set in a page of bits. The page's first row is `start`, a multiple of 8."""
        if start >= self._rows:
            return
        bits = self._allocated()[start >> 3 :][: len(page)]
        bits |= page[: len(bits)]
        self._allocated()[-1] &= 0xFF >> (-self._rows % 8)

    def _allocated(self) -> npt.NDArray[np.uint8]:
        if self._bits is None:
            self._bits = np.zeros((self._rows + 7) // 8, np.uint8)
        return self._bits

    def survivors(self, position: int, rows: int) -> pa.Array | None:
        """For `rows` rows from `position` on, true for those that stay; None if all stay."""
        if self._bits is None:
            return None
        deleted = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(self._bits)], offset=position)
        return pc.invert(deleted) if deleted.true_count else None

    def positions(self) -> npt.NDArray[np.int64]:
        """Positions of all deleted rows, in order."""
        if self._bits is None:
            return np.empty(0, np.int64)
        steps = range(0, len(self._bits), _STEP)
        return np.concatenate([self._unpacked(first) for first in steps])

    def _unpacked(self, first: int) -> npt.NDArray[np.int64]:
        bits = self._allocated()[first : first + _STEP]
        return np.flatnonzero(np.unpackbits(bits, bitorder="little")) + first * 8


@dataclass(frozen=True, slots=True)
class RemapTask:
    """One output, the source of its rows, and the rewrite's own task with the new deletes instead of the old ones."""

    output: str
    parts: tuple[SlicePart, ...]
    rewrite: RewriteTask

    def with_deletes(
        self, deletes: tuple[DeleteFile, ...], applies_to: Sequence[frozenset[str]]
    ) -> RemapTask:
        slices = tuple(
            replace(
                part.slice,
                deletes=tuple(n for n, paths in enumerate(applies_to) if part.slice.path in paths),
            )
            for part in self.parts
        )
        return replace(self, rewrite=replace(self.rewrite, slices=slices, deletes=deletes))


def remap(task: RemapTask) -> NDArray[np.int64]:
    """Sorted positions in the output that the new deletes delete."""
    pa.set_cpu_count(1)
    reading = Reading(task.rewrite)
    struck = [
        _in_output(part, _struck(reading, number))
        for number, part in enumerate(task.parts)
        if task.rewrite.slices[number].deletes
    ]
    return np.sort(np.concatenate(struck)) if struck else np.empty(0, np.int64)


def _struck(reading: Reading, number: int) -> NDArray[np.int64]:
    """Positions of one source that are deleted now. Equality deletes need its keys; nothing else is read."""
    eraser = reading.eraser
    assert eraser is not None
    files = [reading.task.deletes[place] for place in reading.task.slices[number].deletes]
    # Rows deleted by a column that the table dropped are already known.
    keys = reading.columns({id_ for file in files for id_ in file.equality_ids})
    if keys.names:
        for position, batch in reading.keys(number, keys):
            eraser.survivors(number, position, batch)
    return eraser.erased(number)


def _in_output(part: SlicePart, struck: NDArray[np.int64]) -> NDArray[np.int64]:
    piece = part.slice
    struck = struck[(struck >= piece.from_row) & (struck < piece.to_row)]
    if part.erased is None or not len(part.erased):
        return struck - piece.from_row + part.first
    # A vector also holds the earlier deletes: those rows are not in the output.
    struck = np.setdiff1d(struck, part.erased, assume_unique=True)
    return struck - piece.from_row + part.first - np.searchsorted(part.erased, struck)
