"""The proof that no table needs a file: the files that every table reaches, and when each table was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakewarden.config.aliases import Aliases
from lakewarden.model.location import hashes
from lakewarden.model.run import Owner
from lakewarden.tables.reachability import ReachableFiles, contains

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Proof:
    """The files that every table needs, first the table they were trashed for. A proof is complete, or it is not made."""

    reached: tuple[ReachableFiles, ...]
    # By name, when each table was last asked for its pointer and each catalog for its list. Two names may lead to one table.
    read_at: Mapping[str, datetime]
    aliases: Aliases = field(default_factory=Aliases)

    @property
    def made_at(self) -> datetime:
        """When the oldest of the readings was made."""
        return min(self.read_at.values())

    def stale(self, now: datetime, age: timedelta) -> str | None:
        """The first reading that differs from now by more than `age`, also one in the future: setting a clock
        back makes none younger.
        """
        return next((name for name, at in self.read_at.items() if abs(now - at) > age), None)

    def names(self, paths: pa.Array | pa.ChunkedArray | Sequence[str], numbers: Any = None) -> Any:
        """For each path, whether any table needs it under any of its names: an array of booleans.

        `numbers` are the hashes of the paths, if they are already computed.
        """
        import numpy as np

        found = self._holds(hashes(paths) if numbers is None else numbers)
        if self.aliases.same:
            unknown = [(place, _text(paths[place])) for place in np.flatnonzero(~found).tolist()]
            more = [(place, name) for place, path in unknown for name in self.aliases.spellings(path)[1:]]
            needed = self._holds(hashes([name for _, name in more]))
            found[[place for (place, _), is_needed in zip(more, needed, strict=True) if is_needed]] = True
        return found

    def _holds(self, numbers: Any) -> Any:
        import numpy as np

        needed = np.zeros(len(numbers), dtype=bool)
        for each in self.reached:
            needed |= contains(each.numbers, numbers)
        return needed

    def named_by(self, path: str) -> str | None:
        """The first table that needs this file."""
        names = self.aliases.spellings(path)
        return next((str(each.table) for each in self.reached if each.names(names).any()), None)

    def to_dict(self) -> dict[str, Any]:
        """The evidence for the journal: the snapshots of the first table by id, the other tables by their metadata file."""
        tables = [each.to_dict() for each in self.reached]
        own = [list(each.snapshot_ids) for each in self.reached[:1]]
        return {
            "made_at": self.made_at.isoformat(),
            "tables": tables,
            "snapshot_ids": own[0] if own else [],
        }


@dataclass(frozen=True, slots=True)
class Term:
    """A run's right to act. `seconds` asks the journal whether the run is open, still belongs to this owner and
    has the newest lease. It returns how long that stays true without further news; 0 if it is not true.
    """

    run_id: str
    owner: Owner
    seconds: Callable[[], float]


def _text(path: Any) -> str:
    return path if isinstance(path, str) else str(path.as_py())
