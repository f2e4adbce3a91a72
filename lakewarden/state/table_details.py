"""Portraits of several tables at once: what the health collector painted, see `health/table_details.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import select

from lakewarden.state.database import State
from lakewarden.state.schema import table_health

# Databases take so many values in one question.
_AT_ONCE = 500


class Portraits:
    def __init__(self, state: State) -> None:
        self._state = state

    def names(self) -> tuple[str, ...]:
        """Tables that were looked at."""
        with self._state.read() as connection:
            return tuple(connection.execute(select(table_health.c.table_name)).scalars())

    def of(self, tables: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """By table; those that nobody painted yet are not among them."""
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
