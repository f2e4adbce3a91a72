"""The registry of jobs: the facts of each job, and the functions that plan, execute and settle it.

A job that is missing in `spec_of` fails the type check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import assert_never

from lakewarden import clock
from lakewarden.jobs import history, manifests
from lakewarden.jobs.cold import execute as cold
from lakewarden.jobs.compact import execute as rewrite
from lakewarden.jobs.compact import merge
from lakewarden.jobs.compact.prepare import prepare_compact, prepare_deletes
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.expire import execute as expire
from lakewarden.jobs.partitions import execute as partitions
from lakewarden.jobs.purge import plan as purge
from lakewarden.jobs.purge.settle import settle_erasing, settle_run
from lakewarden.jobs.quiet_windows import Windows
from lakewarden.jobs.recovery import Settle
from lakewarden.jobs.run_context import Outcome, Prepared, RunContext
from lakewarden.jobs.sweep import execute as sweep
from lakewarden.model.job_facts import JOBS, JobFacts
from lakewarden.model.run import Job, RunState
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.runs import Journal
from lakewarden.tables.interface import TableFormat

Prepare = Callable[[JobDeps, TableFormat, TableView, Policy, datetime], Prepared]
Execute = Callable[[Prepared, JobDeps, RunContext], Outcome]
Settling = Callable[[JobDeps, Journal, TableFormat, TableRef], Settle]
BeforePlan = Callable[[JobDeps, TableFormat, TableView], None]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job. `prepare` changes nothing; `execute` is called with a plan that is not empty."""

    facts: JobFacts
    prepare: Prepare
    execute: Execute
    settle: Settling | None = None  # None: its commits are found by the lineage in their summaries
    before_plan: BeforePlan | None = None


def spec_of(job: Job) -> JobSpec:
    """The job's facts with its functions."""
    facts = JOBS[job]
    match job:
        case Job.EXPIRE_PARTITIONS:
            return JobSpec(facts, partitions.prepare, partitions.execute)
        case Job.COMPACT_DELETES:
            return JobSpec(facts, prepare_deletes, _rewrite)
        case Job.COMPACT:
            return JobSpec(facts, prepare_compact, _rewrite)
        case Job.REWRITE_MANIFESTS:
            return JobSpec(facts, _prepare_manifests, _rewrite_manifests)
        case Job.HANDOFF:
            return JobSpec(facts, cold.prepare, cold.execute, _settle_handoff)
        case Job.EXPIRE:
            return JobSpec(facts, expire.prepare, expire.execute, _settle_deleting)
        case Job.PURGE:
            return JobSpec(facts, purge.prepare, purge.execute, _settle_deleting, settle_erasing)
        case Job.SWEEP:
            return JobSpec(facts, sweep.prepare, sweep.execute, _settle_deleting)
        case Job.COMPACT_HISTORY:
            return JobSpec(facts, history.prepare, history.execute, _settle_history)
        case _:
            assert_never(job)


def _prepare_manifests(
    deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    head = view.current_snapshot_id
    found = [] if head is None else format_.manifests(view.ref, head)
    return Prepared(manifests.plan(view, found, policy, now), view, policy)


def _rewrite_manifests(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    return manifests.execute(prepared.plan, prepared.view, context)


def _rewrite(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    plan = prepared.plan
    paused = Windows.for_run(context.budgets, context.trigger).closed(clock.now())
    if paused:
        return Outcome(RunState.NOTHING_TO_DO, paused.text)
    if plan.merges():
        return merge.execute(plan, prepared.view, prepared.policy, context)
    if prepared.files is None:
        raise AssertionError("a plan with groups was made from files")
    return rewrite.execute(plan, prepared.view, prepared.files, prepared.policy, context)


def _settle_handoff(deps: JobDeps, journal: Journal, format_: TableFormat, table: TableRef) -> Settle:
    return partial(cold.settle, deps, journal, format_, table)


def _settle_history(deps: JobDeps, journal: Journal, format_: TableFormat, table: TableRef) -> Settle:
    return partial(history.settle, deps)


def _settle_deleting(deps: JobDeps, journal: Journal, format_: TableFormat, table: TableRef) -> Settle:
    return partial(settle_run, deps, format_, table)
