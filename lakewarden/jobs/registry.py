"""Every job: how it is planned, carried out and settled. A job that is missing here fails the type check."""

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
from lakewarden.jobs.deps import Grounds
from lakewarden.jobs.expire import execute as expire
from lakewarden.jobs.partitions import execute as partitions
from lakewarden.jobs.purge import plan as purge
from lakewarden.jobs.purge.settle import settle_erasing, settle_run
from lakewarden.jobs.quiet_windows import Windows
from lakewarden.jobs.recovery import Settle
from lakewarden.jobs.run_context import Outcome, Prepared, RunContext
from lakewarden.jobs.sweep import execute as sweep
from lakewarden.model.run import Job, RunState
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.resolve import Policy
from lakewarden.state.runs import Journal
from lakewarden.tables.interface import TableFormat

Prepare = Callable[[Grounds, TableFormat, TableView, Policy, datetime], Prepared]
Execute = Callable[[Prepared, Grounds, RunContext], Outcome]
Settling = Callable[[Grounds, Journal, TableFormat, TableRef], Settle]
BeforePlan = Callable[[Grounds, TableFormat, TableView], None]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job. `prepare` changes nothing; `execute` is called with a plan that is not empty."""

    prepare: Prepare
    execute: Execute
    operation: str = ""  # what its commits say they are (lineage); empty where it makes no snapshot
    settle: Settling | None = None  # None: its commits are found by the lineage in their summaries
    changes_table: bool = True  # it commits to the table, or marks or deletes files of it
    settles_trash: bool = False  # pending deletion batches of earlier runs are settled before it plans
    on_cold_tables: bool = False  # it may run on a table of the colder tier, which is read-only
    before_plan: BeforePlan | None = None


def spec_of(job: Job) -> JobSpec:
    match job:
        case Job.EXPIRE_PARTITIONS:
            return JobSpec(_prepare_partitions, _drop_partitions, "partition-expiry")
        case Job.COMPACT_DELETES:
            return JobSpec(prepare_deletes, _rewrite, "compaction")
        case Job.COMPACT:
            return JobSpec(prepare_compact, _rewrite, "compaction")
        case Job.REWRITE_MANIFESTS:
            return JobSpec(_prepare_manifests, _rewrite_manifests, "manifest-rewrite")
        case Job.HANDOFF:
            return JobSpec(cold.prepare, cold.execute, settle=_settle_handoff, changes_table=False)
        case Job.EXPIRE:
            return JobSpec(expire.prepare, expire.execute, settle=_settle_deleting, settles_trash=True)
        case Job.PURGE:
            # What cold retention has put into the trash is deleted like all else.
            return JobSpec(
                purge.prepare,
                purge.execute,
                settle=_settle_deleting,
                on_cold_tables=True,
                before_plan=settle_erasing,
            )
        case Job.SWEEP:
            return JobSpec(sweep.prepare, sweep.execute, settle=_settle_deleting, settles_trash=True)
        case Job.COMPACT_HISTORY:
            return JobSpec(_prepare_history, history.execute, settle=_settle_history, changes_table=False)
        case _:
            assert_never(job)


def _prepare_partitions(
    grounds: Grounds, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    return partitions.prepare(format_, view, policy, now)


def _drop_partitions(prepared: Prepared, grounds: Grounds, context: RunContext) -> Outcome:
    return partitions.execute(prepared, context)


def _prepare_manifests(
    grounds: Grounds, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    head = view.current_snapshot_id
    found = [] if head is None else format_.manifests(view.ref, head)
    return Prepared(manifests.plan(view, found, policy, now), view, policy)


def _rewrite_manifests(prepared: Prepared, grounds: Grounds, context: RunContext) -> Outcome:
    return manifests.execute(prepared.plan, prepared.view, context)


def _prepare_history(
    grounds: Grounds, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    return history.prepare(grounds, view, policy, now)


def _rewrite(prepared: Prepared, grounds: Grounds, context: RunContext) -> Outcome:
    plan = prepared.plan
    paused = Windows.for_run(context.budgets, context.trigger).closed(clock.now())
    if paused:
        return Outcome(RunState.NOTHING_TO_DO, paused.text)
    if plan.merges():
        return merge.execute(plan, prepared.view, prepared.policy, context)
    if prepared.files is None:
        raise AssertionError("a plan with groups was made from files")
    return rewrite.execute(plan, prepared.view, prepared.files, prepared.policy, context)


def _settle_handoff(grounds: Grounds, journal: Journal, format_: TableFormat, table: TableRef) -> Settle:
    return partial(cold.settle, grounds, journal, format_, table)


def _settle_history(grounds: Grounds, journal: Journal, format_: TableFormat, table: TableRef) -> Settle:
    return partial(history.settle, grounds)


def _settle_deleting(grounds: Grounds, journal: Journal, format_: TableFormat, table: TableRef) -> Settle:
    return partial(settle_run, grounds, format_, table)
