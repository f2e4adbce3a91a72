"""The audit log: operators' actions in the console and the REST API, and counts of commits rejected for
missing lineage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from lakewarden.model.plain import Plain
from lakewarden.state.database import State
from lakewarden.state.schema import lineage_rejections, operator_actions


@dataclass(frozen=True, slots=True)
class OperatorAction(Plain):
    """`outcome` is `begun` until the action ends, then `done`, `refused` or `failed`. `detail` never contains
    a secret."""

    at: datetime
    who: str
    role: str
    action: str
    target: str
    outcome: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""


class OperatorActions:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, action: OperatorAction) -> int:
        """Returns the number of the new row."""
        row = {name: getattr(action, name) for name in OperatorAction.__slots__}
        with self._state.write() as connection:
            new = insert(operator_actions).values({**row, "detail": dict(action.detail)})
            return int(connection.execute(new.returning(operator_actions.c.id)).scalar_one())

    def end(self, row: int, outcome: str, detail: Mapping[str, Any]) -> None:
        """Store the outcome of the action."""
        mine = update(operator_actions).where(operator_actions.c.id == row)
        with self._state.write() as connection:
            connection.execute(mine.values(outcome=outcome, detail=dict(detail)))

    def trim(self, role: str, most: int) -> int:
        """Delete all but the newest `most` rows of this role; returns the number of deleted rows."""
        of_role = operator_actions.c.role == role
        newest = select(operator_actions.c.id).where(of_role).order_by(operator_actions.c.id.desc())
        with self._state.write() as connection:
            last = connection.execute(newest.offset(most).limit(1)).scalar()
            if last is None:
                return 0
            gone = delete(operator_actions).where(of_role, operator_actions.c.id <= last)
            return connection.execute(gone).rowcount

    def list(self, target: str | None = None, limit: int = 100) -> tuple[OperatorAction, ...]:
        """Actions, newest first."""
        wanted = select(operator_actions).order_by(operator_actions.c.id.desc()).limit(limit)
        if target is not None:
            wanted = wanted.where(operator_actions.c.target == target)
        with self._state.read() as connection:
            rows = connection.execute(wanted).all()
        return tuple(
            OperatorAction(
                row.at, row.who, row.role, row.action, row.target, row.outcome, row.detail, row.address
            )
            for row in rows
        )


@dataclass(frozen=True, slots=True)
class RejectedCommit(Plain):
    """`door` is where the commit was stopped: job, pyiceberg or gateway. `reason` is that of the newest
    rejection."""

    table: str
    door: str
    count: int
    at: datetime
    reason: str

    JSON_KEYS = "table door lineage_validation_failures_total=count last_at=at last_reason=reason"


class Rejections:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, table: str, door: str, reason: str, now: datetime, count: int = 1) -> None:
        """`count` adds several rejections at once."""
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

    def list(self, table: str | None = None) -> tuple[RejectedCommit, ...]:
        wanted = select(lineage_rejections).order_by(
            lineage_rejections.c.table_name, lineage_rejections.c.door
        )
        if table is not None:
            wanted = wanted.where(lineage_rejections.c.table_name == table)
        with self._state.read() as connection:
            return tuple(
                RejectedCommit(row.table_name, row.door, row.total, row.last_at, row.last_reason)
                for row in connection.execute(wanted)
            )
