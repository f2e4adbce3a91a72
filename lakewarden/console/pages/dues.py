"""When a table has its next turn and why, as the leading worker would decide now."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakewarden.client import Lakewarden
from lakewarden.config.schema import ScheduleConfig
from lakewarden.config.types import CONTINUOUS, NEVER
from lakewarden.model.plain import Plain
from lakewarden.model.run import Job
from lakewarden.policy.fleet import pass_jobs
from lakewarden.policy.resolve import Policy
from lakewarden.state.schedule import PASS, SEEN, TableSchedule
from lakewarden.worker import schedule
from lakewarden.worker.schedule import WHOLE_PASS, Decision, WaitingTable, WaitReason, due_at
from lakewarden.worker.schedule_view import current_decision
from lakewarden.worker.tables import Tables
from lakewarden.worker.times import times_of

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
