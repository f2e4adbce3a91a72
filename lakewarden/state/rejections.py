"""Commits that were turned away for want of lineage, counted by table and by the door they came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from lakewarden.state.database import State
from lakewarden.state.schema import lineage_rejections


@dataclass(frozen=True, slots=True)
class Rejected:
    """`door` is where the commit was stopped: job, pyiceberg or gateway. `reason` is the newest one's."""

    table: str
    door: str
    count: int
    at: datetime
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "door": self.door,
            "lineage_validation_failures_total": self.count,
            "last_at": self.at.isoformat(),
            "last_reason": self.reason,
        }


class Rejections:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, table: str, door: str, reason: str, now: datetime, count: int = 1) -> None:
        """A door that turns away many at once adds them together."""
        row = {"table_name": table, "door": door, "total": count, "last_at": now, "last_reason": reason}
        with self._state.write() as connection:
            dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
            new = dialect.insert(lineage_rejections).values(row)
            changes: Mapping[str, Any] = {
                "total": lineage_rejections.c.total + new.excluded.total,
                "last_at": new.excluded.last_at,
                "last_reason": new.excluded.last_reason,
            }
            connection.execute(new.on_conflict_do_update(index_elements=["table_name", "door"], set_=changes))

    def list(self, table: str | None = None) -> tuple[Rejected, ...]:
        wanted = select(lineage_rejections).order_by(
            lineage_rejections.c.table_name, lineage_rejections.c.door
        )
        if table is not None:
            wanted = wanted.where(lineage_rejections.c.table_name == table)
        with self._state.read() as connection:
            return tuple(
                Rejected(row.table_name, row.door, row.total, row.last_at, row.last_reason)
                for row in connection.execute(wanted)
            )
