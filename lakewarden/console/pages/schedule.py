"""The week: when jobs are due, when nothing starts, and which tables are next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from cronsim import CronSim

from lakewarden.client import Lakewarden
from lakewarden.config.schema import BudgetsConfig, ScheduleConfig
from lakewarden.config.types import CONTINUOUS, NEVER
from lakewarden.console.charts import Span, Tick
from lakewarden.console.pages.dues import NextRun, next_runs
from lakewarden.jobs.quiet_windows import Windows
from lakewarden.model.job import JOBS, Pause
from lakewarden.model.plain import pick, to_plain
from lakewarden.state.leases import Lease
from lakewarden.state.requests import PassRequest
from lakewarden.worker.schedule import Decision

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
