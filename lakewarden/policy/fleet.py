"""The jobs that a pass over a table has. Everyone who lists the jobs of a table asks here."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewarden.errors import PolicyError
from lakewarden.model.job_facts import JOBS
from lakewarden.model.run import Job
from lakewarden.model.table import TableRef
from lakewarden.policy.origin import matches
from lakewarden.policy.resolve import Layers, Policy, resolve

if TYPE_CHECKING:
    from lakewarden.config.schema import PolicyConfig  # pydantic, which the commands do not need to start

_SWITCH = "maintenance_enabled"


@dataclass(frozen=True, slots=True)
class PassJobs:
    """The jobs of a table's pass, in order; `off` says why it has none."""

    jobs: tuple[Job, ...]
    off: str = ""


def pass_jobs(policy: Policy, *, requested: bool = False) -> PassJobs:
    """The jobs that the policy switches on.

    A pass that someone requests also has jobs that are switched off, and their runs say so: see `JobFacts.strict_switch`.
    """
    if not policy.bool(_SWITCH):
        return PassJobs((), f"switched off: {policy.explain(_SWITCH)}")
    return PassJobs(
        tuple(
            job
            for job, facts in JOBS.items()
            if facts.switch is None or (requested and not facts.strict_switch) or policy.bool(facts.switch)
        )
    )


class FleetJobs:
    """The jobs of all tables, cached: a policy is resolved again only after its inputs changed.

    Tables with equal inputs share one result. With thousands of tables, that is most of them. Not safe to share between threads.
    """

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        # By table: its inputs, their key, and the result.
        self._known: dict[str, tuple[tuple[object, ...], str, PassJobs]] = {}
        self._alike: dict[str, PassJobs] = {}
        self._same: dict[tuple[Job, ...], tuple[Job, ...]] = {}

    def of(
        self, table: str, properties: Mapping[str, str], stored: Mapping[str, object], cold_of: str = ""
    ) -> PassJobs:
        """`cold_of` is the table whose colder tier this one is: it is maintained with that table."""
        if cold_of:
            return PassJobs((), f"it is the colder tier of {cold_of}, and looked after with it")
        inputs = (stored, properties)
        known = self._known.get(table)
        if known is not None and known[0] == inputs:
            return known[2]
        key = self._key(table, properties, stored)
        found = self._alike.get(key)
        if found is None:
            try:
                found = self._alike[key] = self._resolved(table, properties, stored)
            except (
                PolicyError
            ) as error:  # the schedule and the table's page show it; nothing runs until it is fixed
                # Not shared: the message names the table.
                found = PassJobs((), f"its policy cannot be read: {error.message}")
        self._known[table] = (inputs, key, found)
        return found

    def keep(self, tables: Collection[str]) -> None:
        """Forget the tables that are not among these."""
        if len(self._known) > len(tables):
            self._known = {table: self._known[table] for table in tables if table in self._known}
        used = {key for _, key, _ in self._known.values()}
        self._alike = {key: found for key, found in self._alike.items() if key in used}

    def _key(self, table: str, properties: Mapping[str, str], stored: Mapping[str, object]) -> str:
        """Equal for tables with equal policies: a name counts only through the patterns that it matches."""
        config = self._config
        inputs = [
            [place for place, (pattern, _) in enumerate(config.patterns) if matches(table, pattern)],
            [place for place, (pattern, _) in enumerate(config.trusted) if matches(table, pattern)],
            sorted(stored.items()),
            sorted(properties.items()),
        ]
        return json.dumps(inputs, default=str)

    def _resolved(self, table: str, properties: Mapping[str, str], stored: Mapping[str, object]) -> PassJobs:
        layers = Layers.of(self._config, table_properties=properties, stored=stored)
        found = pass_jobs(resolve(TableRef.parse(table), layers))
        # One tuple for all tables with the same jobs: the schedule is worked out once per tuple.
        return PassJobs(self._same.setdefault(found.jobs, found.jobs), found.off)
