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
