"""Queries about runs: lists without the large columns, sums of ended runs, and the snapshots that an open
expiry removes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, Text, case, cast, extract, func, select

from lakewarden.model.run import Job, Run, Step
from lakewarden.state.database import State
from lakewarden.state.runs import Journal, read_run
from lakewarden.state.schema import runs

# The journal steps before and after an expiry's commit.
EXPIRING = "expiring"
TRASHED = "trashed"
_SECOND = 1_000_000
_LONG = ("plan", "policy")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter for runs: text in the table's name (with `exact` the whole name), job, and state. An empty
    value matches all."""

    table: str = ""
    job: str = ""
    state: str = ""
    exact: bool = False


class RunSearch:
    def __init__(self, state: State) -> None:
        self._state = state

    def find(self, sought: RunFilter, limit: int = 50, offset: int = 0) -> tuple[Run, ...]:
        """Runs, newest first."""
        wanted = _brief().order_by(runs.c.started_at.desc(), runs.c.id.desc()).limit(limit).offset(offset)
        if sought.table:
            name = runs.c.table_name
            wanted = wanted.where(
                name == sought.table if sought.exact else name.contains(sought.table, autoescape=True)
            )
        if sought.job:
            wanted = wanted.where(runs.c.job == sought.job)
        if sought.state:
            wanted = wanted.where(runs.c.state == sought.state)
        return self._all(wanted)

    def running(self) -> tuple[Run, ...]:
        """Open runs, oldest first."""
        return self._all(_brief().where(runs.c.ended_at.is_(None)).order_by(runs.c.started_at, runs.c.id))

    def _all(self, wanted: Select[Any]) -> tuple[Run, ...]:
        with self._state.read() as connection:
            return tuple(read_run(row, brief=True) for row in connection.execute(wanted))


def _brief() -> Select[Any]:
    return select(*(each for each in runs.c if each.name not in _LONG))


@dataclass(frozen=True, slots=True)
class RunSum:
    """Runs of one table and job that ended in the same state.

    `took` counts runs per duration: for each bound, the runs that took at most that long and longer than the
    bound before; the last entry counts those above all bounds. Microseconds, because sums of whole numbers do
    not depend on their order.
    """

    table: str
    job: str
    state: str
    runs: int
    newest: datetime
    microseconds: int
    took: tuple[int, ...]
    added: Mapping[str, int | float]


class RunTotals:
    def __init__(self, state: State) -> None:
        self._state = state

    def newest_end(self) -> datetime | None:
        """When the newest ended run ended."""
        with self._state.read() as connection:
            found: datetime | None = connection.execute(select(func.max(runs.c.ended_at))).scalar()
        return found

    def before(self, until: datetime, counters: Sequence[str], bounds: Sequence[float]) -> tuple[RunSum, ...]:
        """Sums of all runs that ended before `until`, by table, job and state, with these counters."""
        with self._state.read() as connection:
            # Computed once per run: without MATERIALIZED the database repeats it for every column below.
            each = (
                select(
                    runs.c.table_name,
                    runs.c.job,
                    runs.c.state,
                    runs.c.ended_at,
                    _took(connection).label("took"),
                    *(runs.c.counters[name].as_float().label(f"is_{name}") for name in counters),
                )
                .where(runs.c.ended_at < until)
                .cte("each_run")
                .prefix_with("MATERIALIZED")
            )
            alike = (each.c.table_name, each.c.job, each.c.state)
            wanted = select(
                *alike,
                func.count().label("runs"),
                func.max(each.c.ended_at).label("newest"),
                func.sum(each.c.took).label("microseconds"),
                *(found.label(f"took_{n}") for n, found in enumerate(_buckets(each.c.took, bounds))),
                *(func.sum(each.c[f"is_{name}"]).label(f"sum_{name}") for name in counters),
            ).group_by(*alike)
            rows = connection.execute(wanted).all()
        return tuple(_run_sum(row, counters, len(bounds) + 1) for row in rows)

    def ended_as(self, state: str, until: datetime) -> frozenset[str]:
        """The ids of runs that ended in this state before `until`."""
        wanted = select(runs.c.id).where(runs.c.ended_at < until, runs.c.state == state)
        with self._state.read() as connection:
            return frozenset(connection.execute(wanted).scalars())

    def newest_with(self, counter: str, jobs: Sequence[str], until: datetime) -> Mapping[str, Any]:
        """The counters of the newest run of these jobs that has this counter; empty if there is none."""
        wanted = (
            select(runs.c.counters)
            .where(
                runs.c.ended_at < until,
                runs.c.job.in_(jobs),
                runs.c.counters[counter].as_float().is_not(None),
            )
            .order_by(runs.c.ended_at.desc())
            .limit(1)
        )
        with self._state.read() as connection:
            found: Mapping[str, Any] | None = connection.execute(wanted).scalar()
        return found or {}


def _took(connection: Connection) -> ColumnElement[Any]:
    """Microseconds from start to end, at least 0, exact on both databases."""
    exact: ColumnElement[Any]
    if connection.dialect.name == "postgresql":
        exact = cast(extract("epoch", runs.c.ended_at - runs.c.started_at) * _SECOND, BigInteger)
    else:
        exact = _since_epoch(runs.c.ended_at) - _since_epoch(runs.c.started_at)
    return case((exact > 0, exact), else_=0)


def _since_epoch(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    """SQLite stores times as text; converted to a day number they would lose the last digits."""
    fraction = func.substr(cast(moment, Text), 21, 6)
    return cast(func.strftime("%s", moment), BigInteger) * _SECOND + cast(fraction, BigInteger)


def _buckets(took: ColumnElement[Any], bounds: Sequence[float]) -> list[ColumnElement[Any]]:
    edges = [round(bound * _SECOND) for bound in bounds]
    up_to = [func.coalesce(func.sum(case((took <= edge, 1), else_=0)), 0) for edge in edges]
    reached = [*up_to, func.count()]
    return [reached[0], *(after - before for before, after in pairwise(reached))]


def _run_sum(row: Any, counters: Sequence[str], buckets: int) -> RunSum:
    found = row._mapping
    sums = {name: found[f"sum_{name}"] for name in counters}
    return RunSum(
        row.table_name,
        row.job,
        row.state,
        row.runs,
        row.newest,
        int(row.microseconds),
        tuple(int(found[f"took_{n}"]) for n in range(buckets)),
        {name: int(each) if float(each).is_integer() else each for name, each in sums.items() if each},
    )


@dataclass(frozen=True, slots=True)
class ExpiringSnapshots:
    """Snapshots that are being removed, and refs whose retention is over."""

    snapshots: frozenset[int] = frozenset()
    refs: frozenset[str] = frozenset()


def taking(journal: Journal, table: str, snapshot_id: int) -> Run | None:
    """The expiry that journaled the removal of this snapshot but not yet its outcome."""
    return next((run for run, going in _undecided(journal, table) if snapshot_id in going.snapshots), None)


def expiring_now(journal: Journal, table: str) -> ExpiringSnapshots:
    """What the open expiry removes. A run that has ended commits nothing more."""
    run = journal.open_run(table, Job.EXPIRE)
    return ExpiringSnapshots() if run is None else _going(journal.steps(run.id))


def _undecided(journal: Journal, table: str) -> Iterator[tuple[Run, ExpiringSnapshots]]:
    under_way = journal.open_run(table, Job.EXPIRE)
    for run in (*journal.unknown(table, Job.EXPIRE), *([under_way] if under_way else [])):
        yield run, _going(journal.steps(run.id))


def _going(steps: Sequence[Step]) -> ExpiringSnapshots:
    """A later attempt of the same run replaces the one before, which changed nothing; an active deletion
    batch ends it."""
    going = ExpiringSnapshots()
    for step in steps:
        if step.name == EXPIRING:
            going = ExpiringSnapshots(
                frozenset(step.detail["snapshot_ids"]), frozenset(step.detail.get("refs", ()))
            )
        elif step.name == TRASHED:
            going = ExpiringSnapshots()
    return going
