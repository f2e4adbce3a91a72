"""How far open runs are, for whoever looks from another process, and who wants one to stop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from lakewarden.state.database import State
from lakewarden.state.schema import run_cancels, run_progress
from lakewarden.state.upsert import upsert


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a run was at that time. `total_bytes` 0: how much there is, is not known."""

    what: str
    done_bytes: int
    total_bytes: int
    note: str
    at: datetime

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "note": self.note,
            "at": self.at.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class Cancel:
    run_id: str
    by: str
    at: datetime


class RunProgress:
    def __init__(self, state: State) -> None:
        self._state = state

    def put(self, run_id: str, moment: Moment) -> None:
        row = {"run_id": run_id, **{name: getattr(moment, name) for name in Moment.__slots__}}
        with self._state.write() as connection:
            upsert(connection, run_progress, row, ["run_id"])

    def get(self, run_id: str) -> Moment | None:
        with self._state.read() as connection:
            row = connection.execute(
                select(run_progress).where(run_progress.c.run_id == run_id)
            ).one_or_none()
        return Moment(row.what, row.done_bytes, row.total_bytes, row.note, row.at) if row else None

    def cancel(self, run_id: str, by: str, now: datetime) -> None:
        """Whoever drives the run stops it cleanly within seconds. One that is over does not change."""
        with self._state.write() as connection:
            upsert(connection, run_cancels, {"run_id": run_id, "by": by, "at": now}, ["run_id"])

    def cancelled(self, run_id: str) -> Cancel | None:
        with self._state.read() as connection:
            row = connection.execute(select(run_cancels).where(run_cancels.c.run_id == run_id)).one_or_none()
        return Cancel(row.run_id, row.by, row.at) if row else None
