"""That nobody needs a file: what every table that could name it reached, at one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewarden.model import Owner
from lakewarden.paths import hashes
from lakewarden.safety.reached import Reached, contains

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Proof:
    """What every table that could name the files needs, the table they were doomed for first. Complete, or it is not made."""

    reached: tuple[Reached, ...]
    made_at: datetime

    def names(self, paths: pa.Array | pa.ChunkedArray | Sequence[str]) -> Any:
        """For each path whether any of the tables needs it: an array of booleans."""
        return self.holds(hashes(paths))

    def holds(self, numbers: Any) -> Any:
        """The same for paths that were hashed already."""
        import numpy as np

        found = np.zeros(len(numbers), dtype=bool)
        for each in self.reached:
            found |= contains(each.numbers, numbers)
        return found

    def named_by(self, path: str) -> str | None:
        """The first table that needs this file."""
        return next((str(each.table) for each in self.reached if each.names([path])[0]), None)

    def to_dict(self) -> dict[str, Any]:
        """What was looked at, for the journal: the snapshots of the first table by id, of the others by their metadata file."""
        tables = [each.to_dict() for each in self.reached]
        own = [list(each.snapshot_ids) for each in self.reached[:1]]
        return {
            "made_at": self.made_at.isoformat(),
            "tables": tables,
            "snapshot_ids": own[0] if own else [],
        }


@dataclass(frozen=True, slots=True)
class Term:
    """A run's right to act. `seconds` asks the journal, which knows whether the run is open, still this owner's and under the
    newest lease, and answers how long that holds if nothing more is heard; 0 where it does not."""

    run_id: str
    owner: Owner
    seconds: Callable[[], float]
