"""Tables as last read. Commands that start no Spark take a table's own policy properties from here. Table
details are here too: complete for a few tables, and narrow rows for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, delete, select

from lakewarden.model.table import TableRef, TableView, cold_properties
from lakewarden.state.database import State, keep_first, upsert
from lakewarden.state.schema import homes, painted_holds, painted_inputs, seen_tables, table_health

# Rows per insert statement, and values per query.
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


class StoredDetails:
    """The complete details of a few tables."""

    def __init__(self, state: State) -> None:
        self._state = state

    def names(self) -> tuple[str, ...]:
        """Tables that have a health row."""
        with self._state.read() as connection:
            return tuple(connection.execute(select(table_health.c.table_name)).scalars())

    def of(self, tables: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """The details of these tables. Tables without details are left out."""
        found: dict[str, Mapping[str, Any]] = {}
        with self._state.read() as connection:
            for some in _slices(tables):
                wanted = select(table_health.c.table_name, table_health.c.portrait)
                rows = connection.execute(wanted.where(table_health.c.table_name.in_(some)))
                found |= {row.table_name: row.portrait for row in rows}
        return found


def _slices(tables: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(tables), _AT_ONCE):
        yield tables[start : start + _AT_ONCE]


@dataclass(frozen=True, slots=True)
class InputRow:
    """A live commit that names its inputs: `inputs` is its `input.snapshot_ids`, as far as the details
    contain it."""

    table: str
    snapshot_id: int
    at: datetime
    operation: str
    inputs: str


class DetailIndex:
    """The narrow rows of all tables. The details of one table are tens of kilobytes, and a lake has thousands
    of tables. The list of holds and the graph of tables cannot read them all, so they use the narrow rows."""

    def __init__(self, state: State) -> None:
        self._state = state

    def holds(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Every hold in all details with its table: a stored `HoldLine`."""
        wanted = select(painted_holds.c.table_name, painted_holds.c.line)
        with self._state.read() as connection:
            rows = connection.execute(wanted.order_by(painted_holds.c.table_name, painted_holds.c.place))
            return tuple((row.table_name, row.line) for row in rows)

    def inputs(self) -> tuple[InputRow, ...]:
        """The commits with inputs of every table."""
        return self._inputs(select(painted_inputs))

    def inputs_naming(self, text: str) -> tuple[InputRow, ...]:
        """Commits whose inputs contain the text, such as the name of a table."""
        return self._inputs(
            select(painted_inputs).where(painted_inputs.c.inputs.contains(text, autoescape=True))
        )

    def _inputs(self, wanted: Select[Any]) -> tuple[InputRow, ...]:
        with self._state.read() as connection:
            return tuple(InputRow(*row) for row in connection.execute(wanted))


def write_details(connection: Connection, table: str, portrait: Mapping[str, Any]) -> None:
    """Replace the narrow rows of this table."""
    wipe(connection, [table])
    for kind, rows in (
        (painted_holds, list(hold_rows(table, portrait))),
        (painted_inputs, list(input_rows(table, portrait))),
    ):
        if rows:
            connection.execute(kind.insert(), rows)


def wipe(connection: Connection, tables: Sequence[str]) -> None:
    for kind in (painted_holds, painted_inputs):
        connection.execute(delete(kind).where(kind.c.table_name.in_(tables)))


def hold_rows(table: str, portrait: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for place, line in enumerate(portrait.get("holds", ())):
        yield {"table_name": table, "place": place, "line": line}


def input_rows(table: str, portrait: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each snapshot once: an id repeats only if the details were built during a commit."""
    told = {line["id"]: line for line in portrait.get("snapshots", ()) if line.get("inputs")}
    for line in told.values():
        yield {
            "table_name": table,
            "snapshot_id": line["id"],
            "at": datetime.fromisoformat(line["at"]),
            "operation": line["operation"],
            "inputs": line["inputs"],
        }
