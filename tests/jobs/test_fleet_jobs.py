"""The jobs of a pass: one rule for all who ask, and a cache that is never out of date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lakewarden.config.schema import Config, PolicyConfig
from lakewarden.model.job_facts import JOBS
from lakewarden.model.run import Job
from lakewarden.model.table import TableRef
from lakewarden.policy import fleet
from lakewarden.policy.fleet import FleetJobs, PassJobs, pass_jobs
from lakewarden.policy.resolve import Layers, Policy, resolve

STRICT = {job for job, facts in JOBS.items() if facts.strict_switch}
A, B = "lake.db.a", "lake.db.b"
# What some switches need beside them.
NEEDED = {"partition_ttl_hours": 720, "handoff_catalog": "cold"}


def policy(**stored: object) -> Policy:
    return resolve(TableRef.parse(A), Layers(stored=NEEDED | stored))


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose policy was resolved."""
    tables: list[str] = []

    def counted(ref: TableRef, layers: Layers) -> Policy:
        tables.append(str(ref))
        return resolve(ref, layers)

    monkeypatch.setattr(fleet, "resolve", counted)
    return tables


@pytest.mark.parametrize("job", Job)
def test_a_job_is_in_a_pass_if_its_policy_switches_it_on(job: Job) -> None:
    switch = JOBS[job].switch
    if switch is None:
        assert job in pass_jobs(policy()).jobs
        return
    assert job in pass_jobs(policy(**{switch: True})).jobs
    off = policy(**{switch: False})
    assert job not in pass_jobs(off).jobs
    # Otherwise the run of the job says that it is switched off.
    assert (job in pass_jobs(off, requested=True).jobs) == (job not in STRICT)


def test_the_jobs_are_in_the_order_of_a_pass() -> None:
    every = policy(**{facts.switch: True for facts in JOBS.values() if facts.switch})
    assert pass_jobs(every).jobs == pass_jobs(every, requested=True).jobs == tuple(Job)


def test_a_table_whose_maintenance_is_off_has_no_jobs() -> None:
    off = "switched off: maintenance_enabled=false (table)"
    assert pass_jobs(policy(maintenance_enabled=False)) == PassJobs((), off)
    assert pass_jobs(policy(maintenance_enabled=False), requested=True) == PassJobs((), off)


def test_a_policy_is_resolved_once_and_again_when_it_changes(resolved: list[str]) -> None:
    jobs = FleetJobs(PolicyConfig())
    first = jobs.of(A, {}, {})
    assert jobs.of(A, {}, {}) is first and jobs.of(B, {}, {}) is first
    assert resolved == [A], "tables with equal inputs share one"
    assert Job.SWEEP in jobs.of(A, {}, {"orphan_sweep_enabled": True}).jobs
    assert Job.SWEEP not in jobs.of(B, {}, {}).jobs
    assert jobs.of(A, {}, {}) is first
    assert resolved == [A, A]


def test_tables_that_are_gone_are_forgotten(resolved: list[str]) -> None:
    jobs = FleetJobs(PolicyConfig())
    stored = {"orphan_sweep_enabled": True}
    jobs.of(A, {}, {})
    jobs.of(B, {}, stored)
    jobs.keep({A})
    jobs.of(A, {}, {})
    jobs.of(B, {}, stored)
    assert resolved == [A, B, B]


@pytest.mark.parametrize(
    "config",
    [
        {"tables": [{"pattern": "lake.db.a", "orphan_sweep_enabled": True}]},
        {"trust_table_properties": [{"pattern": "lake.db.a", "keys": ["orphan_sweep_enabled"]}]},
    ],
    ids=["pattern", "trust"],
)
def test_equal_tables_with_other_patterns_are_told_apart(config: Mapping[str, Any]) -> None:
    jobs = FleetJobs(Config.from_dict({"policy": config}, {}).policy)
    properties = {"lakewarden.orphan_sweep_enabled": "true"}
    assert Job.SWEEP in jobs.of(A, properties, {}).jobs
    assert Job.SWEEP not in jobs.of(B, properties, {}).jobs


def test_tables_without_jobs_say_why() -> None:
    jobs = FleetJobs(PolicyConfig())
    assert jobs.of(A, {}, {}, "lake.db.live").off == (
        "it is the colder tier of lake.db.live, and looked after with it"
    )
    wrong = jobs.of(A, {}, {"orphan_sweep_enabled": "perhaps"})
    assert not wrong.jobs and wrong.off.startswith("its policy cannot be read: ")
    assert jobs.of(A, {}, {}).jobs
