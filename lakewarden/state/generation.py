"""Detects that the state database was restored from a backup, before any file is deleted because of it.

A backup lacks everything that came after it: files that an operator restored are in the trash again, and pins
are missing. So the database counts its generation, in the same transaction as everything that protects a file
from deletion, and before each deletion. The number is also stored outside the database, in two places called
witnesses:

    beside a SQLite file     `<database>-generation`, written after every such transaction
    in each table's folder   `metadata/_lakewarden-generation.json`, written before a run deletes files of the table, and after
                             each pin, restored file and staged load of it

PostgreSQL also reports its server, timeline and database. If these changed, the database was restored from a
backup, or a standby took over and may lack the last transactions. If a witness has a later generation, or the
place changed, the grace period of every trashed file starts again.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, select, text, update
from sqlalchemy.exc import DBAPIError

from lakewarden.state.database import State
from lakewarden.state.schema import generations, trash_batches
from lakewarden.state.trash_batches import BatchState

log = logging.getLogger(__name__)

_BESIDE = "-generation"
_ON_SERVER = (
    "SELECT (SELECT system_identifier FROM pg_control_system())::text || ' timeline ' ||"
    " substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
)
_OBJECTS = (
    "SELECT 'database ' || d.oid || ' table ' || 'trash_batches'::regclass::oid"
    " FROM pg_database d WHERE d.datname = current_database()"
)


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation number. `database` is a random name that never leaves the database; the witnesses are
    signed with it.

    Everyone who can write to a table can write its witness too. A number without the right signature is not
    this database's.
    """

    database: str
    number: int

    def to_json(self) -> bytes:
        return json.dumps({"generation": self.number, "seal": self._seal()}).encode()

    def witness(self, content: bytes) -> Generation | None:
        """The generation that this database wrote into a witness. None for anything else, such as another
        database's witness."""
        try:
            found = json.loads(content)
            seen = replace(self, number=int(found["generation"]))
            return seen if hmac.compare_digest(seen._seal(), str(found["seal"])) else None
        except (ValueError, KeyError, TypeError):
            return None

    def _seal(self) -> str:
        return hmac.new(self.database.encode(), str(self.number).encode(), "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The new generation. `restored` is why the database counts as restored from a backup; empty if it does
    not."""

    generation: Generation
    restored: str


@contextmanager
def protecting(state: State) -> Iterator[Connection]:
    """A transaction that protects files from deletion. If a restored backup loses it, that is detected."""
    with state.write() as connection:
        yield connection
        reached = _next(connection)
    _note_beside(state, reached)


class Generations:
    def __init__(self, state: State) -> None:
        self._state = state

    def confirm(self, witness: bytes | None, now: datetime) -> Confirmed:
        """Advance to the next generation, before files of a table are deleted. `witness` is the content of
        the table's witness file.

        If the database was restored from a backup, every grace period starts again in the same transaction.
        """
        places = {"the file beside it": _beside(self._state), "the table's folder": witness}
        with self._state.write() as connection:
            row = connection.execute(select(generations).with_for_update()).one()
            own, place = Generation(row.database, row.number), _place(connection)
            newest, why = _newest(own, places)
            why = why or _elsewhere(row.place, place)
            reached = replace(newest, number=_past_all(newest.number, now) if why else newest.number + 1)
            connection.execute(update(generations).values(number=reached.number, place=place))
            if why:
                _start_again(connection, now)
        _note_beside(self._state, reached)
        return Confirmed(reached, why)

    def now(self) -> Generation:
        """The last committed generation."""
        with self._state.read() as connection:
            row = connection.execute(select(generations)).one()
        return Generation(row.database, row.number)

    def restored_at(self) -> datetime | None:
        """When the database was last found to be restored from a backup; None if never."""
        with self._state.read() as connection:
            found: datetime | None = connection.execute(select(generations.c.restarted_at)).scalar_one()
        return found

    def restored(self, now: datetime) -> int:
        """An operator reports that the database was restored from a backup: every grace period starts again.
        Returns the number of affected deletion batches."""
        with protecting(self._state) as connection:
            number = connection.execute(select(generations.c.number).with_for_update()).scalar_one()
            after = {"number": _past_all(number, now), "place": _place(connection)}
            connection.execute(update(generations).values(after))
            return _start_again(connection, now)


def _next(connection: Connection) -> Generation:
    change = update(generations).values(number=generations.c.number + 1)
    row = connection.execute(change.returning(generations.c.database, generations.c.number)).one()
    return Generation(row.database, row.number)


def _past_all(number: int, now: datetime) -> int:
    """A number above every witness, including those of other tables: otherwise each of them would report a
    restored backup once more.

    A generation lasts longer than a millisecond, so no witness can be above the milliseconds since 1970.
    """
    return max(number + 1, round(now.timestamp() * 1000))


def _start_again(connection: Connection, now: datetime) -> int:
    """`trashed_at` is not changed: it is still used to detect files that changed since then."""
    active = update(trash_batches).where(trash_batches.c.state == BatchState.ACTIVE.value)
    started = connection.execute(active.values(grace_from=now)).rowcount
    connection.execute(update(generations).values(restarted_at=now))
    return started


def _newest(own: Generation, witnesses: Mapping[str, bytes | None]) -> tuple[Generation, str]:
    """The newest known generation, and why this database is older than it; the reason is empty if it is not."""
    newest, why = own, ""
    for name, content in witnesses.items():
        seen = None if content is None else own.witness(content)
        if content is not None and seen is None:
            log.warning("%s has a generation of another state database: ignored", name)
        if seen is not None and seen.number > newest.number:
            newest, why = seen, f"{name} has generation {seen.number}, the database has {own.number}"
    return newest, why


def _elsewhere(before: str, now: str) -> str:
    return f"it was at {before} and is at {now}" if before and now and before != now else ""


def _place(connection: Connection) -> str:
    """Server, timeline and database; empty for SQLite, whose file may be moved."""
    if connection.dialect.name != "postgresql":
        return ""
    try:
        with connection.begin_nested():
            server = connection.execute(text(_ON_SERVER)).scalar_one()
    except DBAPIError as error:  # a managed server may not report it: use the numbers of its objects instead
        log.debug("the server does not report its timeline: %s", error)
        server = ""
    return f"{server} {connection.execute(text(_OBJECTS)).scalar_one()}".strip()


def _beside_path(state: State) -> Path | None:
    database = state.engine.url.database
    return Path(database + _BESIDE) if state.engine.dialect.name == "sqlite" and database else None


def _beside(state: State) -> bytes | None:
    path = _beside_path(state)
    try:
        return None if path is None else path.read_bytes()
    except FileNotFoundError:
        return None


def _note_beside(state: State, reached: Generation) -> None:
    """Written after the transaction: a witness that is behind does no harm, one that is ahead would report a
    restored backup."""
    path = _beside_path(state)
    if path is None:
        return
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        seen = reached.witness(_beside(state) or b"")
        if seen is not None and seen.number >= reached.number:
            return
        part.write_bytes(reached.to_json())
        part.replace(path)
    except OSError as error:
        log.warning("cannot write the generation file beside the state database: %s", error)
