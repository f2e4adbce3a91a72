"""Which tables are really another's colder tier: those in whose folder hand-off recorded a copy.

A table says so by properties, and whoever writes a table can set its properties. Copies are recorded before the cold table names
them, and the records stay when the copies are let go: a cold table without one has nothing in it that hand-off brought.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from sqlalchemy import Connection, func, select

from lakewarden.model.location import Location
from lakewarden.model.table import COLD_SOURCE, COLD_SOURCE_UUID, cold_source
from lakewarden.state.database import State
from lakewarden.state.schema import cold_files, homes, seen_tables

log = logging.getLogger(__name__)


class ColdTables:
    """Kept by whoever asks again and again: what is a colder tier stays one, and is asked for once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: set[tuple[str, str]] = set()
        self._told: set[str] = set()

    def source(self, properties: Mapping[str, str], table_uuid: str, location: str = "") -> str:
        """The table whose colder tier this one is; empty where only its properties say so, or nothing does."""
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
                "table %s says it is the colder tier of %s (property %s), but hand-off recorded no copy there; "
                "it is treated like any other table",
                table_uuid,
                live,
                COLD_SOURCE,
            )
        return ""


def _home(connection: Connection, table_uuid: str) -> Iterable[str]:
    """Where it was first seen: its writer can set another location."""
    return connection.execute(select(homes.c.location).where(homes.c.table_uuid == table_uuid)).scalars()


def _sources(connection: Connection, properties: Mapping[str, str]) -> Iterator[str]:
    """The uuid of the live table: as the cold table says, and as the table of that name has it."""
    if properties.get(COLD_SOURCE_UUID):
        yield properties[COLD_SOURCE_UUID]
    named = select(seen_tables.c.uuid).where(seen_tables.c.table_name == properties.get(COLD_SOURCE, ""))
    yield from connection.execute(named).scalars()


def _has_copies(connection: Connection, live_uuid: str, place: str) -> bool:
    """Also copies that were let go: the folder is still what hand-off made. Where in doubt, it has.

    All copies of a table lie in one folder, or in one for each catalog that it was handed off to: the first and the last by name
    tell, in whatever spelling. A folder between two others is found by its text.
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
