"""The deleted rows of one file as one bit per row: memory depends on its row count, not on the number of deletes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
