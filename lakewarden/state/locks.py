"""Commit locks: one Lakewarden at a time changes a table whose store has no lock of its own.

A lock is a row that says who has it and until when. It is renewed while it is held, and who finds its time over takes it:
a process that stopped keeps nobody out for longer than that. The time is the database's, so that clocks of hosts may differ.

What a lock cannot do: stop a process that checked it, stood still for longer than its time, and then went on. So it is
checked right before the commit, and long ago at any other moment counts for nothing. Its holder also counts the time by its
own clock, from before each renewal: once a renewal is missing for that long, the holder itself does not believe the lock any
more, even if the database never answers again. After the commit it asks whether the lock lasted.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from lakewarden import clock
from lakewarden.errors import CommitLost, Unreachable
from lakewarden.model.run import Owner
from lakewarden.model.table_name import TableRef
from lakewarden.state.database import State, now_of
from lakewarden.state.schema import commit_locks

log = logging.getLogger(__name__)

TTL = timedelta(seconds=30)
# Longer than the time of a lock: after a crash its last holder's is waited out.
WAIT = timedelta(seconds=90)
_POLL_SECONDS = 0.1


def removal(table_uuid: str) -> str:
    """The place of the lock under which snapshots leave a table through the gateway."""
    return f"removal:{table_uuid}"


@dataclass(slots=True, eq=False)
class Lock:
    """A lock as its holder knows it. `until` is by this process's own clock: no later than the database's."""

    state: State
    table: TableRef
    place: str
    token: str
    ttl: timedelta
    until: float = -math.inf
    _stays: threading.Event = field(default_factory=threading.Event, repr=False)

    def leave(self) -> None:
        """Not let go in the end, but kept for its time: what was begun under it may still be happening."""
        self._stays.set()

    def check(self) -> None:
        """Still ours, and for its whole time from now on; else CommitLost. Asked right before a commit begins."""
        if not self.renew():
            raise CommitLost(
                table=self.table, reason="its lock ran out before the commit began; nothing was done"
            )

    def lasts(self) -> bool:
        """Whether its last renewal is younger than its time, by this process's own clock. Asks nobody."""
        return clock.monotonic() < self.until

    def renew(self) -> bool:
        """False where its time is over, whether or not another has it by now."""
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
        """Counted from before the question: the database's answer may have taken its time."""
        self.until = max(self.until, asked_at + self.ttl.total_seconds())


class Locks:
    """`owner` is whom others are told they wait for."""

    def __init__(self, state: State, owner: Owner, ttl: timedelta = TTL, wait: timedelta = WAIT) -> None:
        self._state = state
        self._owner = owner
        self._ttl = ttl
        self._wait = wait

    @contextmanager
    def held(self, table: TableRef, place: str) -> Iterator[Lock]:
        """The lock on a table, by where it lies: two catalogs may name it differently. CommitLost when it cannot be had in time."""
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
        """None: taken. Else who has it."""
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
            return "one that is done by now"  # it let go between our two statements
        return None if has.token == lock.token else f"{has.host} pid {has.pid}"

    def _release(self, lock: Lock) -> None:
        try:
            with self._state.write() as connection:
                connection.execute(delete(commit_locks).where(_held_by(lock.place, lock.token)))
        except Unreachable as error:
            # What was done under it stands; the lock ends by itself.
            log.warning("the lock on %s stays until its time is over: %s", lock.table, error)


def _keep(lock: Lock) -> None:
    try:
        lock.renew()
    except Unreachable as error:
        log.warning(
            "the lock on %s cannot be renewed: %s", lock.table, error
        )  # the next time may get through


def _held_by(place: str, token: str) -> ColumnElement[bool]:
    return and_(commit_locks.c.place == place, commit_locks.c.token == token)
