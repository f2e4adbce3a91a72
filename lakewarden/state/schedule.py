"""How tables stand with the schedule: when each was last at work and how that ended, who failed how often, who is suspended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select

from lakewarden.model.plain import Plain
from lakewarden.state.database import State, now_of
from lakewarden.state.leases import newest_term
from lakewarden.state.rows import upsert
from lakewarden.state.schema import standings, suspensions, table_health

PASS = "pass"
SEEN = "seen"  # not of work: `began_at` is when a worker first saw the table
GONE = "gone"  # the state of `seen` once its catalog does not list it any more


@dataclass(frozen=True, slots=True)
class Standing(Plain):
    """Of one table and slot: `pass`, a job's name, or `seen`.

    Of a pass, `failures` are those in a row, and before `retry_at` the table is left alone; `left_open` of them, in a row, no
    worker lived to end. Of a job, `retry_at` says that it is owed, and from when on; without it the job's own times count.
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


class Standings:
    def __init__(self, state: State) -> None:
        self._state = state

    def all(self) -> Mapping[tuple[str, str], Standing]:
        """Of every table and slot, in one look."""
        with self._state.read() as connection:
            found = [_standing(row) for row in connection.execute(select(standings))]
        return {(each.table, each.slot): each for each in found}

    def of(self, table: str) -> tuple[Standing, ...]:
        wanted = select(standings).where(standings.c.table_name == table).order_by(standings.c.slot)
        with self._state.read() as connection:
            return tuple(_standing(row) for row in connection.execute(wanted))

    def by_table(self) -> dict[str, dict[str, Standing]]:
        """Of every table by slot."""
        found: dict[str, dict[str, Standing]] = {}
        for (table, slot), each in self.all().items():
            found.setdefault(table, {})[slot] = each
        return found

    def forgiven(self) -> frozenset[str]:
        """Tables that were told to be tried again without any failure to their name: `resume` leaves them so."""
        wanted = select(standings.c.table_name).where(
            standings.c.slot == PASS, standings.c.failures == 0, standings.c.retry_at.is_not(None)
        )
        with self._state.read() as connection:
            return frozenset(connection.execute(wanted).scalars())

    def put(self, standing: Standing) -> None:
        self.put_all([standing])

    def put_all(self, those: Iterable[Standing], lease_term: int | None = None) -> bool:
        """All or none. Under a lease that is no longer the newest nothing is written: False."""
        with self._state.write() as connection:
            if lease_term is not None and lease_term < newest_term(connection, held=True):
                return False
            for each in those:
                _put(connection, each)
        return True

    def change(
        self,
        table: str,
        into: Callable[[Standing | None], Sequence[Standing]],
        lease_term: int | None = None,
    ) -> Sequence[Standing] | None:
        """What `into` makes of the table's pass as it stands now, written in the same transaction: a `resume` comes before or
        after it, and is not lost. Under a lease that is no longer the newest nothing is written: None."""
        with self._state.write() as connection:
            if lease_term is not None and lease_term < newest_term(connection, held=True):
                return None
            made = into(_pass_held(connection, table))
            for each in made:
                _put(connection, each)
        return made

    def debts(self) -> Mapping[str, float]:
        """What every table owes, as its health was last seen."""
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
        """Whether it was suspended. Its failures are forgotten, and what it owes is due at once."""
        with self._state.write() as connection:
            _pass_held(connection, table)  # first, as `change` does: neither waits for what the other holds
            gone = connection.execute(delete(suspensions).where(suspensions.c.table_name == table)).rowcount
            clean = standings.update().where(standings.c.table_name == table)
            connection.execute(clean.values(failures=0, left_open=0))
            owed = standings.c.retry_at.is_not(None)
            connection.execute(clean.where(owed).values(retry_at=now_of(connection)))
        return gone == 1


def _pass_held(connection: Connection, table: str) -> Standing | None:
    """The table's pass, which stays as it is until the caller's transaction ends."""
    wanted = select(standings).where(standings.c.table_name == table, standings.c.slot == PASS)
    row = connection.execute(wanted.with_for_update()).one_or_none()
    return None if row is None else _standing(row)


def _put(connection: Connection, standing: Standing) -> None:
    row = {
        "table_name": standing.table,
        "slot": standing.slot,
        "began_at": standing.began_at,
        "ended_at": standing.ended_at,
        "state": standing.state,
        "reason": standing.reason,
        "failures": standing.failures,
        "retry_at": standing.retry_at,
        "run_ids": list(standing.run_ids),
        "left_open": standing.left_open,
    }
    upsert(connection, standings, row, ["table_name", "slot"])


def _standing(row: Any) -> Standing:
    return Standing(
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
