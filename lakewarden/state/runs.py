"""The journal: every run and its steps, the progress of open runs, and requests to cancel them.

A step is written before it is acted on, so that the next process knows where to continue.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, Row, and_, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from lakewarden.errors import Busy, RunTaken
from lakewarden.model.job_facts import slot_of
from lakewarden.model.plain import Plain
from lakewarden.model.run import Owner, Run, RunState, Step, Trigger
from lakewarden.state.database import State, now_of, upsert
from lakewarden.state.locks import WORKER, newest_term
from lakewarden.state.process import BEAT_TTL, current_owner, is_gone
from lakewarden.state.schema import leases, run_cancels, run_progress, run_steps, runs

__all__ = ["BEAT_TTL", "Journal", "current_owner", "is_gone", "new_run_id"]

_START_ATTEMPTS = 5
# How long an owner may act on its run after a check: half of the time that others wait before they take it over.
RIGHT_SECONDS = BEAT_TTL.total_seconds() / 2


def new_run_id(now: datetime) -> str:
    """Sorts by time, short enough to type: `20261116-003012-7f3a9c`."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


class Listener(Protocol):
    """Is called when runs begin and end. Must not raise."""

    def started(self, run: Run) -> None: ...

    def ended(self, run: Run) -> None: ...


class Listeners:
    """Several listeners, called one after the other."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def started(self, run: Run) -> None:
        for each in self._listeners:
            each.started(run)

    def ended(self, run: Run) -> None:
        for each in self._listeners:
            each.ended(run)


class Journal:
    """The journal. Every method is one transaction: if the process stops inside, all of it is stored or
    nothing."""

    def __init__(self, state: State, listener: Listener | None = None) -> None:
        self._state = state
        self._listener = listener

    @property
    def state(self) -> State:
        """The database of the journal."""
        return self._state

    def start(
        self,
        *,
        run_id: str,
        table: str,
        job: str,
        owner: Owner,
        trigger: Trigger,
        plan: Mapping[str, Any],
        policy: Mapping[str, Any],
        now: datetime,
        lease_term: int | None = None,
    ) -> Run:
        """Open a run. Raises Busy with the run that is already open; a unique index makes sure that only one
        of two succeeds.

        Raises RunTaken if the lease term is not the newest.
        """
        row = {
            **_owned(owner),
            "id": run_id,
            "table_name": str(table),
            "job": str(job),
            "slot": slot_of(job),
            "state": RunState.RUNNING.value,
            "reason": "",
            "started_at": now,
            "beat_at": now,
            "trigger_type": trigger.type,
            "trigger_operator": trigger.operator,
            "trigger_ticket": trigger.ticket,
            "plan": plan,
            "policy": policy,
            "counters": {},
            "snapshot_ids": [],
            "last_step": 0,
            "lease_term": lease_term,
        }
        self._insert(row)
        run = self._existing(run_id)
        if self._listener is not None:
            self._listener.started(run)
        return run

    def _insert(self, row: Mapping[str, Any]) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                with self._state.write() as connection:
                    _refuse_stale(connection, row["id"], row["lease_term"])
                    connection.execute(insert(runs).values(row))
                return
            except IntegrityError:
                other = self.open_run(row["table_name"], row["job"])
                if other is not None:
                    raise _busy(other) from None
                # The other run ended between the insert and this query: the slot is free again, or the id was not new.
                if attempt == _START_ATTEMPTS:
                    raise

    def step(self, run_id: str, owner: Owner, name: str, detail: Mapping[str, Any], now: datetime) -> None:
        """Append a step if the run is open and still this owner's, else RunTaken: an owner that lost the run
        must not act on it."""
        advance = (
            update(runs)
            .where(runs.c.id == run_id, _open(), _owned_by(owner), _led())
            .values(last_step=runs.c.last_step + 1, beat_at=now)
            .returning(runs.c.last_step)
        )
        with self._state.write() as connection:
            seq = connection.execute(advance).scalar()
            if seq is None:
                raise _taken(connection, run_id)
            row = {"run_id": run_id, "seq": seq, "name": name, "at": now, "detail": detail}
            connection.execute(insert(run_steps).values(row))

    def beat(self, run_id: str, now: datetime, owner: Owner | None = None) -> bool:
        """Record that the run is still being worked on. False if it ended or (with `owner`) another process
        took it over."""
        mine = [] if owner is None else [_owned_by(owner), _led()]
        change = update(runs).where(runs.c.id == run_id, _open(), *mine).values(beat_at=now)
        with self._state.write() as connection:
            return connection.execute(change).rowcount == 1

    def right(self, run_id: str, owner: Owner, now: datetime) -> float:
        """Seconds, counted from this call, for which this owner may act on the run; 0 if it may not.

        A run under a lease may be taken over when the lease ends, so this never exceeds the lease's remaining
        time.
        """
        mine = (
            update(runs)
            .where(runs.c.id == run_id, _open(), _owned_by(owner), _led())
            .values(beat_at=now)
            .returning(runs.c.lease_term)
        )
        with self._state.write() as connection:
            row = connection.execute(mine).one_or_none()
            if row is None:
                return 0.0
            if row.lease_term is None:
                return RIGHT_SECONDS
            until = connection.execute(select(leases.c.until).where(leases.c.role == WORKER)).scalar_one()
            left: float = (until - now_of(connection)).total_seconds()
            return min(RIGHT_SECONDS, left)

    def finish(
        self,
        run_id: str,
        state: RunState,
        reason: str,
        counters: Mapping[str, Any],
        snapshot_ids: Sequence[int],
        now: datetime,
        owner: Owner | None = None,
    ) -> Run:
        """Close the run and return it. The first ending stays: finishing again changes nothing.

        With `owner`, a run that another process has taken over is not closed: RunTaken.
        """
        if state is RunState.RUNNING:
            raise ValueError("a run cannot end as running")
        mine = [] if owner is None else [_owned_by(owner), _led()]
        ending = {
            "state": state.value,
            "reason": reason,
            "counters": counters,
            "snapshot_ids": list(snapshot_ids),
            "ended_at": now,
        }
        with self._state.write() as connection:
            change = update(runs).where(runs.c.id == run_id, _open(), *mine).values(ending)
            first = connection.execute(change).rowcount == 1
            run = _get(connection, run_id)
            if run is None or run.ended_at is None:
                raise _taken(connection, run_id)
        if first and self._listener is not None:
            self._listener.ended(run)
        return run

    def settle(
        self, run_id: str, state: RunState, reason: str, snapshot_ids: Sequence[int], now: datetime
    ) -> bool:
        """Replace the state of a run that ended unknown by its real outcome; if several try, one gets True.
        Other states never change."""
        ending = {"state": state.value, "reason": reason, "snapshot_ids": list(snapshot_ids), "ended_at": now}
        unknown = runs.c.state == RunState.UNKNOWN.value
        with self._state.write() as connection:
            change = update(runs).where(runs.c.id == run_id, unknown).values(ending)
            settled = connection.execute(change).rowcount == 1
        if settled and self._listener is not None:
            self._listener.ended(self._existing(run_id))
        return settled

    def unknown(self, table: str, job: str) -> tuple[Run, ...]:
        """Runs that ended unknown, oldest first."""
        wanted = select(runs).where(
            runs.c.table_name == str(table), runs.c.job == str(job), runs.c.state == RunState.UNKNOWN.value
        )
        with self._state.read() as connection:
            return tuple(read_run(row) for row in connection.execute(wanted.order_by(runs.c.started_at)))

    def take_over(self, seen: Run, owner: Owner, now: datetime, lease_term: int | None = None) -> bool:
        """Make this owner the owner of a run whose process is dead; if several try, one gets True.

        `seen` is the run as `is_gone` judged it: if it changed since, nothing happens. `lease_term` is the
        new owner's term.
        """
        unchanged = and_(_owned_by(seen.owner), runs.c.beat_at == seen.beat_at)
        mine = {**_owned(owner), "beat_at": now, "lease_term": lease_term}
        change = update(runs).where(runs.c.id == seen.id, _open(), unchanged).values(mine)
        with self._state.write() as connection:
            _refuse_stale(connection, seen.id, lease_term)
            return connection.execute(change).rowcount == 1

    def outlived(self, run: Run) -> bool:
        """Whether the run's lease term is older than the newest: its owner can no longer act on it."""
        if run.lease_term is None:
            return False
        with self._state.read() as connection:
            return run.lease_term < newest_term(connection)

    def open_run(self, table: str, job: str) -> Run | None:
        """The open run of this job on the table, or of a job that must not run at the same time."""
        wanted = select(runs).where(runs.c.table_name == str(table), runs.c.slot == slot_of(job), _open())
        with self._state.read() as connection:
            row = connection.execute(wanted).one_or_none()
        return read_run(row) if row else None

    def get(self, run_id: str) -> Run | None:
        with self._state.read() as connection:
            return _get(connection, run_id)

    def _existing(self, run_id: str) -> Run:
        with self._state.read() as connection:
            return read_run(connection.execute(select(runs).where(runs.c.id == run_id)).one())

    def list(self, table: str | None = None, limit: int = 50) -> tuple[Run, ...]:
        """Runs, newest first."""
        wanted = select(runs).order_by(runs.c.started_at.desc(), runs.c.id.desc()).limit(limit)
        if table is not None:
            wanted = wanted.where(runs.c.table_name == str(table))
        with self._state.read() as connection:
            return tuple(read_run(row) for row in connection.execute(wanted))

    def steps(self, run_id: str) -> tuple[Step, ...]:
        """The steps of a run in order."""
        wanted = select(run_steps).where(run_steps.c.run_id == run_id).order_by(run_steps.c.seq)
        with self._state.read() as connection:
            rows = connection.execute(wanted).all()
        return tuple(Step(row.run_id, row.seq, row.name, row.at, row.detail) for row in rows)


def fence(connection: Connection, run_id: str, owner: Owner, now: datetime) -> None:
    """Check, inside the caller's transaction, that the run is open and still this owner's; else RunTaken.

    The row is locked until the transaction ends: no process can take the run over while the caller writes.
    """
    mine = update(runs).where(runs.c.id == run_id, _open(), _owned_by(owner), _led()).values(beat_at=now)
    if connection.execute(mine).rowcount != 1:
        raise _taken(connection, run_id)


def _open() -> ColumnElement[bool]:
    return runs.c.ended_at.is_(None)


def _led() -> ColumnElement[bool]:
    """The run has no lease term, or the newest one. The lease's row is locked until the caller's transaction
    ends, so no new leader can begin in between."""
    newest = select(leases.c.term).where(leases.c.role == WORKER)
    return or_(
        runs.c.lease_term.is_(None), runs.c.lease_term >= newest.with_for_update(read=True).scalar_subquery()
    )


def _refuse_stale(connection: Connection, run_id: str, lease_term: int | None) -> None:
    if lease_term is None:
        return
    newest = newest_term(connection, held=True)
    if lease_term < newest:
        raise RunTaken(run_id=run_id, reason=_led_by_another(lease_term, newest))


def _led_by_another(lease_term: int, newest: int) -> str:
    return f"another worker took over (term {newest}, this run has term {lease_term})"


def _owned(owner: Owner) -> dict[str, Any]:
    return {
        "owner_host": owner.host,
        "owner_pid": owner.pid,
        "owner_started": owner.started,
        "owner_token": owner.token,
    }


def _owned_by(owner: Owner) -> ColumnElement[bool]:
    return and_(*(runs.c[name] == value for name, value in _owned(owner).items()))


def _get(connection: Connection, run_id: str) -> Run | None:
    row = connection.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
    return read_run(row) if row else None


def _busy(run: Run) -> Busy:
    since = f"{run.started_at:%Y-%m-%d %H:%M:%S} UTC"
    return Busy(job=run.job, table=run.table, run_id=run.id, owner=str(run.owner), since=since)


def _taken(connection: Connection, run_id: str) -> RunTaken:
    run = _get(connection, run_id)
    if run is None:
        reason = "there is no such run in the journal"
    elif run.ended_at is not None:
        reason = f"it ended as {run.state} at {run.ended_at:%Y-%m-%d %H:%M:%S} UTC"
    elif run.lease_term is not None and run.lease_term < (newest := newest_term(connection)):
        reason = _led_by_another(run.lease_term, newest)
    else:
        reason = f"{run.owner} took it over"
    return RunTaken(run_id=run_id, reason=reason)


def read_run(row: Row[Any], *, brief: bool = False) -> Run:
    """A run from its row. `brief`: the row was selected without plan and policy."""
    return Run(
        id=row.id,
        table=row.table_name,
        job=row.job,
        state=RunState(row.state),
        reason=row.reason,
        started_at=row.started_at,
        ended_at=row.ended_at,
        owner=Owner(row.owner_host, row.owner_pid, row.owner_started, row.owner_token),
        trigger=Trigger(row.trigger_type, row.trigger_operator, row.trigger_ticket),
        plan={} if brief else row.plan,
        counters=row.counters,
        snapshot_ids=tuple(row.snapshot_ids),
        beat_at=row.beat_at,
        policy={} if brief else row.policy,
        lease_term=row.lease_term,
    )


@dataclass(frozen=True, slots=True)
class ProgressPoint(Plain):
    """The progress of a run at one time. `total_bytes` is 0 if the total is unknown."""

    what: str
    done_bytes: int
    total_bytes: int
    note: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Cancel:
    run_id: str
    by: str
    at: datetime


class RunProgress:
    def __init__(self, state: State) -> None:
        self._state = state

    def put(self, run_id: str, moment: ProgressPoint) -> None:
        row = {"run_id": run_id, **{name: getattr(moment, name) for name in ProgressPoint.__slots__}}
        with self._state.write() as connection:
            upsert(connection, run_progress, row, ["run_id"])

    def get(self, run_id: str) -> ProgressPoint | None:
        with self._state.read() as connection:
            row = connection.execute(
                select(run_progress).where(run_progress.c.run_id == run_id)
            ).one_or_none()
        return ProgressPoint(row.what, row.done_bytes, row.total_bytes, row.note, row.at) if row else None

    def cancel(self, run_id: str, by: str, now: datetime) -> None:
        """Ask the run's process to stop it cleanly. It stops within seconds. A run that ended is not changed."""
        with self._state.write() as connection:
            upsert(connection, run_cancels, {"run_id": run_id, "by": by, "at": now}, ["run_id"])

    def cancelled(self, run_id: str) -> Cancel | None:
        with self._state.read() as connection:
            row = connection.execute(select(run_cancels).where(run_cancels.c.run_id == run_id)).one_or_none()
        return Cancel(row.run_id, row.by, row.at) if row else None
