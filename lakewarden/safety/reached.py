"""What a table needs, as a set that can be asked about millions of paths at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewarden.location import hashes
from lakewarden.model import TableRef

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Reached:
    """Every file that these snapshots need, and the table's own metadata. Complete: who makes one raises instead of guessing.

    `numbers` are the sorted hashes of all paths in normal form. That a file is named may be said of one that only shares
    another's number, never the other way round.
    """

    table: TableRef
    uuid: str
    metadata_location: str
    snapshot_ids: tuple[int, ...]
    numbers: Any
    hints: Any = None  # of those, hashes of files that need not be there

    def names(self, paths: pa.Array | pa.ChunkedArray | Sequence[str]) -> Any:
        """For each path whether the table needs it: an array of booleans."""
        return contains(self.numbers, hashes(paths))

    def to_dict(self) -> dict[str, Any]:
        """What was looked at, for the journal."""
        return {
            "table": str(self.table),
            "uuid": self.uuid,
            "metadata": self.metadata_location,
            "snapshots": len(self.snapshot_ids),
            "files": len(self.numbers),
        }


def contains(sorted_numbers: Any, wanted: Any) -> Any:
    """For each of `wanted` whether it is among the sorted numbers."""
    import numpy as np

    if not len(sorted_numbers):
        return np.zeros(len(wanted), dtype=bool)
    places = np.searchsorted(sorted_numbers, wanted)
    return sorted_numbers[np.minimum(places, len(sorted_numbers) - 1)] == wanted
