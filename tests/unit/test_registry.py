"""The registry of jobs: every job is in it, and the frame around runs knows none by name."""

from __future__ import annotations

import ast

import pytest

from lakewarden.jobs.registry import spec_of
from lakewarden.model.run import Job
from tests.test_architecture import dotted, tree_of

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
    assert spec.operation == OPERATIONS.get(job, "")
    # A job that makes snapshots finds its commits by their lineage; every other one has its own way.
    assert (spec.settle is None) == bool(spec.operation)


def test_only_handoff_and_history_leave_the_table_as_it_is() -> None:
    assert {job for job in Job if not spec_of(job).changes_table} == {Job.HANDOFF, Job.COMPACT_HISTORY}


def test_what_marks_files_settles_the_trash_of_earlier_runs() -> None:
    assert {job for job in Job if spec_of(job).settles_trash} == {Job.EXPIRE, Job.SWEEP}


def test_only_purge_runs_on_tables_of_the_colder_tier() -> None:
    assert {job for job in Job if spec_of(job).on_cold_tables} == {Job.PURGE}
    assert {job for job in Job if spec_of(job).before_plan is not None} == {Job.PURGE}


def test_the_frame_of_a_run_names_no_job() -> None:
    names = [
        dotted(each)
        for each in ast.walk(tree_of("lakewarden.jobs.runner"))
        if isinstance(each, ast.Attribute)
    ]
    assert not [each for each in names if each.startswith("Job.")]
