"""What the state knows about certain files of a table: who trashed, deleted or restored them, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import select

from lakewarden.state.database import State
from lakewarden.state.schema import trashed, verdicts
from lakewarden.state.trash import PAGE
from lakewarden.state.trash_batches import FileState, TrashedFile, VerdictState
from lakewarden.state.trash_rows import among, as_file, pages


def files_numbered(
    state: State, table_uuid: str, numbers: Any, states: Sequence[FileState] = tuple(FileState)
) -> Iterator[tuple[int, TrashedFile]]:
    """Files whose path hashes (lakewarden/model/location.py) are among these sorted numbers, in the order they were marked.

    Only under verdicts in force. Every row of the table is looked at, a page at a time: paths have several spellings.
    """
    import pyarrow as pa

    from lakewarden.model.location import hashes

    mine = select(verdicts.c.id).where(
        verdicts.c.table_uuid == table_uuid, verdicts.c.state == VerdictState.ACTIVE.value
    )
    wanted = select(trashed.c.id, trashed.c.path).where(
        trashed.c.verdict_id.in_(mine), trashed.c.state.in_([each.value for each in states])
    )
    for rows in pages(state.read, wanted, PAGE):
        keys = hashes(pa.array([row.path for row in rows], pa.string()))
        chosen = {rows[place].id: int(keys[place]) for place in _among(numbers, keys).tolist()}
        yield from ((chosen[row], file) for row, file in _files(state, list(chosen)))


def _among(numbers: Any, keys: Any) -> Any:
    """Places of the keys that are among the sorted numbers."""
    if not len(numbers):
        return keys[:0]
    found = numbers.searchsorted(keys).clip(max=len(numbers) - 1)
    return (numbers[found] == keys).nonzero()[0]


def _files(state: State, ids: Sequence[int]) -> Iterator[tuple[int, TrashedFile]]:
    if not ids:
        return
    columns = [column.label(f"file_{column.name}") for column in trashed.columns]
    with state.read() as connection:
        wanted = (
            select(*columns, verdicts).join(verdicts).where(among(connection, ids)).order_by(trashed.c.id)
        )
        found: Sequence[Any] = connection.execute(wanted).all()
    yield from ((row.file_id, as_file(row)) for row in found)
