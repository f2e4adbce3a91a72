"""The registry of jobs: every job is in it, and the frame around runs knows none by name."""

from __future__ import annotations

import ast

import pytest

from lakewarden.config.schema import ScheduleConfig
from lakewarden.jobs.registry import spec_of
from lakewarden.model.job_facts import JOBS, Pause, slot_of, timed_as
from lakewarden.model.run import Job
from lakewarden.policy.keys import key
from lakewarden.policy.values import ValueType
from tests.test_architecture import dotted, tree_of

# The jobs in the order of a pass, and the policy key that switches each one.
SWITCHES = {
    Job.EXPIRE_PARTITIONS: "partition_expiry_enabled",
    Job.COMPACT_DELETES: "delete_compaction_enabled",
    Job.COMPACT: "rewrite_enabled",
    Job.REWRITE_MANIFESTS: "manifest_rewrite_enabled",
    Job.HANDOFF: "handoff_enabled",
    Job.EXPIRE: "snapshot_expiry_enabled",
    Job.PURGE: None,
    Job.SWEEP: "orphan_sweep_enabled",
    Job.COMPACT_HISTORY: "history_compaction_enabled",
}
COMPACTING = {Job.COMPACT, Job.COMPACT_DELETES}
EXPIRING = {Job.EXPIRE_PARTITIONS, Job.HANDOFF, Job.EXPIRE, Job.PURGE, Job.SWEEP}

# The jobs that make a snapshot of the table, and what their commits say they are.
OPERATIONS = {
    Job.COMPACT: "compaction",
    Job.COMPACT_DELETES: "compaction",
    Job.REWRITE_MANIFESTS: "manifest-rewrite",
    Job.EXPIRE_PARTITIONS: "partition-expiry",
}


@pytest.mark.parametrize("job", Job)
def test_every_job_is_registered(job: Job) -> None:
    spec = spec_of(job)
    assert spec.facts.operation == OPERATIONS.get(job, "")
    # A job that makes snapshots finds its commits by their lineage; every other one has its own way.
    assert (spec.settle is None) == bool(spec.facts.operation)


def test_every_job_has_one_row_in_the_order_of_a_pass() -> None:
    assert list(JOBS) == list(Job) == list(SWITCHES)
    assert {job: facts.switch for job, facts in JOBS.items()} == SWITCHES
    assert all(facts.switch is None or key(facts.switch).kind is ValueType.BOOL for facts in JOBS.values())
    assert set(ScheduleConfig().times) == set(JOBS), "each has its time in [schedule]"


@pytest.mark.parametrize("job", Job)
def test_a_job_that_is_off_by_default_is_in_no_pass_that_someone_requests(job: Job) -> None:
    facts = JOBS[job]
    by_default = facts.switch is None or key(facts.switch).default is True
    assert by_default or facts.strict_switch
    strict = {Job.EXPIRE_PARTITIONS, Job.HANDOFF, Job.SWEEP, Job.COMPACT_HISTORY}
    assert facts.strict_switch == (job in strict)


@pytest.mark.parametrize("job", Job)
def test_when_the_worker_does_not_start_a_job(job: Job) -> None:
    facts = JOBS[job]
    assert (facts.pause is Pause.COMPACTION) == (job in COMPACTING)
    assert (facts.pause is Pause.EXPIRY) == (job in EXPIRING)
    assert facts.stage == (job in EXPIRING - {Job.EXPIRE_PARTITIONS})
    assert slot_of(job) == ("rewrite" if job in COMPACTING else str(job))
    assert facts.lists_table == (job is Job.SWEEP)


def test_a_snapshot_that_is_handed_off_expires_at_the_times_of_the_handoff() -> None:
    assert timed_as(Job.EXPIRE, (Job.HANDOFF, Job.EXPIRE)) is Job.HANDOFF
    assert [job for job in Job if timed_as(job, tuple(Job)) is not job] == [Job.EXPIRE]
    assert [job for job in Job if timed_as(job, (Job.EXPIRE,)) is not job] == []


def test_only_handoff_and_history_leave_the_table_as_it_is() -> None:
    assert {job for job in Job if not spec_of(job).facts.changes_table} == {Job.HANDOFF, Job.COMPACT_HISTORY}


def test_what_marks_files_settles_the_trash_of_earlier_runs() -> None:
    assert {job for job in Job if spec_of(job).facts.settles_trash} == {Job.EXPIRE, Job.SWEEP}


def test_only_purge_runs_on_tables_of_the_colder_tier() -> None:
    assert {job for job in Job if spec_of(job).facts.on_cold_tables} == {Job.PURGE}
    assert {job for job in Job if spec_of(job).before_plan is not None} == {Job.PURGE}


def test_the_frame_of_a_run_names_no_job() -> None:
    names = [
        dotted(each)
        for each in ast.walk(tree_of("lakewarden.jobs.runner"))
        if isinstance(each, ast.Attribute)
    ]
    assert not [each for each in names if each.startswith("Job.")]
