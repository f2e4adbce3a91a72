"""Copies in the colder tier: where each file of a table was copied to, the size and checksum it had there, and its class since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, update

from lakewarden.model.location import normal
from lakewarden.state.database import State
from lakewarden.state.schema import cold_files
from lakewarden.state.upsert import upsert

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ColdFile:
    """`path` is the live file's, in its normal form. `storage_class` None: its store has none, or nobody asked for one.

    `etag` is what the store said of it when it went to its class, `proven_at` when all of it was last read and was right.
    """

    path: str
    cold_path: str
    size: int
    checksum: str
    storage_class: str | None = None
    class_since: datetime | None = None
    etag: str | None = None
    proven_at: datetime | None = None
    copied_at: datetime | None = None

    def before(self, moment: datetime | None) -> bool:
        """Whether the copy was made before then."""
        return moment is not None and self.copied_at is not None and self.copied_at < moment


class ColdFiles:
    """A copy that was let go is none: no cold snapshot needs it, and it may be deleted at any time."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, table_uuid: str, copies: Iterable[ColdFile], run_id: str, now: datetime) -> None:
        """All of them or none; one that is there already is replaced."""
        with self._state.write() as connection:
            for each in copies:
                row = {
                    "table_uuid": table_uuid,
                    "path": normal(each.path),
                    "cold_path": each.cold_path,
                    "size": each.size,
                    "checksum": each.checksum,
                    "run_id": run_id,
                    "copied_at": now,
                    "storage_class": each.storage_class,
                    "class_since": now,
                    "etag": each.etag,
                    "proven_at": each.proven_at,
                    "let_go_at": None,
                }
                upsert(connection, cold_files, row, ["table_uuid", "path"])

    def among(self, table_uuid: str, paths: Sequence[str]) -> Mapping[str, ColdFile]:
        """Those of the paths that have a copy, by the path as it was asked for."""
        return self._live(table_uuid, paths, cold_files.c.let_go_at.is_(None))

    def let_go_among(self, table_uuid: str, paths: Sequence[str]) -> Mapping[str, ColdFile]:
        """Those of the paths that had a copy until the colder tier's own retention was over."""
        return self._live(table_uuid, paths, cold_files.c.let_go_at.is_not(None))

    def copies(self, table_uuid: str, cold_paths: Sequence[str]) -> Mapping[str, ColdFile]:
        """Those of the paths in the colder tier that are known copies, by that path."""
        with self._state.read() as connection:
            found = _chunks(connection, table_uuid, cold_files.c.cold_path, cold_paths)
            return {row.cold_path: _file(row) for row in found if row.let_go_at is None}

    def classed(self, table_uuid: str, etags: Mapping[str, str], storage_class: str, now: datetime) -> None:
        """These copies, by their path in the colder tier, have that class from now on, and the store says that of each."""
        with self._state.write() as connection:
            for cold_path, etag in etags.items():
                connection.execute(
                    update(cold_files)
                    .where(cold_files.c.table_uuid == table_uuid, cold_files.c.cold_path == cold_path)
                    .values(storage_class=storage_class, class_since=now, etag=etag)
                )

    def prove(self, table_uuid: str, paths: Sequence[str], now: datetime) -> None:
        """The copies of these live files were read, every byte, and are what was copied."""
        self._set(table_uuid, cold_files.c.path, [normal(each) for each in paths], {"proven_at": now})

    def let_go(self, table_uuid: str, cold_paths: Sequence[str], now: datetime) -> None:
        """No cold snapshot needs these any more: nobody is to rely on them."""
        self._set(table_uuid, cold_files.c.cold_path, cold_paths, {"let_go_at": now})

    def take_back(self, table_uuid: str, cold_paths: Sequence[str]) -> None:
        """Copies that were let go, are there as they were, and are needed again."""
        self._set(table_uuid, cold_files.c.cold_path, cold_paths, {"let_go_at": None})

    def _live(
        self, table_uuid: str, paths: Sequence[str], which: ColumnElement[bool]
    ) -> Mapping[str, ColdFile]:
        spelled = {normal(path): path for path in paths}
        with self._state.read() as connection:
            found = _chunks(connection, table_uuid, cold_files.c.path, list(spelled), which)
            return {spelled[row.path]: _file(row) for row in found}

    def _set(
        self, table_uuid: str, column: ColumnElement[str], values: Sequence[str], new: Mapping[str, Any]
    ) -> None:
        with self._state.write() as connection:
            for start in range(0, len(values), _AT_ONCE):
                mine = column.in_(values[start : start + _AT_ONCE])
                connection.execute(
                    update(cold_files).where(cold_files.c.table_uuid == table_uuid, mine).values(dict(new))
                )


def _chunks(
    connection: Connection,
    table_uuid: str,
    column: ColumnElement[str],
    values: Sequence[str],
    *which: ColumnElement[bool],
) -> Iterator[Any]:
    for start in range(0, len(values), _AT_ONCE):
        mine = column.in_(values[start : start + _AT_ONCE])
        wanted = select(cold_files).where(cold_files.c.table_uuid == table_uuid, mine, *which)
        yield from connection.execute(wanted)


def _file(row: Any) -> ColdFile:
    return ColdFile(
        row.path,
        row.cold_path,
        row.size,
        row.checksum,
        row.storage_class,
        row.class_since,
        row.etag,
        row.proven_at,
        row.copied_at,
    )
