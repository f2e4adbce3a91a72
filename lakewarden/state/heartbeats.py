"""Heartbeats: writers that say they are at a table, so that files nobody names yet are left to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, select

from lakewarden.state.database import State
from lakewarden.state.schema import heartbeats
from lakewarden.state.upsert import upsert


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A writer as it last spoke. Without prefixes it may be writing anywhere in the table."""

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


class Heartbeats:
    def __init__(self, state: State) -> None:
        self._state = state

    def beat(
        self, table: str, writer: str, host: str, prefixes: Sequence[str], ttl: timedelta, now: datetime
    ) -> Heartbeat:
        """The writer is alive. It started when it was first heard of, unless it fell silent since.

        Each beat says all its prefixes; those of the beat before count no longer.
        """
        with self._state.write() as connection:
            row = connection.execute(select(heartbeats).where(_of(table, writer))).one_or_none()
            known = _heartbeat(row) if row else None
            started = known.started_at if known is not None and known.live(now) else now
            beat = Heartbeat(str(table), writer, host, started, now, ttl, tuple(prefixes))
            upsert(connection, heartbeats, _row(beat), ["table_name", "writer"])
        return beat

    def stop(self, table: str, writer: str) -> bool:
        """False when no such writer was known."""
        with self._state.write() as connection:
            return connection.execute(delete(heartbeats).where(_of(table, writer))).rowcount == 1

    def list(self, table: str | None = None) -> tuple[Heartbeat, ...]:
        """Of one table or of all; also those that fell silent."""
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
