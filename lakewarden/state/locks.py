"""Commit locks and the worker's lease: rows that one process holds for a limited time.

Under a commit lock, only one Lakewarden process at a time changes a table whose store has no lock of its
own. Under the lease, only one worker leads. A row has its holder and an end time. It is renewed while it is
held; after its end any process may take it, so a process that stopped blocks others no longer than that.
The time is the database's, so clocks of hosts may differ.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from lakewarden import clock
from lakewarden.errors import CommitLost, Unreachable
from lakewarden.model.plain import Plain
from lakewarden.model.run import Owner
from lakewarden.model.table import TableRef
from lakewarden.state.database import State, now_of
from lakewarden.state.schema import commit_locks, leases

log = logging.getLogger(__name__)

TTL = timedelta(seconds=30)
# Longer than the time of a lock, so that a waiter outlasts the lock of a crashed process.
WAIT = timedelta(seconds=90)
_POLL_SECONDS = 0.1

WORKER = "worker"


def removal(table_uuid: str) -> str:
    """The key of the lock for commits through the gateway that remove snapshots."""
    return f"removal:{table_uuid}"


@dataclass(slots=True, eq=False)
class Lock:
    """A lock as its holder sees it. `until` is by this process's own clock, never later than the database's
    time."""

    state: State
    table: TableRef
    place: str
    token: str
    ttl: timedelta
    until: float = -math.inf
    _stays: threading.Event = field(default_factory=threading.Event, repr=False)

    def leave(self) -> None:
        """Do not release the lock at the end, but keep it until it expires: the commit under it may still be
        in progress."""
        self._stays.set()

    def check(self) -> None:
        """Renew the lock for its whole time, or raise CommitLost. Called right before a commit begins."""
        if not self.renew():
            raise CommitLost(
                table=self.table, reason="its lock expired before the commit began; nothing was done"
            )

    def lasts(self) -> bool:
        """Whether the last renewal is younger than the lock's time, by this process's own clock. Sends no
        query."""
        return clock.monotonic() < self.until

    def renew(self) -> bool:
        """Extend the lock. False if it expired, even if no other process has it yet."""
        asked_at = clock.monotonic()
        if not self.lasts():
            return False
        with self.state.write() as connection:
            now = now_of(connection)
            mine = and_(_held_by(self.place, self.token), commit_locks.c.until > now)
            change = update(commit_locks).where(mine).values(until=now + self.ttl)
            renewed = connection.execute(change).rowcount == 1
        if renewed:
            self.begin(asked_at)
        return renewed and self.lasts()

    def begin(self, asked_at: float) -> None:
        """The time counts from before the query, because the database's answer may have taken a while."""
        self.until = max(self.until, asked_at + self.ttl.total_seconds())


class Locks:
    """`owner` is shown to processes that wait for the lock.

    A lock cannot stop a process that checked it, was suspended for longer than its time, and then
    continues. So it is checked right before the commit; an older check is worth nothing. The holder also
    measures the time by its own clock, starting before each renewal: without a renewal for that long it
    considers the lock lost, even if the database never answers. After the commit it checks that the lock
    lasted.
    """

    def __init__(self, state: State, owner: Owner, ttl: timedelta = TTL, wait: timedelta = WAIT) -> None:
        self._state = state
        self._owner = owner
        self._ttl = ttl
        self._wait = wait

    @contextmanager
    def held(self, table: TableRef, place: str) -> Iterator[Lock]:
        """Hold the lock on a table, keyed by its location: two catalogs may name it differently. CommitLost
        if it cannot be taken in time."""
        lock = Lock(self._state, table, place, secrets.token_hex(8), self._ttl)
        self._take(lock)
        try:
            with clock.repeating(lambda: _keep(lock), self._ttl.total_seconds() / 3, "lakewarden-lock"):
                yield lock
        finally:
            if not lock._stays.is_set():
                self._release(lock)

    def _take(self, lock: Lock) -> None:
        asked_at = clock.monotonic()
        give_up = asked_at + self._wait.total_seconds()
        while (other := self._try(lock)) is not None:
            if clock.monotonic() > give_up:
                waited = f"{self._wait.total_seconds():g} seconds"
                reason = f"another Lakewarden ({other}) was committing to it for {waited}"
                raise CommitLost(table=lock.table, reason=reason)
            clock.sleep(_POLL_SECONDS)
            asked_at = clock.monotonic()
        lock.begin(asked_at)

    def _try(self, lock: Lock) -> str | None:
        """None if the lock was taken, else its holder."""
        with self._state.write() as connection:
            now = now_of(connection)
            dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
            row = {
                "place": lock.place,
                "table_name": str(lock.table),
                "token": lock.token,
                "host": self._owner.host,
                "pid": self._owner.pid,
                "taken_at": now,
                "until": now + lock.ttl,
            }
            new = dialect.insert(commit_locks).values(row)
            take = new.on_conflict_do_update(
                index_elements=["place"],
                set_={name: new.excluded[name] for name in row if name != "place"},
                where=commit_locks.c.until <= now,
            )
            connection.execute(take)
            there = select(commit_locks).where(commit_locks.c.place == lock.place)
            has = connection.execute(there).one_or_none()
        if has is None:
            return "a process that has just finished"  # released between the two statements
        return None if has.token == lock.token else f"{has.host} pid {has.pid}"

    def _release(self, lock: Lock) -> None:
        try:
            with self._state.write() as connection:
                connection.execute(delete(commit_locks).where(_held_by(lock.place, lock.token)))
        except Unreachable as error:
            # The commit is done; the lock expires by itself.
            log.warning("cannot release the lock on %s, it stays until it expires: %s", lock.table, error)


def _keep(lock: Lock) -> None:
    try:
        lock.renew()
    except Unreachable as error:
        log.warning("cannot renew the lock on %s: %s", lock.table, error)  # the next renewal may succeed


def _held_by(place: str, token: str) -> ColumnElement[bool]:
    return and_(commit_locks.c.place == place, commit_locks.c.token == token)


def newest_term(connection: Connection, *, held: bool = False) -> int:
    """The newest term of the workers' lease; 0 if no worker ever led. With `held`, the lease is locked until
    the caller's transaction ends."""
    newest = select(leases.c.term).where(leases.c.role == WORKER)
    return connection.execute(newest.with_for_update(read=True) if held else newest).scalar() or 0


@dataclass(frozen=True, slots=True)
class Lease(Plain):
    """`live`: it has not expired. `seconds_left` is by the database's clock."""

    role: str
    term: int
    token: str
    host: str
    pid: int
    taken_at: datetime
    until: datetime
    note: Mapping[str, Any]
    live: bool
    seconds_left: float

    JSON_KEYS = "role term holder since=taken_at live seconds_left:1 **note"

    @property
    def holder(self) -> str:
        return f"{self.host} pid {self.pid}"


class Leases:
    """Leadership: which worker leads, in which term, and until when.

    A lease is one row. Its holder renews it; after it expires, any worker may take it, and the term grows
    by one. Times are the database's. Everything a leader does belongs to its term: a journal step of a run
    whose term is not the newest is refused in the same transaction (see `runs.py`), so a leader that was
    suspended and wakes up cannot continue.
    """

    def __init__(self, state: State, role: str = WORKER) -> None:
        self._state, self._role = state, role

    def take(self, owner: Owner, ttl: timedelta, note: Mapping[str, Any] | None = None) -> Lease | None:
        """Take the lease with a new term if it is free or expired; None if another worker leads."""
        with self._state.write() as connection:
            now = now_of(connection)
            mine = {
                "token": owner.token,
                "host": owner.host,
                "pid": owner.pid,
                "taken_at": now,
                "until": now + ttl,
                "note": dict(note or {}),
            }
            over = and_(leases.c.role == self._role, leases.c.until <= now)
            change = update(leases).where(over).values(**mine, term=leases.c.term + 1)
            taken = connection.execute(change).rowcount == 1
            there = connection.execute(select(leases.c.role).where(leases.c.role == self._role)).one_or_none()
            if not taken and there is not None:
                return None
        if not taken and not self._first(mine):
            return None
        found = self.current()
        return found if found is not None and found.token == owner.token else None

    def _first(self, mine: Mapping[str, Any]) -> bool:
        """Insert the very first lease; if several try, the primary key lets one succeed."""
        try:
            with self._state.write() as connection:
                connection.execute(insert(leases).values(role=self._role, term=1, **mine))
            return True
        except IntegrityError:
            return False

    def renew(self, lease: Lease, ttl: timedelta, note: Mapping[str, Any] | None = None) -> bool:
        """Extend the lease. False if it expired or another worker has it: the caller is not the leader any
        more."""
        with self._state.write() as connection:
            now = now_of(connection)
            mine = and_(
                leases.c.role == lease.role,
                leases.c.token == lease.token,
                leases.c.term == lease.term,
                leases.c.until > now,
            )
            said = {} if note is None else {"note": dict(note)}
            change = update(leases).where(mine).values(until=now + ttl, **said)
            return connection.execute(change).rowcount == 1

    def release(self, lease: Lease) -> None:
        """Let others take the lease at once. A lease that is already another worker's is not changed."""
        with self._state.write() as connection:
            mine = and_(
                leases.c.role == lease.role, leases.c.token == lease.token, leases.c.term == lease.term
            )
            connection.execute(update(leases).where(mine).values(until=now_of(connection)))

    def current(self) -> Lease | None:
        """The lease as its last holder left it, expired or not."""
        with self._state.read() as connection:
            now = now_of(connection)
            row = connection.execute(select(leases).where(leases.c.role == self._role)).one_or_none()
        if row is None:
            return None
        left = (row.until - now).total_seconds()
        return Lease(
            row.role,
            row.term,
            row.token,
            row.host,
            row.pid,
            row.taken_at,
            row.until,
            row.note,
            left > 0,
            max(left, 0.0),
        )
