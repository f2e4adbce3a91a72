"""Runs as a list is made of them: found by table, job and state, without their plans, which can be long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select

from lakewarden.model.run import Run
from lakewarden.state.database import State
from lakewarden.state.runs import read_run
from lakewarden.state.schema import runs

_LONG = ("plan", "policy")


@dataclass(frozen=True, slots=True)
class Sought:
    """Which runs: of tables whose name holds, or (`exact`) is, the text, of this job, in this state; empty asks for all."""

    table: str = ""
    job: str = ""
    state: str = ""
    exact: bool = False


class RunSearch:
    def __init__(self, state: State) -> None:
        self._state = state

    def find(self, sought: Sought, limit: int = 50, offset: int = 0) -> tuple[Run, ...]:
        """The newest first."""
        wanted = _brief().order_by(runs.c.started_at.desc(), runs.c.id.desc()).limit(limit).offset(offset)
        if sought.table:
            name = runs.c.table_name
            wanted = wanted.where(
                name == sought.table if sought.exact else name.contains(sought.table, autoescape=True)
            )
        if sought.job:
            wanted = wanted.where(runs.c.job == sought.job)
        if sought.state:
            wanted = wanted.where(runs.c.state == sought.state)
        return self._all(wanted)

    def running(self) -> tuple[Run, ...]:
        """Those under way, the oldest first."""
        return self._all(_brief().where(runs.c.ended_at.is_(None)).order_by(runs.c.started_at, runs.c.id))

    def _all(self, wanted: Select[Any]) -> tuple[Run, ...]:
        with self._state.read() as connection:
            return tuple(read_run(row, brief=True) for row in connection.execute(wanted))


def _brief() -> Select[Any]:
    return select(*(each for each in runs.c if each.name not in _LONG))
