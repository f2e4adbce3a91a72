"""What `lakewarden migrate` did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from lakewarden.state.database import Migrated


@dataclass(frozen=True, slots=True)
class MigrateReport:
    done: Migrated
    started_again: int | None = None  # verdicts whose grace started again, where that was asked for

    def to_dict(self) -> dict[str, Any]:
        return {
            "database": self.done.database,
            "before": self.done.before,
            "after": self.done.after,
            "changed": self.done.before != self.done.after,
            "graces_started_again": self.started_again,
        }

    def render(self, width: int) -> Text:
        done = self.done
        told = f"{done.database}: schema {done.before or 'none'} → {done.after}"
        if done.before == done.after:
            told = f"{done.database} has schema {done.after} already: nothing to do"
        if self.started_again is not None:
            told += f"\nthe grace of every trashed file starts again now ({self.started_again:,} verdicts)"
        return Text(told)
