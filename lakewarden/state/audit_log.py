"""What operators did through the console and the REST API: who, when, what, on what, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select, update

from lakewarden.state.database import State
from lakewarden.state.schema import operator_actions


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """`outcome` is `done`, `refused` or `failed`, and `begun` until that is known; `detail` has no secret."""

    at: datetime
    who: str
    role: str
    action: str
    target: str
    outcome: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "who": self.who,
            "role": self.role,
            "action": self.action,
            "target": self.target,
            "outcome": self.outcome,
            "detail": dict(self.detail),
            "address": self.address,
        }


class OperatorActions:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, action: OperatorAction) -> int:
        """The number of its row."""
        row = {name: getattr(action, name) for name in OperatorAction.__slots__}
        with self._state.write() as connection:
            new = insert(operator_actions).values({**row, "detail": dict(action.detail)})
            return int(connection.execute(new.returning(operator_actions.c.id)).scalar_one())

    def end(self, row: int, outcome: str, detail: Mapping[str, Any]) -> None:
        """What became of it."""
        mine = update(operator_actions).where(operator_actions.c.id == row)
        with self._state.write() as connection:
            connection.execute(mine.values(outcome=outcome, detail=dict(detail)))

    def trim(self, role: str, most: int) -> int:
        """Of rows of this role the newest so many stay; how many went."""
        of_role = operator_actions.c.role == role
        newest = select(operator_actions.c.id).where(of_role).order_by(operator_actions.c.id.desc())
        with self._state.write() as connection:
            last = connection.execute(newest.offset(most).limit(1)).scalar()
            if last is None:
                return 0
            gone = delete(operator_actions).where(of_role, operator_actions.c.id <= last)
            return connection.execute(gone).rowcount

    def list(self, target: str | None = None, limit: int = 100) -> tuple[OperatorAction, ...]:
        """The newest first."""
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
