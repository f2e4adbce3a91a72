"""Computes the jobs that every table needs by its policy and the schedule: a job that is not requested cannot be late."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lakewarden.config.schema import Config
from lakewarden.config.types import NEVER
from lakewarden.errors import PolicyError
from lakewarden.model.run import Job
from lakewarden.model.table_name import TableRef
from lakewarden.policy.asked import jobs_by
from lakewarden.policy.patterns import matches
from lakewarden.policy.resolve import Layers, resolve
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State
from lakewarden.state.fleet import Fleet
from lakewarden.state.tables import SeenTables


class Duties:
    """Kept by repeated callers: tables without their own settings share one resolved policy."""

    def __init__(self, state: State, config: Config) -> None:
        self._fleet, self._seen, self._config = Fleet(state), SeenTables(state), config
        self._cold = ColdTables(state)
        self._known: dict[str, frozenset[str]] = {}

    def of(self, tables: set[str]) -> dict[str, frozenset[str]]:
        """By table, the names of its jobs; none if upkeep is switched off or the policy is invalid."""
        stored, seen = self._fleet.stored_policies(), self._seen.all()
        before, self._known = self._known, {}
        found: dict[str, frozenset[str]] = {}
        for table in tables:
            own, properties = stored.get(table, {}), seen[table].properties if table in seen else {}
            if table in seen and self._cold.source(properties, seen[table].uuid):
                found[table] = frozenset()  # a table's colder tier is maintained with the table
                continue
            alike = self._alike(table, own, properties)
            jobs = self._known.get(alike, before.get(alike))
            found[table] = jobs if jobs is not None else self._asked(table, own, properties)
            self._known[alike] = found[table]
        return found

    def _alike(self, table: str, stored: Mapping[str, object], properties: Mapping[str, str]) -> str:
        """A key that is equal for tables with equal policies: the name counts only through the patterns that it matches."""
        patterns = [
            n for n, (pattern, _) in enumerate(self._config.policy.patterns) if matches(table, pattern)
        ]
        inputs = [patterns, sorted(stored.items()), sorted(properties.items())]
        return json.dumps(inputs, default=str)

    def _asked(
        self, table: str, stored: Mapping[str, object], properties: Mapping[str, str]
    ) -> frozenset[str]:
        layers = Layers.of(self._config.policy, table_properties=properties, stored=stored)
        try:
            policy = resolve(TableRef.parse(table), layers)
        except PolicyError:  # shown on the table's page and in the schedule; nothing runs until it is fixed
            return frozenset()
        if not policy.bool("maintenance_enabled"):
            return frozenset()
        jobs = jobs_by(policy)
        return frozenset(str(job) for job in jobs if self._has_times(job, handoff=Job.HANDOFF in jobs))

    def _has_times(self, job: Job, *, handoff: bool) -> bool:
        """Handed-off snapshots expire at the times of the handoff."""
        schedule = self._config.schedule
        timed = Job.HANDOFF if handoff and job is Job.EXPIRE else job
        return schedule.mode != "cron" or schedule.times.get(str(timed), NEVER) != NEVER
