"""Decides which tables are due, in which order and why; and why the others are not, and when they will be. Pure.

A job is due by the clock: every so many seconds, at the times of a cron line, or never.

A table has one turn at a time: all its jobs that are due, in the order of a pass. The order of the tables depends on how long
the turn has been due, and on the debt: a table with the highest debt goes before one without debt that has been due for up to
one interval longer. No table has a second turn while another waits that was due before the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from cronsim import CronSim

from lakewarden.config.schema import BudgetsConfig, ScheduleConfig, WorkerConfig
from lakewarden.config.types import CONTINUOUS, NEVER
from lakewarden.formatting import duration
from lakewarden.jobs.quiet_windows import Windows
from lakewarden.model.job_facts import JOBS, Pause, timed_as
from lakewarden.model.plain import Plain
from lakewarden.model.reason import Reason
from lakewarden.model.run import Job
from lakewarden.state.schedule import PASS, Suspension, TableSchedule

MOST_DEBT = 100.0
WHOLE_PASS = "a whole pass"

INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class TrackedTable:
    """A table that the worker maintains: since when, and the jobs of its pass. `off` says why there are none."""

    table: str
    since: datetime
    jobs: tuple[Job, ...]
    off: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleSnapshot:
    """What is known about the tables: by table the standing of each slot, suspensions, debts, and since when it is worked on."""

    standings: Mapping[str, Mapping[str, TableSchedule]] = field(default_factory=dict)
    suspended: Mapping[str, Suspension] = field(default_factory=dict)
    debts: Mapping[str, float] = field(default_factory=dict)
    at_work: Mapping[str, datetime] = field(default_factory=dict)


class WaitReason(StrEnum):
    """Why a table has no turn now."""

    SUSPENDED = "suspended"
    OFF = "switched-off"
    AT_WORK = "at-work"
    BACKING_OFF = "backing-off"
    WINDOW = "quiet-window"
    LATER = "not-yet"


@dataclass(frozen=True, slots=True)
class DueTable(Plain):
    """A turn: its jobs, and since when they are due. `urgency` orders the turns. `left_out` are due jobs that must wait, with the reason."""

    table: str
    jobs: tuple[Job, ...]
    since: datetime
    debt: float
    urgency: float
    reason: str
    left_out: tuple[str, ...] = ()

    due = True
    why = "due"
    JSON_KEYS = "table due jobs since debt:3 urgency:3 why reason left_out"


@dataclass(frozen=True, slots=True)
class WaitingTable(Plain):
    """No turn now: why, and when the table is next; None if an operator must act first. `jobs` are those due at that time, and
    `whole` is true if that is every job of the table."""

    table: str
    why: WaitReason
    reason: str
    next_at: datetime | None
    jobs: tuple[Job, ...] = ()
    debt: float = 0.0
    whole: bool = False

    due = False
    JSON_KEYS = "table due jobs next_at debt:3 why reason"


@dataclass(frozen=True, slots=True)
class Decision(Plain):
    """`due` is in the order of the turns, `waiting` in the order of `next_at`."""

    at: datetime
    due: tuple[DueTable, ...]
    waiting: tuple[WaitingTable, ...]

    JSON_KEYS = "at due waiting"

    def of(self, table: str) -> DueTable | WaitingTable | None:
        turns: tuple[DueTable | WaitingTable, ...] = (*self.due, *self.waiting)
        return next((each for each in turns if each.table == table), None)

    def only(self, table: str) -> Decision:
        """The decision about one table."""
        due = tuple(each for each in self.due if each.table == table)
        return replace(self, due=due, waiting=tuple(each for each in self.waiting if each.table == table))


@dataclass(frozen=True, slots=True)
class ScheduleRules:
    """The settings that a decision depends on."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    budgets: BudgetsConfig = field(default_factory=BudgetsConfig)


def decide(
    tracked_tables: Sequence[TrackedTable], book: ScheduleSnapshot, rules: ScheduleRules, now: datetime
) -> Decision:
    """The turn of every table, or why it has none now."""
    deciding = _Deciding(book, rules, now)
    found = [deciding.judge(each) for each in tracked_tables]
    due = sorted((each for each in found if isinstance(each, DueTable)), key=_order)
    waiting = [each for each in found if isinstance(each, WaitingTable)]
    waiting.sort(key=lambda each: (each.next_at is None, each.next_at or now, each.table))
    return Decision(now, tuple(due), tuple(waiting))


def _order(due: DueTable) -> tuple[float, datetime, str]:
    return -due.urgency, due.since, due.table


def places_for_requests(parallel: int, *, somebody_due: bool, asked_last: bool) -> int:
    """How many requested turns may run at once. While other tables are due, requests leave one place to the schedule; if there
    is only one place, every other turn. So even endless requests do not delay a table forever."""
    if not somebody_due:
        return parallel
    return parallel - 1 if parallel > 1 else int(not asked_last)


def backoff(failures: int, config: WorkerConfig) -> timedelta:
    """How long a table has no turn after so many failures in a row."""
    # After thirty doublings every wait is the longest one. The number itself would grow without limit.
    seconds = config.retry_seconds * 2 ** min(failures - 1, 30)
    return timedelta(seconds=min(seconds, max(config.retry_max_seconds, config.retry_seconds)))


@dataclass(frozen=True, slots=True)
class _Closed:
    """A quiet window that is closed now: why nothing starts, and when it opens (None: never)."""

    reason: Reason
    opens_at: datetime | None

    @classmethod
    def by(cls, texts: Sequence[str], setting: str, now: datetime) -> _Closed | None:
        windows = Windows.parse(texts, setting)
        reason = windows.closed(now)
        return None if reason is None else cls(reason, windows.opens_at(now))


def _closed(budgets: BudgetsConfig, now: datetime) -> dict[Job, _Closed]:
    """The jobs that a quiet window keeps from starting now."""
    closed = {
        Pause.COMPACTION: _Closed.by(budgets.pause_compaction, "pause_compaction", now),
        Pause.EXPIRY: _Closed.by(budgets.pause_expiry, "pause_expiry", now),
    }
    return {
        job: window
        for job, facts in JOBS.items()
        if facts.pause is not None and (window := closed[facts.pause]) is not None
    }


def kept_out(job: Job, budgets: BudgetsConfig, now: datetime) -> str:
    """Why a quiet window keeps the job from starting; empty if none does. Asked again before each job: a turn may take hours."""
    found = _closed(budgets, now).get(job)
    return "" if found is None else found.reason.text


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one job at one moment: the last and the next of its line, computed once for all tables."""

    line: str
    every: timedelta
    last: datetime | None = None
    next: datetime | None = None

    @property
    def continuous(self) -> bool:
        return self.line == CONTINUOUS

    def due_at(self, began: datetime | None, since: datetime) -> datetime | None:
        """When the job is due after a start at `began`, or for a table that is known since `since` and never had it. None: never.

        If several times were missed, only the first counts.
        """
        if self.line == NEVER:
            return None
        if self.continuous:
            return since if began is None else began + self.every
        reference = since if began is None else began
        if self.last is None or reference >= self.last:
            return self.next
        return _after(self.line, _minute(reference))


_Line = tuple[Job, str, Times, _Closed | None]


class _Deciding:
    """Computes once what is the same for all tables at one moment."""

    def __init__(self, book: ScheduleSnapshot, rules: ScheduleRules, now: datetime) -> None:
        self._book, self._rules, self._now = book, rules, now
        self._known: dict[int, list[_Line]] = {}
        self._every = timedelta(seconds=rules.schedule.interval_seconds)
        self._closed = _closed(rules.budgets, now)
        # A turn takes along what is due soon, so that a table's jobs stay together.
        interval = rules.schedule.mode == INTERVAL
        self._reach = now + self._every / 2 if interval else now

    def judge(self, tracked: TrackedTable) -> DueTable | WaitingTable:
        table, book = tracked.table, self._book
        debt = min(max(book.debts.get(table, 0.0), 0.0), MOST_DEBT)
        slots = book.standings.get(table, {})
        left = self._left_alone(tracked, slots, debt)
        if left is not None:
            return left
        jobs = [
            _Slot(job, due_at(times, slots.get(name), tracked.since), closed)
            for job, name, times, closed in self._lines(tracked.jobs)
        ]
        owed = [each for each in jobs if each.due_at is not None and each.due_at <= self._now]
        if not owed:
            return _later(tracked, jobs, debt, self._reach - self._now)
        ready = [each for each in owed if each.closed is None]
        return (
            self._due(tracked, slots.get(PASS), jobs, owed, ready, debt)
            if ready
            else _paused(tracked, owed, debt)
        )

    def _lines(self, jobs: tuple[Job, ...]) -> list[_Line]:
        """The times and windows of these jobs, cached by tuple: thousands of tables share one tuple, which outlives this object."""
        found = self._known.get(id(jobs))
        if found is None:
            times = times_of(self._rules.schedule, self._now, jobs)
            found = [(job, job.value, times[job], self._closed.get(job)) for job in jobs]
            self._known[id(jobs)] = found
        return found

    def _left_alone(
        self, tracked: TrackedTable, slots: Mapping[str, TableSchedule], debt: float
    ) -> WaitingTable | None:
        """Why the table has no turn, whatever the times of its jobs are; None if nothing prevents it."""
        table = tracked.table
        suspension = self._book.suspended.get(table)
        if suspension is not None:
            reason = (
                f"suspended since {suspension.since:%Y-%m-%d %H:%M} UTC by {suspension.by}: {suspension.reason}; "
                f"`lakewarden resume {table}`"
            )
            return WaitingTable(table, WaitReason.SUSPENDED, reason, None, debt=debt)
        if tracked.off or not tracked.jobs:
            reason = tracked.off or "its policy switches every job off"
            return WaitingTable(table, WaitReason.OFF, reason, None, debt=debt)
        began = self._book.at_work.get(table)
        if began is not None:
            return WaitingTable(
                table, WaitReason.AT_WORK, f"at work since {began:%H:%M:%S} UTC", None, debt=debt
            )
        last = slots.get(PASS)
        if last is not None and last.retry_at is not None and last.retry_at > self._now:
            reason = (
                f"failed {_times_in_a_row(last.failures)}: {last.reason}"
                if last.failures
                else last.reason or "it is tried again later"
            )
            return WaitingTable(table, WaitReason.BACKING_OFF, reason, last.retry_at, debt=debt)
        return None

    def _due(
        self,
        tracked: TrackedTable,
        last: TableSchedule | None,
        jobs: Sequence[_Slot],
        owed: Sequence[_Slot],
        ready: Sequence[_Slot],
        debt: float,
    ) -> DueTable:
        turn = None if last is None else last.began_at
        # The job that was due first decides: debt outweighs at most the time between two turns.
        since = min(each.due_at for each in ready if each.due_at is not None)
        soon = self._reach
        taken = tuple(
            each.job
            for each in jobs
            if each.closed is None and each.due_at is not None and each.due_at <= soon
        )
        left_out = tuple(f"{each.job}: {each.closed.reason}" for each in owed if each.closed is not None)
        urgency = self._urgency(since, turn, debt)
        return DueTable(
            tracked.table, taken, since, debt, urgency, _reason(last, since, debt, self._now), left_out
        )

    def _urgency(self, due_at: datetime, turn: datetime | None, debt: float) -> float:
        """In intervals. A job that was due before the table's last turn counts from that turn on."""
        start = due_at if turn is None else max(due_at, turn)
        gap = self._every if turn is None else max(due_at - turn, timedelta(0))
        return ((self._now - start) + gap * (debt / MOST_DEBT)) / self._every


class _Slot(NamedTuple):
    """A job of one table: when it is due (None: never), and the window that keeps it from starting."""

    job: Job
    due_at: datetime | None
    closed: _Closed | None


def due_at(times: Times, slot: TableSchedule | None, since: datetime) -> datetime | None:
    """When a job is due: at `retry_at` if it has one, else by its own times."""
    if slot is None:
        return times.due_at(None, since)
    if slot.retry_at is not None:
        return slot.retry_at
    return times.due_at(slot.began_at, since)


def _paused(tracked: TrackedTable, owed: Sequence[_Slot], debt: float) -> WaitingTable:
    windows = [each.closed for each in owed if each.closed is not None]
    opens = [each.opens_at for each in windows if each.opens_at is not None]
    jobs = tuple(each.job for each in owed)
    return WaitingTable(
        tracked.table, WaitReason.WINDOW, windows[0].reason.text, min(opens, default=None), jobs, debt
    )


def _later(tracked: TrackedTable, jobs: Sequence[_Slot], debt: float, reach: timedelta) -> WaitingTable:
    """The next turn has every job that is due within `reach` of it, as in `_due`. With an interval, that is usually all jobs."""
    first = min((each.due_at for each in jobs if each.due_at is not None), default=None)
    if first is None:
        reason = "the schedule has no time for any of its jobs"
        return WaitingTable(tracked.table, WaitReason.OFF, reason, None, debt=debt)
    next_ = tuple(each.job for each in jobs if each.due_at is not None and each.due_at <= first + reach)
    whole = bool(reach) and len(next_) == len(jobs)
    words = WHOLE_PASS if whole else ", ".join(next_)
    return WaitingTable(tracked.table, WaitReason.LATER, f"next: {words}", first, next_, debt, whole)


def _times_in_a_row(failures: int) -> str:
    return "once" if failures == 1 else f"{failures} times in a row"


def _reason(last: TableSchedule | None, since: datetime, debt: float, now: datetime) -> str:
    """Why it has a turn, in one line."""
    owes = f", debt {debt:.0f}" if debt else ""
    if last is None or last.began_at is None:
        return f"never maintained by a worker{owes}"
    waited = duration(max(0.0, (now - since).total_seconds()))
    retry = f"; failed {_times_in_a_row(last.failures)} so far" if last.failures else ""
    return f"due for {waited}{owes}{retry}"


def times_of(config: ScheduleConfig, now: datetime, jobs: tuple[Job, ...]) -> dict[Job, Times]:
    """The times of every job, for a table whose pass has these jobs."""
    every = timedelta(seconds=config.interval_seconds)
    if config.mode == INTERVAL:
        return {job: Times(CONTINUOUS, every) for job in Job}
    return {job: _times(line_of(config, job, jobs), every, now) for job in Job}


def line_of(config: ScheduleConfig, job: Job, jobs: tuple[Job, ...]) -> str:
    """The cron line of the job, or NEVER."""
    return config.times.get(str(timed_as(job, jobs)), NEVER)


def _times(line: str, every: timedelta, now: datetime) -> Times:
    if line in (CONTINUOUS, NEVER):
        return Times(line, every)
    # The last time may be this moment.
    last = next(CronSim(line, now + timedelta(seconds=1), reverse=True), None)
    return Times(line, every, last, _after(line, _minute(now)))


def _minute(moment: datetime) -> datetime:
    """Cron counts in minutes. Many moments share one minute, so the cache below has few entries."""
    return moment.replace(second=0, microsecond=0)


@lru_cache(maxsize=50_000)
def _after(line: str, moment: datetime) -> datetime | None:
    return next(CronSim(line, moment), None)
