"""The jobs that every table should have by its policy and the schedule: a job that is not requested cannot be late."""

from __future__ import annotations

from lakewarden.config.schema import Config
from lakewarden.config.types import NEVER
from lakewarden.model.job import timed_as
from lakewarden.model.run import Job
from lakewarden.policy.fleet import FleetJobs
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.tables import SeenTables


class ExpectedJobs:
    """Kept between calls: the cache makes the next call cheap."""

    def __init__(self, state: State, config: Config) -> None:
        self._policies, self._seen, self._schedule = StoredPolicies(state), SeenTables(state), config.schedule
        self._cold = ColdTables(state)
        self._jobs = FleetJobs(config.policy)
        self._timed: dict[tuple[Job, ...], frozenset[str]] = {}

    def of(self, tables: set[str]) -> dict[str, frozenset[str]]:
        """By table, the names of its jobs; none if upkeep is switched off or the policy is invalid."""
        stored, seen = self._policies.all(), self._seen.all()
        found: dict[str, frozenset[str]] = {}
        for table in tables:
            known = seen.get(table)
            properties = known.properties if known else {}
            cold_of = self._cold.source(properties, known.uuid) if known else ""
            found[table] = self._with_times(
                self._jobs.of(table, properties, stored.get(table, {}), cold_of).jobs
            )
        self._jobs.keep(tables)
        return found

    def _with_times(self, jobs: tuple[Job, ...]) -> frozenset[str]:
        """The names of the jobs for which the schedule has a time."""
        names = self._timed.get(jobs)
        if names is None:
            config = self._schedule
            names = self._timed[jobs] = frozenset(
                str(job)
                for job in jobs
                if config.mode != "cron" or config.times.get(str(timed_as(job, jobs)), NEVER) != NEVER
            )
        return names
