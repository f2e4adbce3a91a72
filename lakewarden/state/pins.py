"""Pins: snapshots that readers asked to keep. A pin counts from the moment its row is committed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, insert, or_, select, update

from lakewarden.state.database import State
from lakewarden.state.generation import protecting
from lakewarden.state.schema import pins

# What the tag that mirrors a pin is called, before the pin's id.
MIRROR = "lakewarden-pin-"


@dataclass(frozen=True, slots=True)
class Pin:
    """A reader's claim on one snapshot. `expires_at` None: until it is taken away. `tag` is its mirror in the table."""

    id: str
    table: str
    table_uuid: str
    snapshot_id: int
    holder: str
    purpose: str
    created_at: datetime
    expires_at: datetime | None = None
    tag: str | None = None

    def live(self, now: datetime) -> bool:
        return self.expires_at is None or self.expires_at > now


class Pins:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, pin: Pin) -> None:
        row = {
            "id": pin.id,
            "table_name": pin.table,
            "table_uuid": pin.table_uuid,
            "snapshot_id": pin.snapshot_id,
            "holder": pin.holder,
            "purpose": pin.purpose,
            "created_at": pin.created_at,
            "expires_at": pin.expires_at,
            "tag": pin.tag,
        }
        with protecting(self._state) as connection:
            connection.execute(insert(pins).values(row))

    def get(self, pin_id: str) -> Pin | None:
        with self._state.read() as connection:
            row = connection.execute(select(pins).where(pins.c.id == pin_id)).one_or_none()
        return _pin(row) if row else None

    def list(self, table: str | None = None) -> tuple[Pin, ...]:
        """Also those whose time is over, the oldest first."""
        wanted = select(pins).order_by(pins.c.created_at, pins.c.id)
        if table is not None:
            wanted = wanted.where(pins.c.table_name == str(table))
        return self._all(wanted)

    def live(self, table_uuid: str, now: datetime) -> tuple[Pin, ...]:
        """Those that count now. By the table's uuid: a pin outlives a rename, and says nothing about a namesake."""
        wanted = select(pins).where(pins.c.table_uuid == table_uuid, _live(now))
        return self._all(wanted.order_by(pins.c.created_at, pins.c.id))

    def renew(self, pin_id: str, expires_at: datetime | None, now: datetime) -> Pin | None:
        """The pin with its new end; None when its time was over already, because its snapshot may be gone."""
        change = update(pins).where(pins.c.id == pin_id, _live(now)).values(expires_at=expires_at)
        with protecting(self._state) as connection:
            row = connection.execute(change.returning(*pins.c)).one_or_none()
        return _pin(row) if row else None

    def end(self, pin: Pin) -> None:
        """Over, on every host's clock; the row stays until what belongs to it is gone too."""
        with self._state.write() as connection:
            connection.execute(update(pins).where(pins.c.id == pin.id).values(expires_at=pin.created_at))

    def remove(self, pin_id: str) -> bool:
        with self._state.write() as connection:
            return connection.execute(delete(pins).where(pins.c.id == pin_id)).rowcount == 1

    def _all(self, wanted: Any) -> tuple[Pin, ...]:
        with self._state.read() as connection:
            return tuple(_pin(row) for row in connection.execute(wanted))


def _live(now: datetime) -> ColumnElement[bool]:
    return or_(pins.c.expires_at.is_(None), pins.c.expires_at > now)


def _pin(row: Row[Any]) -> Pin:
    return Pin(
        row.id,
        row.table_name,
        row.table_uuid,
        row.snapshot_id,
        row.holder,
        row.purpose,
        row.created_at,
        row.expires_at,
        row.tag,
    )
