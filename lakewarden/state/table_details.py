"""Table details in the state database: complete for a few tables, and narrow rows for all of them.

The details of one table are tens of kilobytes, and a lake has thousands of tables. The list of holds and the
graph of tables cannot read them all, so they use the narrow rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, delete, select

from lakewarden.state.database import State
from lakewarden.state.schema import painted_holds, painted_inputs, table_health

# The most values in one query.
_AT_ONCE = 500


class StoredDetails:
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
