"""Staged loads: files that were written to become part of a table and are not yet. Open, then adopted or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, insert, or_, select, update

from lakewarden.state.database import State
from lakewarden.state.generation import protecting
from lakewarden.state.schema import loads


class LoadState(StrEnum):
    OPEN = "open"
    ADOPTED = "adopted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Load:
    """Files on their way into a table. `run_id` is the newest run that tried to adopt them."""

    id: str
    table: str
    table_uuid: str
    holder: str
    purpose: str
    state: LoadState
    paths: tuple[str, ...]
    prefixes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    run_id: str | None = None

    def live(self, now: datetime) -> bool:
        """Whether its files are held."""
        return self.state is LoadState.OPEN and (self.expires_at is None or self.expires_at > now)


class Loads:
    """A load leaves `open` once, and only for who saw it as it is: adopting and failing cannot both win."""

    def __init__(self, state: State) -> None:
        self._state = state

    def begin(self, load: Load) -> None:
        row = {
            "id": load.id,
            "table_name": load.table,
            "table_uuid": load.table_uuid,
            "holder": load.holder,
            "purpose": load.purpose,
            "state": load.state.value,
            "paths": list(load.paths),
            "prefixes": list(load.prefixes),
            "created_at": load.created_at,
            "expires_at": load.expires_at,
        }
        with protecting(self._state) as connection:
            connection.execute(insert(loads).values(row))

    def get(self, load_id: str) -> Load | None:
        with self._state.read() as connection:
            row = connection.execute(select(loads).where(loads.c.id == load_id)).one_or_none()
        return _load(row) if row else None

    def list(self, table: str | None = None, state: LoadState | None = None) -> tuple[Load, ...]:
        """The oldest first."""
        wanted = select(loads).order_by(loads.c.created_at, loads.c.id)
        if table is not None:
            wanted = wanted.where(loads.c.table_name == str(table))
        if state is not None:
            wanted = wanted.where(loads.c.state == state.value)
        return self._all(wanted)

    def live(self, now: datetime) -> tuple[Load, ...]:
        """Those whose files are held now, whichever table they are for: a load may stage files in another one's folders."""
        held = or_(loads.c.expires_at.is_(None), loads.c.expires_at > now)
        wanted = select(loads).where(loads.c.state == LoadState.OPEN.value, held)
        return self._all(wanted.order_by(loads.c.created_at, loads.c.id))

    def claim(self, seen: Load, run_id: str, paths: Sequence[str]) -> bool:
        """This run adopts it, with these paths. False when anyone else did something to it since it was seen."""
        return self._change(seen, {"run_id": run_id, "paths": list(paths)})

    def end(self, seen: Load, state: LoadState, now: datetime) -> bool:
        """False when anyone else did something to it since it was seen."""
        return self._change(seen, {"state": state.value, "ended_at": now})

    def _change(self, seen: Load, values: dict[str, Any]) -> bool:
        with self._state.write() as connection:
            return connection.execute(update(loads).where(_unchanged(seen)).values(values)).rowcount == 1

    def _all(self, wanted: Any) -> tuple[Load, ...]:
        with self._state.read() as connection:
            return tuple(_load(row) for row in connection.execute(wanted))


def _unchanged(seen: Load) -> ColumnElement[bool]:
    run = loads.c.run_id.is_(None) if seen.run_id is None else loads.c.run_id == seen.run_id
    return and_(loads.c.id == seen.id, loads.c.state == LoadState.OPEN.value, run)


def _load(row: Row[Any]) -> Load:
    return Load(
        row.id,
        row.table_name,
        row.table_uuid,
        row.holder,
        row.purpose,
        LoadState(row.state),
        tuple(row.paths),
        tuple(row.prefixes),
        row.created_at,
        row.expires_at,
        row.ended_at,
        row.run_id,
    )
