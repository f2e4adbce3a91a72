"""The schedule's state per table: last start, end and result of each pass or job, failures in a row, and
suspensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select

from lakewarden.model.plain import Plain
from lakewarden.state.database import State, now_of, upsert
from lakewarden.state.locks import newest_term
from lakewarden.state.schema import standings, suspensions, table_health

PASS = "pass"
SEEN = "seen"  # no job: `began_at` is when a worker first saw the table
GONE = "gone"  # the state of `seen` once its catalog does not list it any more


@dataclass(frozen=True, slots=True)
class TableSchedule(Plain):
    """The state of one table and slot: `pass`, a job's name, or `seen`.

    For a pass, `failures` counts failures in a row, and the table is not tried again before `retry_at`;
    `left_open` counts passes in a row that no worker lived to end. For a job, `retry_at` means that the job
    is due from then on; without it the job's configured times apply.
    """

    table: str
    slot: str
    began_at: datetime | None = None
    ended_at: datetime | None = None
    state: str = ""
    reason: str = ""
    failures: int = 0
    retry_at: datetime | None = None
    run_ids: tuple[str, ...] = ()
    left_open: int = 0

    JSON_KEYS = "table slot began_at ended_at retry_at state reason failures run_ids left_open"


@dataclass(frozen=True, slots=True)
class Suspension(Plain):
    table: str
    since: datetime
    reason: str
    by: str


class TableSchedules:
    def __init__(self, state: State) -> None:
        self._state = state

    def all(self) -> Mapping[tuple[str, str], TableSchedule]:
        """The state of every table and slot, in one query."""
        with self._state.read() as connection:
            found = [_schedule(row) for row in connection.execute(select(standings))]
        return {(each.table, each.slot): each for each in found}

    def of(self, table: str) -> tuple[TableSchedule, ...]:
        wanted = select(standings).where(standings.c.table_name == table).order_by(standings.c.slot)
        with self._state.read() as connection:
            return tuple(_schedule(row) for row in connection.execute(wanted))

    def by_table(self) -> dict[str, dict[str, TableSchedule]]:
        """The slots of every table."""
        found: dict[str, dict[str, TableSchedule]] = {}
        for (table, slot), each in self.all().items():
            found.setdefault(table, {})[slot] = each
        return found

    def forgiven(self) -> frozenset[str]:
        """Tables that have a retry time but no failures: `resume` leaves them in this state."""
        wanted = select(standings.c.table_name).where(
            standings.c.slot == PASS, standings.c.failures == 0, standings.c.retry_at.is_not(None)
        )
        with self._state.read() as connection:
            return frozenset(connection.execute(wanted).scalars())

    def put(self, schedule: TableSchedule) -> None:
        self.put_all([schedule])

    def put_all(self, those: Iterable[TableSchedule], lease_term: int | None = None) -> bool:
        """Store all or none. Returns False and stores nothing if the lease term is not the newest."""
        with self._state.write() as connection:
            if lease_term is not None and lease_term < newest_term(connection, held=True):
                return False
            for each in those:
                _put(connection, each)
        return True

    def change(
        self,
        table: str,
        into: Callable[[TableSchedule | None], Sequence[TableSchedule]],
        lease_term: int | None = None,
    ) -> Sequence[TableSchedule] | None:
        """Replace the state of the table's pass by the result of `into`, read and written in one transaction,
        so that a concurrent `resume` is not lost. None, and no change, if the lease term is not the newest."""
        with self._state.write() as connection:
            if lease_term is not None and lease_term < newest_term(connection, held=True):
                return None
            made = into(_pass_held(connection, table))
            for each in made:
                _put(connection, each)
        return made

    def debts(self) -> Mapping[str, float]:
        """The debt of every table, as last seen by health."""
        with self._state.read() as connection:
            rows = connection.execute(select(table_health.c.table_name, table_health.c.debt))
            return {row.table_name: row.debt for row in rows}

    # ------------------------------------------------------------ suspended tables

    def suspended(self) -> Mapping[str, Suspension]:
        with self._state.read() as connection:
            rows = connection.execute(select(suspensions)).all()
        return {row.table_name: Suspension(row.table_name, row.since, row.reason, row.by) for row in rows}

    def suspend(self, suspension: Suspension) -> None:
        row = {
            "table_name": suspension.table,
            "since": suspension.since,
            "reason": suspension.reason,
            "by": suspension.by,
        }
        with self._state.write() as connection:
            upsert(connection, suspensions, row, ["table_name"])

    def resume(self, table: str) -> bool:
        """Remove the table's suspension; returns whether there was one. Its failures are reset, and its
        overdue jobs are due at once."""
        with self._state.write() as connection:
            _pass_held(
                connection, table
            )  # first, in the same order as `change`, so that the two cannot deadlock
            gone = connection.execute(delete(suspensions).where(suspensions.c.table_name == table)).rowcount
            clean = standings.update().where(standings.c.table_name == table)
            connection.execute(clean.values(failures=0, left_open=0))
            owed = standings.c.retry_at.is_not(None)
            connection.execute(clean.where(owed).values(retry_at=now_of(connection)))
        return gone == 1


def _pass_held(connection: Connection, table: str) -> TableSchedule | None:
    """The state of the table's pass, locked until the caller's transaction ends."""
    wanted = select(standings).where(standings.c.table_name == table, standings.c.slot == PASS)
    row = connection.execute(wanted.with_for_update()).one_or_none()
    return None if row is None else _schedule(row)


def _put(connection: Connection, schedule: TableSchedule) -> None:
    row = {
        "table_name": schedule.table,
        "slot": schedule.slot,
        "began_at": schedule.began_at,
        "ended_at": schedule.ended_at,
        "state": schedule.state,
        "reason": schedule.reason,
        "failures": schedule.failures,
        "retry_at": schedule.retry_at,
        "run_ids": list(schedule.run_ids),
        "left_open": schedule.left_open,
    }
    upsert(connection, standings, row, ["table_name", "slot"])


def _schedule(row: Any) -> TableSchedule:
    return TableSchedule(
        row.table_name,
        row.slot,
        row.began_at,
        row.ended_at,
        row.state,
        row.reason,
        row.failures,
        row.retry_at,
        tuple(row.run_ids),
        row.left_open,
    )
