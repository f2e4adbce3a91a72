"""The result of one look at the whole fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sweep:
    """One look at the whole fleet. `behind` is the age of the oldest earlier look at any table."""

    tables: int
    changed: int
    failed: int
    forgotten: int
    raised: int
    cleared: int
    seconds: float
    behind: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "tables": self.tables,
            "changed": self.changed,
            "failed": self.failed,
            "forgotten": self.forgotten,
            "warnings_raised": self.raised,
            "warnings_cleared": self.cleared,
            "seconds": round(self.seconds, 3),
            "behind_seconds": round(self.behind, 1),
        }
