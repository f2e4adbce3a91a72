"""Opens the state database: SQLite in a file, or PostgreSQL for several workers.

Opening upgrades a SQLite schema at once, because the command line must work without set-up. PostgreSQL with
an older schema may be in use by other workers, so an operator must run `lakewarden migrate`. A schema newer
than this version is refused in both.

Also inserts, replaces and deletes rows in the same way on both.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    NullPool,
    Table,
    and_,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from lakewarden import clock
from lakewarden.errors import ConfigError, NotSetUp, Outage, StateTooNew, Unreachable
from lakewarden.redact import redact_url
from lakewarden.state.schema import HEAD, REVISIONS, VERSION_TABLE, UtcTime

# How long a writer waits for another writer's transaction; Lakewarden's take milliseconds.
BUSY_SECONDS = 30
CONNECT_SECONDS = 10
# A server that vanished without closing its connections is noticed within about this time, instead of after hours.
SILENCE_SECONDS = 20
# The server releases the locks of a host that vanished after this time; the worker's lease is the most important one.
IDLE_SECONDS = 30
# Enough for the threads of the console and of the worker. Connections are opened on demand.
_MOST_CONNECTIONS, _KEPT_CONNECTIONS = 60, 5
_WRITE = "lakewarden_write"
# SQLSTATEs: read-only after a failover, and shutting down, starting or just promoted.
_FAILOVER = ("25006", "57P")
# These, broken connections (08), insufficient resources (53), and system errors of the server (58).
_OUTAGES = (*_FAILOVER, "08", "53", "58")
# The open read transaction of the current `one_look`; a new thread has none.
_looks: ContextVar[Mapping[Engine, Connection]] = ContextVar("looks", default=MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of `migrate`; `before` is None if the database was empty."""

    database: str
    before: str | None
    after: str


@dataclass(frozen=True, slots=True)
class State:
    """An open state database. Safe to share between threads."""

    engine: Engine

    @classmethod
    def open(cls, url: str) -> State:
        """Open and check the database. Raises StateTooNew, NotSetUp (older schema on PostgreSQL), Unreachable
        or ConfigError."""
        state = cls(_engine(url))
        _prepare(state)
        return state

    @property
    def name(self) -> str:
        """The address without its password."""
        return redact_url(self.engine.url.render_as_string(hide_password=True))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent read transaction; inside `one_look`, the one of that block."""
        shared = _looks.get().get(self.engine)
        with self._translated():
            if shared is not None:
                yield shared
                return
            with self.engine.connect() as connection, connection.begin():
                yield connection

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """All `read` calls of this thread in the block share one read transaction: a page with twenty queries
        opens one connection and sees one state of the data. Writes are refused inside, because the block
        would not see them."""
        if self.engine in _looks.get():
            yield
            return
        with self._translated(), self.engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                before = _looks.set({**_looks.get(), self.engine: connection})
                try:
                    yield
                finally:
                    _looks.reset(before)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction: everything is stored, or nothing. A process that stops inside stores
        nothing."""
        assert self.engine not in _looks.get(), (
            "cannot write inside one_look: its reads would not see the change"
        )
        with self._translated(), self.engine.connect() as connection:
            writer = connection.execution_options(**{_WRITE: True})
            with writer.begin():
                yield writer

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            if not _is_outage(error):
                raise
            raise Unreachable(
                what=f"the state database {self.name}", reason=_reason(error), kind=Outage.STATE
            ) from None
        except PoolTimeout:
            reason = f"all {_MOST_CONNECTIONS} connections are in use"
            raise Unreachable(
                what=f"the state database {self.name}", reason=reason, kind=Outage.STATE
            ) from None


def now_of(connection: Connection) -> datetime:
    """The database server's time on PostgreSQL, where several hosts share it; this host's time for a SQLite
    file."""
    if connection.dialect.name != "postgresql":
        return clock.now()
    found: datetime = connection.execute(select(func.clock_timestamp(type_=UtcTime))).scalar_one()
    return found


def migrate(url: str) -> Migrated:
    """Upgrade any older schema to this version's. Safe to call from several processes at once."""
    state = State(_engine(url))
    try:
        _check_known(state, _version(state))
        return _upgrade(state)
    finally:
        state.close()


def _prepare(state: State) -> None:
    if state.engine.dialect.name == "sqlite":
        _use_wal(state)
    found = _version(state)
    if found == HEAD:
        return
    _check_known(state, found)
    if found is not None and state.engine.dialect.name != "sqlite":
        raise NotSetUp(
            what=f"the state database {state.name}",
            reason=f"it has schema {found}, this Lakewarden needs {HEAD}",
            hint="stop older workers, then run `lakewarden migrate`",
        )
    _upgrade(state)


def _check_known(state: State, found: str | None) -> None:
    if found is not None and found not in REVISIONS:
        raise StateTooNew(target=f"the state database {state.name}", found=found, known=HEAD)


def _version(state: State) -> str | None:
    with state.read() as connection:
        return _version_on(connection)


def _version_on(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return found


def _upgrade(state: State) -> Migrated:
    """Upgrade in one transaction that also reads the old version: a second process finds the work done, and a
    crash leaves nothing."""
    with state.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('lakewarden schema'))"))
        before = _version_on(connection)
        _check_known(state, before)
        if before != HEAD:
            _run_revisions(connection)
    return Migrated(state.name, before, HEAD)


def _run_revisions(connection: Connection) -> None:
    # Imported here: loading Alembic takes longer than a whole command on a database that is up to date.
    from alembic import command
    from alembic.config import Config

    config = Config()
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def _engine(url: str) -> Engine:
    address = _address(url)
    try:
        if address.drivername == "sqlite":
            return _sqlite(address)
        return _postgresql(address)
    except ImportError as error:
        hint = "install it: pip install 'lakewarden[postgres]'"
        raise NotSetUp(what="PostgreSQL support", reason=str(error), hint=hint) from error


def _address(url: str) -> URL:
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        raise _unusable(url) from None
    backend = address.drivername.partition("+")[0]
    if backend in ("postgresql", "postgres"):
        return address.set(drivername="postgresql+psycopg")
    if backend != "sqlite" or not address.database or address.database == ":memory:":
        raise _unusable(url)
    return address.set(drivername="sqlite")


def _unusable(url: str) -> ConfigError:
    reason = f"found {redact_url(url)!r}; allowed: sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
    return ConfigError(key="state.url", where="the configuration", reason=reason)


def _postgresql(address: URL) -> Engine:
    """Connection options in the address itself are kept."""
    arguments = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives_idle": SILENCE_SECONDS // 2,
        "keepalives_interval": SILENCE_SECONDS // 4,
        "keepalives_count": 2,
        "tcp_user_timeout": SILENCE_SECONDS * 1000,
    }
    mine = {name: value for name, value in arguments.items() if name not in address.query}
    engine = create_engine(
        address,
        pool_pre_ping=True,
        pool_size=_KEPT_CONNECTIONS,
        max_overflow=_MOST_CONNECTIONS - _KEPT_CONNECTIONS,
        pool_timeout=CONNECT_SECONDS,
        connect_args=mine,
    )
    event.listen(engine, "connect", _on_connect_to_server)
    event.listen(engine, "handle_error", _on_error)
    return engine


def _on_error(context: ExceptionContext) -> None:
    """After a failover of the server, close all connections, so that the next query reaches the new server."""
    if _sqlstate(context.original_exception).startswith(_FAILOVER):
        context.is_disconnect = True


def _on_connect_to_server(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
    connection.commit()


def _sqlite(address: URL) -> Engine:
    # One connection per use: cheap for a file, and nothing is shared when a process forks.
    engine = create_engine(
        address, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS}, json_deserializer=_read_json
    )
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _read_json(stored: str) -> Any:
    """A shortcut for empty lists, which are the most common: they need no parser."""
    return [] if stored == "[]" else {} if stored == "{}" else json.loads(stored)


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself; _on_begin does
    connection.execute("PRAGMA foreign_keys = ON")
    # A journaled step must be on disk: after a power cut its intent must still be there.
    connection.execute("PRAGMA synchronous = FULL")


def _on_begin(connection: Connection) -> None:
    # A writer takes the lock first. Beginning as a reader and upgrading later fails at once if another process wrote in between.
    writes = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _use_wal(state: State) -> None:
    """Write-ahead logging lets readers work beside a writer. The setting stays with the file. Where it is not
    available, the classic journal is as safe."""
    give_up = clock.monotonic() + BUSY_SECONDS
    with state._translated(), state.engine.connect() as connection:
        while connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
            connection.rollback()  # inside a transaction the change would do nothing
            driver: Any = connection.connection.dbapi_connection
            try:
                driver.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # SQLite does not wait here: two processes that change a new file at once could deadlock.
                if "locked" not in str(error) or clock.monotonic() > give_up:
                    raise Unreachable(
                        what=f"the state database {state.name}", reason=str(error), kind=Outage.STATE
                    ) from None
                clock.sleep(0.02)


def _is_outage(error: DBAPIError) -> bool:
    """Whether the database is absent, locked for too long, or no database: causes outside Lakewarden.
    Anything else is a bug and raised unchanged."""
    return (
        isinstance(error, OperationalError | InterfaceError)
        or error.connection_invalidated
        or _sqlstate(error.orig).startswith(_OUTAGES)
        or (isinstance(error, DatabaseError) and "not a database" in str(error.orig))
    )


def _sqlstate(error: BaseException | None) -> str:
    """PostgreSQL's five-letter error code; empty if there is none."""
    return str(getattr(error, "sqlstate", None) or "")


def _reason(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return redact_url(lines[0]) if lines else type(error).__name__


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
    when a row is deleted.

    SQLite has one writer at a time, and the leader renews its lease by writing. A deletion that selected
    its rows inside its own transaction once held that lock for eight seconds, on a thousand tables with
    nothing to delete, and the leader lost its lease. So rows are selected in a read transaction, and
    deleted in slices with one transaction each.
    """
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
