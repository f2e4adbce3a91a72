"""Table policies in the state database: the layer `table`, set by `lakewarden policy TABLE --set`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select

from lakewarden.state.database import State, upsert
from lakewarden.state.generation import protecting
from lakewarden.state.schema import table_policies


class StoredPolicies:
    """The stored values of each table, as written. They are checked by `lakewarden.policy` before they are
    stored."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get(self, table: str) -> Mapping[str, object]:
        wanted = (
            select(table_policies.c.key, table_policies.c.value)
            .where(_of(table))
            .order_by(table_policies.c.key)
        )
        with self._state.read() as connection:
            return {row.key: row.value for row in connection.execute(wanted)}

    def all(self) -> Mapping[str, Mapping[str, object]]:
        """The values of every table that has any, in one query."""
        wanted = select(table_policies.c.table_name, table_policies.c.key, table_policies.c.value)
        found: dict[str, dict[str, object]] = {}
        with self._state.read() as connection:
            for row in connection.execute(wanted.order_by(table_policies.c.table_name, table_policies.c.key)):
                found.setdefault(row.table_name, {})[row.key] = row.value
        return found

    def set(self, table: str, values: Mapping[str, object], operator: str | None, now: datetime) -> None:
        """Store all values or none; other keys are not changed."""
        with protecting(self._state) as connection:
            # In order of key, so that two transactions with the same keys wait for each other instead of deadlocking.
            for key, value in sorted(values.items()):
                row = {
                    "table_name": str(table),
                    "key": key,
                    "value": value,
                    "set_by": operator,
                    "set_at": now,
                }
                upsert(connection, table_policies, row, ["table_name", "key"])

    def unset(self, table: str, keys: Iterable[str]) -> None:
        """Remove values, so that the next layer applies. A key that is not stored is ignored."""
        with protecting(self._state) as connection:
            connection.execute(delete(table_policies).where(_of(table), table_policies.c.key.in_(list(keys))))

    def reset(self, table: str) -> None:
        """Remove all values stored for the table."""
        with protecting(self._state) as connection:
            connection.execute(delete(table_policies).where(_of(table)))


def _of(table: str) -> Any:
    return table_policies.c.table_name == str(table)
