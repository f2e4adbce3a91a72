"""Maps deleted positions in the sources to positions in an output that kept their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.task import Reading, RewriteTask, SlicePart


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
