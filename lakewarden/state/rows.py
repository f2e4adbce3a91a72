"""Insert or replace rows, insert rows if absent, and delete rows in slices. The same on SQLite and
PostgreSQL.

SQLite has one writer at a time, and the leader renews its lease by writing. A deletion that selected its rows
inside its own transaction once held that lock for eight seconds, on a thousand tables with nothing to delete,
and the leader lost its lease. So rows are selected in a read transaction, and deleted in slices with one
transaction each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from lakewarden import clock
from lakewarden.state.database import State

SLICE = 1000
# A process that waits for SQLite's lock retries every tenth of a second: without a gap between slices it would never get the lock.
_GAP = 0.02


def upsert(connection: Connection, table: Table, row: Mapping[str, Any], keys: Sequence[str]) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    new = dialect.insert(table).values(dict(row))
    changes = {name: new.excluded[name] for name in row if name not in keys}
    connection.execute(new.on_conflict_do_update(index_elements=list(keys), set_=changes))


def keep_first(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> None:
    """Insert rows; an existing row is not changed."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    new = dialect.insert(table).values([dict(each) for each in rows])
    connection.execute(new.on_conflict_do_nothing(index_elements=list(keys)))


def take_out(
    state: State, table: Table, keys: Iterable[Sequence[Any]], still: ColumnElement[bool] | None = None
) -> int:
    """Delete the rows with these primary keys; returns how many. `still` is a condition that must also hold
    when a row is deleted."""
    columns = list(table.primary_key.columns)
    names = [f"key_{each.name}" for each in columns]
    mine = and_(*(column == bindparam(name, type_=column.type) for column, name in zip(columns, names, strict=True)))  # fmt: skip
    gone = delete(table).where(mine if still is None else and_(mine, still))
    count = 0
    for some in _slices(keys):
        if count:
            clock.sleep(_GAP)
        with state.write() as connection:
            connection.execute(gone, [dict(zip(names, key, strict=True)) for key in some])
        count += len(some)
    return count


def take_out_where(state: State, table: Table, so: ColumnElement[bool], most: int) -> int:
    """Delete at most `most` rows that match the condition; returns how many."""
    wanted = select(*table.primary_key.columns).where(so).limit(most)
    with state.read() as connection:
        keys = connection.execute(wanted).all()
    return take_out(state, table, [tuple(each) for each in keys], still=so)


def _slices(keys: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    each = iter(keys)
    while some := list(islice(each, SLICE)):
        yield some
