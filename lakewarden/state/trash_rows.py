"""Rows of trashed files in bulk: insert, select, take over from earlier batches, look up by path.

Handles hundreds of thousands of rows on both databases with few statements.
"""

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
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from lakewarden.state.database import State
from lakewarden.state.schema import trash_batches, trashed
from lakewarden.state.trash_batches import RECEIPTS, BatchState, FileState, Tally, TrashBatch, TrashedFile

if TYPE_CHECKING:  # commands that only list need no Arrow
    import pyarrow as pa

PAGE = 50_000
_CHUNK = 20_000
_COLUMNS = "batch_id, path, kind, size, stamp, state, note"
_GOING = "a run is deleting it for an earlier deletion batch"
_GONE = "it is already deleted, with a receipt in another deletion batch"


def in_states(*states: FileState) -> ColumnElement[bool]:
    return or_(*(trashed.c.state == each.value for each in states))


def insert_trashed(connection: Connection, batch_id: str, files: pa.Table) -> None:
    """Insert a row per file. An existing row, of a file that was restored while the batch was pending, is not
    changed."""
    rows = _rows(batch_id, _once(files))
    if connection.dialect.name == "postgresql":
        _copy(connection, rows)
        return
    statement = f"INSERT OR IGNORE INTO trash ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, 'trashed', '')"
    for chunk in rows:
        connection.exec_driver_sql(statement, chunk)


def _copy(connection: Connection, rows: Iterable[Sequence[tuple[Any, ...]]]) -> None:
    """Insert through a temporary table: COPY is many times faster than INSERT, but cannot skip existing rows."""
    connection.exec_driver_sql(
        "CREATE TEMPORARY TABLE trashing (batch_id text, path text, kind text, size bigint, stamp text) ON COMMIT DROP"
    )
    driver: Any = connection.connection.driver_connection
    with (
        driver.cursor() as cursor,
        cursor.copy("COPY trashing (batch_id, path, kind, size, stamp) FROM STDIN") as copy,
    ):
        for chunk in rows:
            for row in chunk:
                copy.write_row(row)
    connection.exec_driver_sql(
        f"INSERT INTO trash ({_COLUMNS}) SELECT batch_id, path, kind, size, stamp, 'trashed', '' "
        "FROM trashing ON CONFLICT DO NOTHING"
    )
    connection.exec_driver_sql("DROP TABLE trashing")


def _rows(batch_id: str, files: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    for batch in files.select(["path", "kind", "size", "stamp"]).to_batches(max_chunksize=_CHUNK):
        if not batch.num_rows:
            continue  # the driver takes an empty list for a statement without values
        columns = [column.to_pylist() for column in batch.columns]
        yield [(batch_id, *row) for row in zip(*columns, strict=True)]


def _once(files: pa.Table) -> pa.Table:
    """One row per file, in whichever spellings its path occurs: a file has one receipt.

    Ordered by path: rows are deleted in id order, and a batch that lies in one folder needs one listing.
    """
    import numpy as np

    from lakewarden.model.location import hashes

    if not files.num_rows:
        return files
    _, first = np.unique(hashes(files.column("path")), return_index=True)
    once = files if len(first) == files.num_rows else files.take(np.sort(first))
    return once.sort_by("path")


def among(connection: Connection, ids: Sequence[int]) -> ColumnElement[bool]:
    """`id IN (…)` with one variable for any number of ids. If the ids are consecutive, a range, which is
    found faster."""
    if ids and max(ids) - min(ids) + 1 == len(ids) == len(set(ids)):
        return trashed.c.id.between(min(ids), max(ids))
    if connection.dialect.name == "postgresql":
        return trashed.c.id == any_(literal(list(ids), ARRAY(BigInteger)))
    each = func.json_each(bindparam(None, json.dumps(list(ids)))).table_valued("value")
    return trashed.c.id.in_(select(each.c.value))


def pages(connection_of: Any, wanted: Any, size: int) -> Iterator[list[Any]]:
    """Rows of a select on `trash` in id order, `size` at a time, with one read transaction per page.

    Rows may change between pages: no row is returned twice, and a row that no longer matches is not returned.
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
        batch=as_batch(row),
        run_id=row.file_purge_run_id,
        ended_at=row.file_ended_at,
        note=row.file_note,
    )


def as_batch(row: Row[Any]) -> TrashBatch:
    return TrashBatch(
        row.id,
        row.table_name,
        row.table_uuid,
        row.cause,
        row.reason,
        BatchState(row.state),
        row.made_at,
        row.trashed_at,
        row.detail,
        row.grace_from,
    )


def as_arrow(rows: Sequence[Row[Any]], batch: TrashBatch) -> pa.Table:
    import pyarrow as pa

    ids, paths, sizes, stamps = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "path": pa.array(paths, pa.string()),
            "size": pa.array(sizes, pa.int64()),
            "stamp": pa.array(stamps, pa.string()),
            "batch_id": pa.array([batch.id] * len(rows), pa.string()),
            "trashed_at": pa.array([batch.trashed_at] * len(rows), pa.timestamp("us", "UTC")),
        }
    )


def leave_to_others(connection: Connection, batch: TrashBatch) -> None:
    """Before the batch becomes active: it takes over files that earlier batches still have. Files that those
    are deleting, have deleted, or that were restored, stay with them."""
    _one_at_a_time(connection, batch.table_uuid)
    _take_from_earlier(connection, batch)
    _leave_restored(connection, batch)


def _one_at_a_time(connection: Connection, table_uuid: str) -> None:
    """Two batches that become active at the same time must see each other. SQLite has only one writer anyway."""
    if connection.dialect.name == "postgresql":
        lock = text("SELECT pg_advisory_xact_lock(hashtext('lakewarden batch ' || :uuid))")
        connection.execute(lock, {"uuid": table_uuid})


def _take_from_earlier(connection: Connection, batch: TrashBatch) -> None:
    others = select(trash_batches.c.id).where(
        trash_batches.c.table_uuid == batch.table_uuid, trash_batches.c.state == BatchState.ACTIVE.value
    )
    columns = select(trashed.c.id, trashed.c.path)
    of_others = trashed.c.batch_id.in_(others)
    waiting = connection.execute(columns.where(of_others, in_states(FileState.TRASHED))).all()
    going = connection.execute(columns.where(of_others, in_states(FileState.ERASING))).all()
    # A batch may become active long after it was stored, when another batch has already deleted the same files.
    since = (in_states(*RECEIPTS), trashed.c.ended_at > batch.made_at)
    gone = connection.execute(columns.where(of_others, *since)).all()
    if not waiting and not going and not gone:
        return
    own = columns.where(trashed.c.batch_id == batch.id, in_states(FileState.TRASHED))
    mine = connection.execute(own).all()
    _keep(
        connection,
        _shared(waiting, mine),
        f"deletion batch {batch.id} has it now: it was needed until then",
    )
    _keep(connection, _shared(mine, going), _GOING)
    _keep(connection, _shared(mine, gone), _GONE)


def _leave_restored(connection: Connection, batch: TrashBatch) -> None:
    """Restored files stay restored, whichever batch contains them next."""
    columns = select(trashed.c.id, trashed.c.path)
    others = select(trash_batches.c.id).where(trash_batches.c.table_uuid == batch.table_uuid)
    restored = connection.execute(
        columns.where(trashed.c.batch_id.in_(others), in_states(FileState.RESTORED))
    ).all()
    if restored:
        own = columns.where(trashed.c.batch_id == batch.id, in_states(FileState.TRASHED))
        _keep(connection, _shared(connection.execute(own).all(), restored), "someone restored it")


def _shared(rows: Sequence[Any], others: Sequence[Any]) -> list[int]:
    """Ids of rows whose file is also among the others, in any spelling."""
    import numpy as np

    from lakewarden.model.location import hashes

    both = np.isin(hashes([row.path for row in rows]), hashes([row.path for row in others]))
    return [row.id for row, shared in zip(rows, both, strict=True) if shared]


def _keep(connection: Connection, ids: Sequence[int], note: str) -> None:
    if ids:
        kept = {"state": FileState.KEPT.value, "note": note}
        connection.execute(update(trashed).where(among(connection, ids)).values(kept))


def files_numbered(
    state: State, table_uuid: str, numbers: Any, states: Sequence[FileState] = tuple(FileState)
) -> Iterator[tuple[int, TrashedFile]]:
    """Files whose path hash (lakewarden/model/location.py) is among these sorted numbers, in the order they
    were marked.

    Only files of active batches. Reads every row of the table, a page at a time, because paths have several
    spellings.
    """
    import pyarrow as pa

    from lakewarden.model.location import hashes

    mine = select(trash_batches.c.id).where(
        trash_batches.c.table_uuid == table_uuid, trash_batches.c.state == BatchState.ACTIVE.value
    )
    wanted = select(trashed.c.id, trashed.c.path).where(
        trashed.c.batch_id.in_(mine), trashed.c.state.in_([each.value for each in states])
    )
    for rows in pages(state.read, wanted, PAGE):
        keys = hashes(pa.array([row.path for row in rows], pa.string()))
        chosen = {rows[place].id: int(keys[place]) for place in _matching(numbers, keys).tolist()}
        yield from ((chosen[row], file) for row, file in _files_of(state, list(chosen)))


def _matching(numbers: Any, keys: Any) -> Any:
    """Positions of the keys that are among the sorted numbers."""
    if not len(numbers):
        return keys[:0]
    found = numbers.searchsorted(keys).clip(max=len(numbers) - 1)
    return (numbers[found] == keys).nonzero()[0]


def _files_of(state: State, ids: Sequence[int]) -> Iterator[tuple[int, TrashedFile]]:
    if not ids:
        return
    columns = [column.label(f"file_{column.name}") for column in trashed.columns]
    with state.read() as connection:
        wanted = (
            select(*columns, trash_batches)
            .join(trash_batches)
            .where(among(connection, ids))
            .order_by(trashed.c.id)
        )
        found: Sequence[Any] = connection.execute(wanted).all()
    yield from ((row.file_id, as_file(row)) for row in found)
