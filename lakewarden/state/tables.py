"""Tables as last read. Commands that start no Spark take a table's own policy properties from here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from lakewarden.model.table import TableView, cold_properties
from lakewarden.model.table_name import TableRef
from lakewarden.state.database import State
from lakewarden.state.rows import keep_first, upsert
from lakewarden.state.schema import homes, seen_tables

# Rows per insert statement.
_AT_ONCE = 500
# Lakewarden's own properties, and the formats' retention properties.
_OF_A_POLICY = ("lakewarden.", "snapshot.", "partition.", "history.expire.max-ref-age-ms")


@dataclass(frozen=True, slots=True)
class SeenTable:
    uuid: str
    properties: Mapping[str, str]
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """The location and name of a table when it was first read."""

    uuid: str
    name: str
    location: str
    since: datetime


class SeenTables:
    def __init__(self, state: State) -> None:
        self._state = state

    def saw(self, view: TableView, now: datetime) -> None:
        """Store a table. Only policy properties and the colder tier's source are stored: other properties may
        contain secrets."""
        self.saw_all((view,), now)

    def saw_all(self, views: Iterable[TableView], now: datetime) -> None:
        """The same for many tables, in one transaction."""
        views = tuple(views)
        with self._state.write() as connection:
            _remember_homes(connection, views, now)
            for view in views:
                ours = {key: value for key, value in view.properties.items() if key.startswith(_OF_A_POLICY)}
                ours |= cold_properties(view.properties)
                row = {"table_name": str(view.ref), "uuid": view.uuid, "properties": ours, "seen_at": now}
                upsert(connection, seen_tables, row, ["table_name"])

    def get(self, table: TableRef) -> SeenTable | None:
        wanted = select(seen_tables).where(seen_tables.c.table_name == str(table))
        with self._state.read() as connection:
            row = connection.execute(wanted).one_or_none()
        return SeenTable(row.uuid, row.properties, row.seen_at) if row else None

    def names(self) -> tuple[str, ...]:
        """The name of every table that was ever read."""
        with self._state.read() as connection:
            return tuple(connection.execute(select(seen_tables.c.table_name)).scalars())

    def all(self) -> dict[str, SeenTable]:
        """Every table that was ever read, by name."""
        with self._state.read() as connection:
            rows = connection.execute(select(seen_tables).order_by(seen_tables.c.table_name)).all()
        return {row.table_name: SeenTable(row.uuid, row.properties, row.seen_at) for row in rows}

    def home(self, uuid: str) -> str | None:
        """The location of the table when it was first read."""
        with self._state.read() as connection:
            found: str | None = connection.execute(
                select(homes.c.location).where(homes.c.table_uuid == uuid)
            ).scalar_one_or_none()
        return found

    def first_seen(self) -> list[FirstSeen]:
        """Every table that was ever read, earliest first."""
        ordered = select(homes).order_by(homes.c.since, homes.c.table_uuid)
        with self._state.read() as connection:
            rows = connection.execute(ordered).all()
        return [FirstSeen(row.table_uuid, row.table_name, row.location, row.since) for row in rows]


def _remember_homes(connection: Connection, views: Sequence[TableView], now: datetime) -> None:
    """The first location counts: the row of a known table is not changed."""
    rows = {
        each.uuid: {
            "table_uuid": each.uuid,
            "table_name": str(each.ref),
            "location": each.location,
            "since": now,
        }
        for each in views
    }
    for start in range(0, len(rows), _AT_ONCE):
        keep_first(connection, homes, list(rows.values())[start : start + _AT_ONCE], ["table_uuid"])
