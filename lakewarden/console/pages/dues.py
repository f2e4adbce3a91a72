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
from lakewarden.state.schedule import PASS, SEEN, Standing
from lakewarden.worker import schedule
from lakewarden.worker.schedule import WHOLE_PASS, Decision, Waiting, Why, due_at
from lakewarden.worker.schedule_view import outlook
from lakewarden.worker.tables import Roster
from lakewarden.worker.times import times_of

# A decision is shown this long before the next one is made: several people may look at the same fleet.
_FRESH = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A decision and its standings by table and slot: a page that shows both reads them once."""

    decision: Decision
    standings: Mapping[str, Mapping[str, Standing]]


class Outlooks:
    """Makes one decision at a time for all requests. The roster is kept: its cache of policies makes the next decision cheap."""

    def __init__(self, warden: Lakewarden) -> None:
        self._warden, self._roster = warden, Roster(warden.state, warden.config)
        self._one_at_a_time = threading.Lock()
        self._last: Outlook | None = None

    def at(self, now: datetime) -> Outlook:
        with self._one_at_a_time:
            if self._last is None or not now - _FRESH < self._last.decision.at <= now:
                decision = outlook(self._warden, now, self._roster)
                self._last = Outlook(decision, self._roster.book().standings)
            return self._last


@dataclass(frozen=True, slots=True)
class Due(Plain):
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


UNKNOWN = Due(
    PASS, None, False, "no worker has taken it up yet: one that leads finds it within discover_seconds"
)


def dues(decision: Decision) -> dict[str, Due]:
    """The next turn of each table."""
    turns: tuple[schedule.Due | Waiting, ...] = (*decision.due, *decision.waiting)
    return {each.table: _turn(each) for each in turns}


def due_of(decision: Decision, table: str) -> Due:
    found = decision.of(table)
    return UNKNOWN if found is None else _turn(found)


def _turn(found: schedule.Due | Waiting) -> Due:
    whole = isinstance(found, Waiting) and found.whole
    jobs = PASS if whole else ", ".join(found.jobs) or PASS
    if isinstance(found, Waiting):
        return Due(jobs, found.next_at, False, found.reason, found.why in (Why.SUSPENDED, Why.OFF))
    return Due(jobs, found.since, True, "; ".join((found.reason, *found.left_out)))


def job_dues(
    schedule: ScheduleConfig, standings: Iterable[Standing], policy: Policy | None, now: datetime
) -> tuple[Due, ...]:
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
            made.append(Due(job, None, False, "its policy switches it off", True))
        else:
            made.append(Due(job, at, at is not None and at <= now, _line(times[job].line, schedule)))
    return tuple(sorted(made, key=lambda each: (each.at is None, each.at or now, each.slot)))


def _line(line: str, schedule: ScheduleConfig) -> str:
    if line == CONTINUOUS:
        return f"continuous: every {schedule.interval_seconds:,} s"
    return "never ([schedule])" if line == NEVER else f"cron {line}"
