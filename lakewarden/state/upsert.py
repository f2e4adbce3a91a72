"""Insert a row, or change or keep the one that is there: the same words on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def upsert(connection: Connection, table: Table, row: Mapping[str, Any], keys: Sequence[str]) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    new = dialect.insert(table).values(dict(row))
    changes = {name: new.excluded[name] for name in row if name not in keys}
    connection.execute(new.on_conflict_do_update(index_elements=list(keys), set_=changes))


def keep_first(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> None:
    """Insert rows; one that is there already stays as it is."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    new = dialect.insert(table).values([dict(each) for each in rows])
    connection.execute(new.on_conflict_do_nothing(index_elements=list(keys)))
