"""What `lakewarden migrate` did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from lakewarden.state.database import Migrated


@dataclass(frozen=True, slots=True)
class MigrateReport:
    done: Migrated

    def to_dict(self) -> dict[str, Any]:
        return {
            "database": self.done.database,
            "before": self.done.before,
            "after": self.done.after,
            "changed": self.done.before != self.done.after,
        }

    def render(self, width: int) -> Text:
        done = self.done
        if done.before == done.after:
            return Text(f"{done.database} has schema {done.after} already: nothing to do")
        return Text(f"{done.database}: schema {done.before or 'none'} → {done.after}")
