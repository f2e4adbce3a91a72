"""The colder tier in the state database: copies of files, handed-off snapshots, and which tables are cold
tables."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from lakewarden.model.location import Location, normal
from lakewarden.model.table import COLD_SOURCE, COLD_SOURCE_UUID, cold_source
from lakewarden.state.database import State, upsert
from lakewarden.state.schema import cold_files, cold_snapshots, homes, seen_tables

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ColdFile:
    """A copy of a file in the colder tier. `path` is the live file's, normalized. `storage_class` is None if
    the store has no classes, or the class is unknown.

    `etag` is the store's value when the copy moved to its class; `proven_at` is when the whole copy was last
    read and found correct.
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
        """Whether the copy was created before this time."""
        return moment is not None and self.copied_at is not None and self.copied_at < moment


class ColdFiles:
    """Copies of files. A released copy (`let_go_at` is set) does not count: no cold snapshot needs it, and it
    may be deleted at any time."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, table_uuid: str, copies: Iterable[ColdFile], run_id: str, now: datetime) -> None:
        """All copies or none. An existing row is replaced."""
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
        """The copies of these live paths, by the path as given."""
        return self._live(table_uuid, paths, cold_files.c.let_go_at.is_(None))

    def let_go_among(self, table_uuid: str, paths: Sequence[str]) -> Mapping[str, ColdFile]:
        """Released copies of these live paths, by the path as given: their retention in the colder tier is
        over."""
        return self._live(table_uuid, paths, cold_files.c.let_go_at.is_not(None))

    def copies(self, table_uuid: str, cold_paths: Sequence[str]) -> Mapping[str, ColdFile]:
        """The recorded copies among these paths of the colder tier, keyed by that path."""
        with self._state.read() as connection:
            found = _chunks(connection, table_uuid, cold_files.c.cold_path, cold_paths)
            return {row.cold_path: _file(row) for row in found if row.let_go_at is None}

    def classed(self, table_uuid: str, etags: Mapping[str, str], storage_class: str, now: datetime) -> None:
        """Store that these copies, by cold path, now have the storage class, each with the etag the store
        reported."""
        with self._state.write() as connection:
            for cold_path, etag in etags.items():
                connection.execute(
                    update(cold_files)
                    .where(cold_files.c.table_uuid == table_uuid, cold_files.c.cold_path == cold_path)
                    .values(storage_class=storage_class, class_since=now, etag=etag)
                )

    def prove(self, table_uuid: str, paths: Sequence[str], now: datetime) -> None:
        """Store that the copies of these live files were read completely and are correct."""
        self._set(table_uuid, cold_files.c.path, [normal(each) for each in paths], {"proven_at": now})

    def let_go(self, table_uuid: str, cold_paths: Sequence[str], now: datetime) -> None:
        """Release these copies: no cold snapshot needs them any more, and no job may rely on them."""
        self._set(table_uuid, cold_files.c.cold_path, cold_paths, {"let_go_at": now})

    def take_back(self, table_uuid: str, cold_paths: Sequence[str]) -> None:
        """Use released copies again: they still exist unchanged, and a cold snapshot needs them."""
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


class ColdSnapshots:
    """Handed-off snapshots. `table_uuid` is the live table's."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, table_uuid: str, snapshot_ids: Collection[int], run_id: str, at: datetime) -> None:
        """The snapshots are in the cold table since `at`. A snapshot that had left gets the new time."""
        with self._state.write() as connection:
            for snapshot_id in snapshot_ids:
                row = {
                    "table_uuid": table_uuid,
                    "snapshot_id": snapshot_id,
                    "handed_at": at,
                    "run_id": run_id,
                    "left_at": None,
                }
                upsert(connection, cold_snapshots, row, ["table_uuid", "snapshot_id"])

    def leave(self, table_uuid: str, snapshot_ids: Collection[int], at: datetime) -> None:
        """The retention of these snapshots in the colder tier is over."""
        ids, mine = list(snapshot_ids), cold_snapshots.c.table_uuid == table_uuid
        with self._state.write() as connection:
            for start in range(0, len(ids), _AT_ONCE):
                these = cold_snapshots.c.snapshot_id.in_(ids[start : start + _AT_ONCE])
                connection.execute(update(cold_snapshots).where(mine, these).values(left_at=at))

    def handed(self, table_uuid: str) -> Mapping[int, datetime]:
        """When each snapshot that is still in the colder tier was handed off."""
        wanted = select(cold_snapshots.c.snapshot_id, cold_snapshots.c.handed_at).where(
            cold_snapshots.c.table_uuid == table_uuid, cold_snapshots.c.left_at.is_(None)
        )
        with self._state.read() as connection:
            return {row.snapshot_id: row.handed_at for row in connection.execute(wanted)}

    def left(self, table_uuid: str) -> frozenset[int]:
        """Handed-off snapshots whose retention in the colder tier is over."""
        wanted = select(cold_snapshots.c.snapshot_id).where(
            cold_snapshots.c.table_uuid == table_uuid, cold_snapshots.c.left_at.is_not(None)
        )
        with self._state.read() as connection:
            return frozenset(row.snapshot_id for row in connection.execute(wanted))


log = logging.getLogger(__name__)


class ColdTables:
    """Tells which tables are cold tables. Keep the instance for repeated questions: a cold table stays one,
    so positive answers are cached."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: set[tuple[str, str]] = set()
        self._told: set[str] = set()

    def source(self, properties: Mapping[str, str], table_uuid: str, location: str = "") -> str:
        """The live table of this cold table. Empty if no property names one, or if no recorded copy confirms
        the property."""
        live = cold_source(properties)
        if not live or (table_uuid, live) in self._known:
            return live
        with self._state.read() as connection:
            places = {*_home(connection, table_uuid), *filter(None, [location])}
            uuids = set(_sources(connection, properties))
            recorded = any(_has_copies(connection, uuid, place) for uuid in uuids for place in places)
        if recorded:
            self._known.add((table_uuid, live))
            return live
        if table_uuid not in self._told:
            self._told.add(table_uuid)
            log.warning(
                "table %s claims to be the colder tier of %s (property %s), but hand-off recorded no copy there; "
                "it is treated like any other table",
                table_uuid,
                live,
                COLD_SOURCE,
            )
        return ""


def _home(connection: Connection, table_uuid: str) -> Iterable[str]:
    """The location where the table was first seen; its writer can change the current one."""
    return connection.execute(select(homes.c.location).where(homes.c.table_uuid == table_uuid)).scalars()


def _sources(connection: Connection, properties: Mapping[str, str]) -> Iterator[str]:
    """Possible uuids of the live table: the one in the cold table's properties, and that of the table with
    this name."""
    if properties.get(COLD_SOURCE_UUID):
        yield properties[COLD_SOURCE_UUID]
    named = select(seen_tables.c.uuid).where(seen_tables.c.table_name == properties.get(COLD_SOURCE, ""))
    yield from connection.execute(named).scalars()


def _has_copies(connection: Connection, live_uuid: str, place: str) -> bool:
    """Whether hand-off has written copies of the table into this folder, even if they were released since. If unsure, True.

    All copies of a table are in one folder, or in one per catalog it was handed off to. Only the first and the last
    path of all copies are compared in any spelling. A folder that sorts between them is found by its exact text.
    """
    mine, path = cold_files.c.table_uuid == live_uuid, cold_files.c.cold_path
    ends = connection.execute(select(func.min(path), func.max(path)).where(mine)).one()
    between = select(path).where(mine, path.contains(f"{place.rstrip('/')}/", autoescape=True)).limit(1)
    here = Location.of(place)
    return any(
        Location.of(each).may_be_inside(here)
        for each in (*ends, connection.scalar(between))
        if each is not None
    )
