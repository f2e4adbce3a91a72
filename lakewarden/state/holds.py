"""Holds that users of a table register: pins of readers, heartbeats of writers, staged loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, insert, or_, select, update

from lakewarden.model.hold import Hold, HoldKind
from lakewarden.state.database import State, upsert
from lakewarden.state.generation import protecting
from lakewarden.state.schema import heartbeats, loads, pins

# The name of a pin's mirror tag: this prefix and the pin's id.
MIRROR = "lakewarden-pin-"


@dataclass(frozen=True, slots=True)
class Pin:
    """A reader's claim on one snapshot. `expires_at` is None for a pin without end. `tag` is its mirror in
    the table."""

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

    def hold(self) -> Hold:
        return Hold(
            HoldKind.PIN,
            self.id,
            self.holder,
            self.purpose,
            self.snapshot_id,
            since=self.created_at,
            until=self.expires_at,
        )


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
        """Pins, oldest first, including expired ones."""
        wanted = select(pins).order_by(pins.c.created_at, pins.c.id)
        if table is not None:
            wanted = wanted.where(pins.c.table_name == str(table))
        return self._all(wanted)

    def live(self, table_uuid: str, now: datetime) -> tuple[Pin, ...]:
        """Pins that are active now, by the table's uuid: a pin survives a rename, and does not apply to
        another table of the same name."""
        wanted = select(pins).where(pins.c.table_uuid == table_uuid, _live(now))
        return self._all(wanted.order_by(pins.c.created_at, pins.c.id))

    def renew(self, pin_id: str, expires_at: datetime | None, now: datetime) -> Pin | None:
        """The pin with its new end. None if it had already expired, because its snapshot may be gone."""
        change = update(pins).where(pins.c.id == pin_id, _live(now)).values(expires_at=expires_at)
        with protecting(self._state) as connection:
            row = connection.execute(change.returning(*pins.c)).one_or_none()
        return _pin(row) if row else None

    def end(self, pin: Pin) -> None:
        """End the pin for every host's clock. The row stays until its mirror tag is removed too."""
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


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A writer and its last heartbeat. Without prefixes it may write anywhere in the table."""

    table: str
    writer: str
    host: str
    started_at: datetime
    beat_at: datetime
    ttl: timedelta
    prefixes: tuple[str, ...] = ()

    @property
    def until(self) -> datetime:
        return self.beat_at + self.ttl

    def live(self, now: datetime) -> bool:
        return self.until > now

    def hold(self) -> Hold:
        return Hold(
            HoldKind.WRITER,
            self.writer,
            self.host,
            prefixes=self.prefixes,
            since=self.started_at,
            until=self.until,
        )


class Heartbeats:
    def __init__(self, state: State) -> None:
        self._state = state

    def beat(
        self, table: str, writer: str, host: str, prefixes: Sequence[str], ttl: timedelta, now: datetime
    ) -> Heartbeat:
        """Record a heartbeat. The writer's start is its first heartbeat, or its first one after it expired.

        Each heartbeat replaces the prefixes of the one before.
        """
        with self._state.write() as connection:
            row = connection.execute(select(heartbeats).where(_of(table, writer))).one_or_none()
            known = _heartbeat(row) if row else None
            started = known.started_at if known is not None and known.live(now) else now
            beat = Heartbeat(str(table), writer, host, started, now, ttl, tuple(prefixes))
            upsert(connection, heartbeats, _row(beat), ["table_name", "writer"])
        return beat

    def stop(self, table: str, writer: str) -> bool:
        """Remove the writer; False if it is unknown."""
        with self._state.write() as connection:
            return connection.execute(delete(heartbeats).where(_of(table, writer))).rowcount == 1

    def list(self, table: str | None = None) -> tuple[Heartbeat, ...]:
        """Heartbeats of one table or of all, including expired ones."""
        wanted = select(heartbeats)
        if table is not None:
            wanted = wanted.where(heartbeats.c.table_name == str(table))
        with self._state.read() as connection:
            rows = connection.execute(wanted.order_by(heartbeats.c.started_at, heartbeats.c.writer)).all()
        return tuple(_heartbeat(row) for row in rows)


def _of(table: str, writer: str) -> ColumnElement[bool]:
    return and_(heartbeats.c.table_name == str(table), heartbeats.c.writer == writer)


def _row(beat: Heartbeat) -> dict[str, Any]:
    return {
        "table_name": beat.table,
        "writer": beat.writer,
        "host": beat.host,
        "started_at": beat.started_at,
        "beat_at": beat.beat_at,
        "ttl_seconds": max(1, round(beat.ttl.total_seconds())),
        "prefixes": list(beat.prefixes),
    }


def _heartbeat(row: Row[Any]) -> Heartbeat:
    ttl = timedelta(seconds=row.ttl_seconds)
    return Heartbeat(
        row.table_name, row.writer, row.host, row.started_at, row.beat_at, ttl, tuple(row.prefixes)
    )


class LoadState(StrEnum):
    OPEN = "open"
    ADOPTED = "adopted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Load:
    """Files that are being added to a table. `run_id` is the newest run that tried to adopt them."""

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
        """Whether the load still holds its files."""
        return self.state is LoadState.OPEN and (self.expires_at is None or self.expires_at > now)

    def hold(self) -> Hold:
        return Hold(
            HoldKind.LOAD,
            self.id,
            self.holder,
            self.purpose,
            paths=self.paths,
            prefixes=self.prefixes,
            since=self.created_at,
            until=self.expires_at,
        )


class Loads:
    """Staged loads. A load leaves the state `open` once, and only if it has not changed since the caller read
    it: adopting and failing cannot both succeed."""

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
        """Loads, oldest first."""
        wanted = select(loads).order_by(loads.c.created_at, loads.c.id)
        if table is not None:
            wanted = wanted.where(loads.c.table_name == str(table))
        if state is not None:
            wanted = wanted.where(loads.c.state == state.value)
        return self._all(wanted)

    def live(self, now: datetime) -> tuple[Load, ...]:
        """Loads that hold files now, of every table: a load may stage files in another table's folders."""
        held = or_(loads.c.expires_at.is_(None), loads.c.expires_at > now)
        wanted = select(loads).where(loads.c.state == LoadState.OPEN.value, held)
        return self._all(wanted.order_by(loads.c.created_at, loads.c.id))

    def claim(self, seen: Load, run_id: str, paths: Sequence[str]) -> bool:
        """This run adopts the load with these paths. False if the load changed since the caller read it."""
        return self._change(seen, {"run_id": run_id, "paths": list(paths)})

    def end(self, seen: Load, state: LoadState, now: datetime) -> bool:
        """End the load. False if it changed since the caller read it."""
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
