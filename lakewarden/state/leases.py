"""Leadership: which worker leads, in which term, and until when.

A lease is one row. Its holder renews it; after it expires, any worker may take it, and the term grows by one.
Times are the database's. Everything a leader does belongs to its term: a journal step of a run whose term is
not the newest is refused in the same transaction (see `runs`), so a leader that was suspended and wakes up
cannot continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, insert, select, update
from sqlalchemy.exc import IntegrityError

from lakewarden.model.plain import Plain
from lakewarden.model.run import Owner
from lakewarden.state.database import State, now_of
from lakewarden.state.schema import leases

WORKER = "worker"


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
