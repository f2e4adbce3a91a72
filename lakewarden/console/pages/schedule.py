"""The week: when jobs are due, when nothing starts, and which tables are next. The next turn of a table is
decided as the leading worker would decide it now.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from cronsim import CronSim

from lakewarden.client import Lakewarden
from lakewarden.config.schema import BudgetsConfig, ScheduleConfig
from lakewarden.config.types import CONTINUOUS, NEVER
from lakewarden.console.charts import Span, Tick
from lakewarden.jobs.quiet_windows import Windows
from lakewarden.model.job_facts import JOBS, Pause
from lakewarden.model.plain import Plain, pick, to_plain
from lakewarden.model.run import Job
from lakewarden.policy.fleet import pass_jobs
from lakewarden.policy.resolve import Policy
from lakewarden.state.locks import Lease
from lakewarden.state.requests import PassRequest
from lakewarden.state.schedule import PASS, SEEN, TableSchedule
from lakewarden.worker import schedule
from lakewarden.worker.schedule import WHOLE_PASS, Decision, WaitingTable, WaitReason, due_at, times_of
from lakewarden.worker.schedule_view import current_decision
from lakewarden.worker.tables import Tables

_DAY = timedelta(days=1)
SHOWN = 100
_TICKS = 336  # of one job: every half hour; more would cover each other
# By colour of the week's ticks, the jobs that have it; the others share one.
_MARKS = {
    mark: tuple(str(job) for job, facts in JOBS.items() if facts.mark == mark)
    for mark in sorted({facts.mark for facts in JOBS.values()} - {""})
}
_MARKED = {job for jobs in _MARKS.values() for job in jobs}
_BARS = (
    ("span", "no compaction starts", Pause.COMPACTION),
    ("span span-expiry", "no expiry starts", Pause.EXPIRY),
)


@dataclass(frozen=True, slots=True)
class SchedulePage:
    now: datetime
    first: datetime
    schedule: ScheduleConfig
    spans: tuple[Span, ...]
    ticks: tuple[Tick, ...]
    closed: tuple[str, ...]
    next: tuple[tuple[str, NextRun], ...]
    due: int
    requests: tuple[PassRequest, ...]
    leader: Lease | None

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """The marks that this week has, with their words."""
        jobs, pauses = {each.kind for each in self.ticks}, {each.kind for each in self.spans}
        named = [
            *((f"tick tick-{mark}", " and ".join(of)) for mark, of in _MARKS.items() if jobs & set(of)),
            *([("tick", "the other jobs")] if jobs - _MARKED else []),
            *((mark, text) for mark, text, kind in _BARS if kind in pauses),
        ]
        return tuple(named)

    def to_dict(self) -> dict[str, Any]:
        return {
            **pick(self, "at=now schedule"),
            "windows": [pick(each, "from=start to=end pauses=kind") for each in self.spans],
            "times": [pick(each, "at job=kind") for each in self.ticks],
            **pick(self, "closed_now=closed tables_due=due"),
            "next": [{"table": table, **due.to_dict()} for table, due in self.next],
            "requests": to_plain(self.requests),
        }


def schedule_page(warden: Lakewarden, decision: Decision, now: datetime) -> SchedulePage:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first = midnight - midnight.weekday() * _DAY
    order = tuple(next_runs(decision).items())
    budgets = warden.config.budgets
    return SchedulePage(
        now,
        first,
        warden.config.schedule,
        tuple(_spans(budgets, first)),
        tuple(_ticks(warden.config.schedule, first)),
        tuple(_closed(budgets, now)),
        order[:SHOWN],
        len(decision.due),
        warden.schedule.requests(limit=20),
        warden.schedule.leader(),
    )


def _windows(budgets: BudgetsConfig) -> Iterator[tuple[str, Windows]]:
    yield Pause.COMPACTION.value, Windows.parse(budgets.pause_compaction)
    yield Pause.EXPIRY.value, Windows.parse(budgets.pause_expiry)


def _spans(budgets: BudgetsConfig, first: datetime) -> Iterator[Span]:
    """Begins with the day before: a window over midnight reaches into the week."""
    for kind, windows in _windows(budgets):
        for window in windows.windows:
            for day in (first + place * _DAY for place in range(-1, 7)):
                if day.weekday() in window.days:
                    begin = day + window.start
                    yield Span(begin, begin + window.length, kind, f"no {kind} starts: {window.text} UTC")


def _ticks(schedule: ScheduleConfig, first: datetime) -> Iterator[Tick]:
    if schedule.mode != "cron":
        return
    for job, line in schedule.times.items():
        if line in (CONTINUOUS, NEVER):
            continue
        for at in islice(CronSim(line, first - timedelta(minutes=1)), _TICKS):
            if at >= first + 7 * _DAY:
                break
            yield Tick(at, job, f"{job} at {at:%a %H:%M} UTC ({line})")


def _closed(budgets: BudgetsConfig, now: datetime) -> Iterator[str]:
    for kind, windows in _windows(budgets):
        ends = [end for window in windows.windows if (end := window.closes_until(now))]
        if ends:
            yield f"no {kind} starts before {max(ends):%H:%M} UTC"


# A decision is shown this long before the next one is made: several people may look at the same fleet.
_FRESH = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A decision and its standings by table and slot: a page that shows both reads them once."""

    decision: Decision
    standings: Mapping[str, Mapping[str, TableSchedule]]


class ScheduleStates:
    """Makes one decision at a time for all requests. The object `Tables` is kept: its cache of policies makes the next decision cheap."""

    def __init__(self, warden: Lakewarden) -> None:
        self._warden, self._tables = warden, Tables(warden.state, warden.config)
        self._one_at_a_time = threading.Lock()
        self._last: ScheduleState | None = None

    def at(self, now: datetime) -> ScheduleState:
        with self._one_at_a_time:
            if self._last is None or not now - _FRESH < self._last.decision.at <= now:
                decision = current_decision(self._warden, now, self._tables)
                self._last = ScheduleState(decision, self._tables.book().standings)
            return self._last


@dataclass(frozen=True, slots=True)
class NextRun(Plain):
    """The next time of a slot. `at` is None if something must change first: `why` names it. `now`: as soon as a worker has a place."""

    slot: str
    at: datetime | None
    now: bool
    why: str
    switched_off: bool = False

    JSON_KEYS = "slot at now why"

    @property
    def what(self) -> str:
        return WHOLE_PASS if self.slot == PASS else self.slot


UNKNOWN = NextRun(
    PASS, None, False, "no worker has taken it up yet: one that leads finds it within discover_seconds"
)


def next_runs(decision: Decision) -> dict[str, NextRun]:
    """The next turn of each table."""
    turns: tuple[schedule.DueTable | WaitingTable, ...] = (*decision.due, *decision.waiting)
    return {each.table: _turn(each) for each in turns}


def due_of(decision: Decision, table: str) -> NextRun:
    found = decision.of(table)
    return UNKNOWN if found is None else _turn(found)


def _turn(found: schedule.DueTable | WaitingTable) -> NextRun:
    whole = isinstance(found, WaitingTable) and found.whole
    jobs = PASS if whole else ", ".join(found.jobs) or PASS
    if isinstance(found, WaitingTable):
        return NextRun(
            jobs, found.next_at, False, found.reason, found.why in (WaitReason.SUSPENDED, WaitReason.OFF)
        )
    return NextRun(jobs, found.since, True, "; ".join((found.reason, *found.left_out)))


def next_job_runs(
    schedule: ScheduleConfig, standings: Iterable[TableSchedule], policy: Policy | None, now: datetime
) -> tuple[NextRun, ...]:
    """Each job of one table at its own times. With the interval schedule all jobs have the times of the table."""
    if schedule.mode != "cron" or policy is None:
        return ()
    slots = {each.slot: each for each in standings}
    asked = pass_jobs(policy).jobs
    times = times_of(schedule, now, asked)
    seen = slots.get(SEEN)
    since = (seen.began_at if seen else None) or now
    made = []
    for job in Job:
        at = due_at(times[job], slots.get(job), since)
        if job not in asked:
            made.append(NextRun(job, None, False, "its policy switches it off", True))
        else:
            made.append(NextRun(job, at, at is not None and at <= now, _line(times[job].line, schedule)))
    return tuple(sorted(made, key=lambda each: (each.at is None, each.at or now, each.slot)))


def _line(line: str, schedule: ScheduleConfig) -> str:
    if line == CONTINUOUS:
        return f"continuous: every {schedule.interval_seconds:,} s"
    return "never ([schedule])" if line == NEVER else f"cron {line}"
