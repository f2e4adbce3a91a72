"""When a job is due by the clock: every so many seconds, at the times of a cron line, or never. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from cronsim import CronSim

from lakewarden.config.schema import ScheduleConfig
from lakewarden.config.types import CONTINUOUS, NEVER
from lakewarden.model.job import timed_as
from lakewarden.model.run import Job

INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class Times:
    """One job's times as of one moment: the last and the next of its line, worked out once for all tables."""

    line: str
    every: timedelta
    last: datetime | None = None
    next: datetime | None = None

    @property
    def continuous(self) -> bool:
        return self.line == CONTINUOUS

    def due_at(self, began: datetime | None, since: datetime) -> datetime | None:
        """After a start at `began`, or for a table that is known `since` then and was never at it; None is never.

        Of occurrences that were missed the first counts, and only that one.
        """
        if self.line == NEVER:
            return None
        if self.continuous:
            return since if began is None else began + self.every
        reference = since if began is None else began
        if self.last is None or reference >= self.last:
            return self.next
        return _after(self.line, _minute(reference))


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
    # The previous one may be this very moment.
    last = next(CronSim(line, now + timedelta(seconds=1), reverse=True), None)
    return Times(line, every, last, _after(line, _minute(now)))


def _minute(moment: datetime) -> datetime:
    """Cron knows minutes: what comes after a moment comes after its minute's begin, and many moments share that one."""
    return moment.replace(second=0, microsecond=0)


@lru_cache(maxsize=50_000)
def _after(line: str, moment: datetime) -> datetime | None:
    return next(CronSim(line, moment), None)
