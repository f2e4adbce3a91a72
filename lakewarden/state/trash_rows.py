"""Rows of trashed files in bulk: hundreds of thousands at a time, on both databases, in a statement or a few."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    any_,
    bindparam,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

from lakewarden.state.schema import trashed
from lakewarden.state.trash_batches import FileState, Tally, TrashedFile, Verdict, VerdictState

if TYPE_CHECKING:  # commands that only list need no Arrow
    import pyarrow as pa

_CHUNK = 20_000
_COLUMNS = "verdict_id, path, kind, size, stamp, state, note"


def in_states(*states: FileState) -> ColumnElement[bool]:
    return or_(*(trashed.c.state == each.value for each in states))


def insert_trashed(connection: Connection, verdict_id: str, files: pa.Table) -> None:
    """A row per file. One that is there already, because it was restored while the verdict was pending, stays as it is."""
    rows = _rows(verdict_id, _once(files))
    if connection.dialect.name == "postgresql":
        _copy(connection, rows)
        return
    statement = f"INSERT OR IGNORE INTO trash ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, 'trashed', '')"
    for chunk in rows:
        connection.exec_driver_sql(statement, chunk)


def _copy(connection: Connection, rows: Iterable[Sequence[tuple[Any, ...]]]) -> None:
    """Through a table of the transaction's own: COPY is many times faster than inserts, but cannot leave rows out."""
    connection.exec_driver_sql(
        "CREATE TEMPORARY TABLE trashing (verdict_id text, path text, kind text, size bigint, stamp text) ON COMMIT DROP"
    )
    driver: Any = connection.connection.driver_connection
    with (
        driver.cursor() as cursor,
        cursor.copy("COPY trashing (verdict_id, path, kind, size, stamp) FROM STDIN") as copy,
    ):
        for chunk in rows:
            for row in chunk:
                copy.write_row(row)
    connection.exec_driver_sql(
        f"INSERT INTO trash ({_COLUMNS}) SELECT verdict_id, path, kind, size, stamp, 'trashed', '' "
        "FROM trashing ON CONFLICT DO NOTHING"
    )
    connection.exec_driver_sql("DROP TABLE trashing")


def _rows(verdict_id: str, files: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    for batch in files.select(["path", "kind", "size", "stamp"]).to_batches(max_chunksize=_CHUNK):
        if not batch.num_rows:
            continue  # the driver takes an empty list for a statement without values
        columns = [column.to_pylist() for column in batch.columns]
        yield [(verdict_id, *row) for row in zip(*columns, strict=True)]


def _once(files: pa.Table) -> pa.Table:
    """One row per file, whichever way its path is spelled: an object has one receipt.

    In order of path: rows are deleted in the order of their ids, and a batch that lies in one folder needs one listing.
    """
    import numpy as np

    from lakewarden.model.location import hashes

    if not files.num_rows:
        return files
    _, first = np.unique(hashes(files.column("path")), return_index=True)
    once = files if len(first) == files.num_rows else files.take(np.sort(first))
    return once.sort_by("path")


def among(connection: Connection, ids: Sequence[int]) -> ColumnElement[bool]:
    """`id IN (…)` with one variable, however many ids there are; where none is left out, their range, which is found at once."""
    if ids and max(ids) - min(ids) + 1 == len(ids) == len(set(ids)):
        return trashed.c.id.between(min(ids), max(ids))
    if connection.dialect.name == "postgresql":
        return trashed.c.id == any_(literal(list(ids), ARRAY(BigInteger)))
    each = func.json_each(bindparam(None, json.dumps(list(ids)))).table_valued("value")
    return trashed.c.id.in_(select(each.c.value))


def pages(connection_of: Any, wanted: Any, size: int) -> Iterator[list[Any]]:
    """Rows of a select on `trash`, in order of id, `size` at a time, each page a look of its own.

    Rows may change between two pages: what was seen is not seen again, what changed out of the select is not seen at all.
    """
    last = -1
    while True:
        page = wanted.where(trashed.c.id > last).order_by(trashed.c.id).limit(size)
        with connection_of() as connection:
            rows = connection.execute(page).all()
        if rows:
            yield rows
            last = rows[-1].id
        if len(rows) < size:
            return


def as_tally(row: Row[Any]) -> Tally:
    return Tally(row.files, int(row.bytes))


def as_file(row: Row[Any]) -> TrashedFile:
    return TrashedFile(
        path=row.file_path,
        kind=row.file_kind,
        size=row.file_size,
        state=FileState(row.file_state),
        verdict=as_verdict(row),
        run_id=row.file_purge_run_id,
        ended_at=row.file_ended_at,
        note=row.file_note,
    )


def as_verdict(row: Row[Any]) -> Verdict:
    return Verdict(
        row.id,
        row.table_name,
        row.table_uuid,
        row.cause,
        row.reason,
        VerdictState(row.state),
        row.made_at,
        row.trashed_at,
        row.detail,
        row.grace_from,
    )


def as_arrow(rows: Sequence[Row[Any]], verdict: Verdict) -> pa.Table:
    import pyarrow as pa

    ids, paths, sizes, stamps = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "path": pa.array(paths, pa.string()),
            "size": pa.array(sizes, pa.int64()),
            "stamp": pa.array(stamps, pa.string()),
            "verdict": pa.array([verdict.id] * len(rows), pa.string()),
            "trashed_at": pa.array([verdict.trashed_at] * len(rows), pa.timestamp("us", "UTC")),
        }
    )
