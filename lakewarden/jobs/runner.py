"""From a job's name to its planner and its doing, and the run around them: recover, plan, journal, do, close."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol, assert_never

import pyarrow as pa

from lakewarden import clock
from lakewarden.config.schema import BudgetsConfig
from lakewarden.deletion.foreign_metadata import refuse_foreign
from lakewarden.errors import Busy, LakewardenError, Refused, Stopped, UsageError
from lakewarden.jobs import history as compact_history
from lakewarden.jobs import manifests
from lakewarden.jobs.cancel import Stop
from lakewarden.jobs.cold import execute as cold_upkeep
from lakewarden.jobs.cold.read_only import refuse_frozen
from lakewarden.jobs.commit_guard import OPERATIONS, RunGuard, foresee
from lakewarden.jobs.compact import buckets as compact_keyed
from lakewarden.jobs.compact import deletes as compact_deletes
from lakewarden.jobs.compact import execute as rewriting
from lakewarden.jobs.compact import merge as merging
from lakewarden.jobs.compact import plan as compact
from lakewarden.jobs.compact.cluster import clustering
from lakewarden.jobs.deps import Grounds, Surroundings
from lakewarden.jobs.expire import execute as expiring
from lakewarden.jobs.heartbeat import DRIVEN, attended, driving
from lakewarden.jobs.partitions import execute as dropping
from lakewarden.jobs.purge import plan as purge
from lakewarden.jobs.purge.settle import DELETING, settle_erasing, settle_run, settle_verdicts
from lakewarden.jobs.quiet_windows import Windows
from lakewarden.jobs.recovery import Settle, recover
from lakewarden.jobs.run_context import DeletingStep, Outcome, Prepared, RunContext, StepName
from lakewarden.jobs.sweep import execute as sweeping
from lakewarden.model.plan import Bounds, Plan
from lakewarden.model.prices import PRICES, Price
from lakewarden.model.progress import Progress, Silent
from lakewarden.model.run import Job, Owner, Run, RunState, Trigger
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.order.sort_keys import unfit_ordering
from lakewarden.rewrite.write.encoding import unfit_properties
from lakewarden.spark.task_slots import Lanes
from lakewarden.spark.tasks import cancel
from lakewarden.state.runs import Journal, current_owner, new_run_id
from lakewarden.tables.interface import TableFormat, TableWriter

log = logging.getLogger(__name__)

# Jobs that neither commit to the table nor mark or delete a file of its own.
_ONLY_READ = (Job.HANDOFF, Job.COMPACT_HISTORY)


def prepare(
    job: Job, format_: TableFormat, view: TableView, policy: Policy, now: datetime, grounds: Grounds
) -> Prepared:
    """Read what the planner needs, then plan. Changes nothing."""
    if job not in _ONLY_READ:
        refuse_foreign(job, view, grounds.state, grounds.lake.strays)
    match job:
        case Job.EXPIRE_PARTITIONS:
            return dropping.prepare(format_, view, policy, now)
        case Job.HANDOFF:
            return cold_upkeep.prepare(grounds, format_, view, policy, now)
        case Job.EXPIRE:
            return expiring.prepare(grounds, format_, view, policy, now)
        case Job.PURGE:
            return purge.prepare(grounds, format_, view, policy, now)
        case Job.SWEEP:
            return sweeping.prepare(grounds, format_, view, policy, now)
        case Job.COMPACT if view.keyed:
            return compact_keyed.prepare(format_, view, policy, now)
        case Job.COMPACT:
            return _prepare_compact(format_, view, policy, now)
        case Job.COMPACT_DELETES if view.keyed:
            return compact_keyed.nothing_to_apply(view, policy, now)
        case Job.COMPACT_DELETES:
            return _prepare_deletes(format_, view, policy, now)
        case Job.REWRITE_MANIFESTS:
            head = view.current_snapshot_id
            found = [] if head is None else format_.manifests(view.ref, head)
            return Prepared(manifests.plan(view, found, policy, now), view, policy)
        case Job.COMPACT_HISTORY:
            return compact_history.prepare(grounds, view, policy, now)
        case _:
            assert_never(job)


def _prepare_compact(format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    compact.check(view, policy)
    untouched = format_.rewrites().left_alone(view)
    if untouched:
        return Prepared(compact.leave_alone(Job.COMPACT, view, policy, untouched, now), view, policy)
    head = view.head(policy.text("rewrite_branch"))
    chosen = clustering(view, policy)
    where = policy.maybe_text("rewrite_where")
    files = None if head is None else format_.files(view.ref, head, where, chosen.names)
    shares = format_.rewrites().clustering(view.ref, files, chosen.names) if files and chosen.names else {}
    unfit = _unfit(format_, view)
    if unfit is None and chosen.ordering is not None:
        schema = pa.ipc.read_schema(pa.py_buffer(format_.rewrites().arrow_schema(view)))
        unfit = unfit_ordering(chosen.ordering, schema)
    made = compact.plan(view, files, policy, unfit, now, shares)
    return Prepared(made, view, policy, files)


def _prepare_deletes(format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    compact.check(view, policy)
    untouched = format_.rewrites().left_alone(view)
    if untouched:
        return Prepared(compact.leave_alone(Job.COMPACT_DELETES, view, policy, untouched, now), view, policy)
    branch = policy.text("rewrite_branch")
    head = view.head(branch)
    files = None if head is None else format_.files(view.ref, head, policy.maybe_text("rewrite_where"))
    dangling = [] if files is None else format_.rewrites().dangling(view.ref, files, branch)
    made = compact_deletes.plan(view, files, policy, _unfit(format_, view), now, dangling)
    return Prepared(made, view, policy, files)


def _unfit(format_: TableFormat, view: TableView) -> str | None:
    rewrites = format_.rewrites()
    return unfit_properties(rewrites.parquet_properties(view)) or rewrites.unfit(view)


class _Lake(Surroundings, Protocol):
    spark: Any


@dataclass(frozen=True, slots=True)
class Runner:
    lake: _Lake
    journal: Journal
    task_memory: int
    progress: Progress | None
    budgets: BudgetsConfig = field(default_factory=BudgetsConfig)
    lanes: Lanes | None = None
    history: str = "state"
    prices: Mapping[str, Price] = field(default_factory=lambda: PRICES)
    stop: Stop = field(default_factory=Stop)
    lease_term: int | None = None  # of the worker's lease; None where somebody runs it by hand
    quiet: bool = False  # a run without anything to do is not journaled

    @property
    def grounds(self) -> Grounds:
        state, rate = self.journal.state, self.budgets.deletes_per_s
        return Grounds(state, self.lake, rate, self.history, self.prices)

    def run(
        self,
        job: Job,
        table: TableRef,
        resolve: Callable[[TableView], Policy],
        trigger: Trigger,
        run_id: str | None = None,
    ) -> Run:
        self.stop.check()
        format_, owner = self.lake.format_for(table), current_owner()
        self._recover(job, format_, table, owner)
        view = format_.view(table)
        policy = resolve(view)
        if job is not Job.PURGE:  # what its own retention trashed goes as everywhere
            refuse_frozen(job, view, self.journal.state)
        if job is Job.PURGE:
            settle_erasing(self.grounds, format_, view)
        run_id = run_id or new_run_id(clock.now())
        try:
            prepared = prepare(job, format_, view, policy, clock.now(), self.grounds)
            if job in OPERATIONS and not prepared.plan.empty:
                foresee(table, OPERATIONS[job], run_id, policy, trigger, self.journal.state)
        except Refused as error:
            self._journal_unplanned(RunState.REFUSED, job, run_id, view, policy, owner, trigger, error)
            raise
        except Exception as error:
            if isinstance(error, (UsageError, Stopped)):
                raise  # nothing about the table: who asked is told, and that is all there is to it
            with suppress(Busy):  # then it is the other run that the journal tells of
                self._journal_unplanned(RunState.FAILED, job, run_id, view, policy, owner, trigger, error)
            raise
        if self.quiet and prepared.plan.empty:
            return _unwritten(prepared, owner, trigger)
        self.stop.check()
        writer = format_.writer(RunGuard.of(run_id, owner, policy, self.journal))
        with driving(run_id):
            return self._drive(prepared, run_id, owner, trigger, format_, writer)

    def _journal_unplanned(
        self,
        state: RunState,
        job: Job,
        run_id: str,
        view: TableView,
        policy: Policy,
        owner: Owner,
        trigger: Trigger,
        error: Exception,
    ) -> None:
        """What safety said no to, or could not even be planned, is as much part of a table's story as what was done."""
        made = Plan(job, view.ref, clock.now(), Bounds(None, "main", 0), policy.hash(), _told(error))
        run = self._start(Prepared(made, view, policy), run_id, owner, trigger)
        self._finish(run, owner, Outcome(state, _told(error)))

    def _recover(self, job: Job, format_: TableFormat, table: TableRef, owner: Owner) -> None:
        """What an earlier run of this job left open is settled before a new plan is made."""
        settle = self._settle(job, format_, table)
        recover(
            self.journal,
            format_,
            table,
            job,
            owner,
            driven=DRIVEN,
            settle=settle,
            lease_term=self.lease_term,
        )
        if job in DELETING and job is not Job.PURGE:
            settle_verdicts(self.grounds, format_, table, self.journal)

    def _settle(self, job: Job, format_: TableFormat, table: TableRef) -> Settle | None:
        """How jobs that rewrite nothing find out what became of their runs."""
        if job is Job.HANDOFF:
            return partial(cold_upkeep.settle, self.grounds, self.journal, format_, table)
        if job is Job.COMPACT_HISTORY:
            return partial(compact_history.settle, self.grounds)
        return partial(settle_run, self.grounds, format_, table) if job in DELETING else None

    def _drive(
        self,
        prepared: Prepared,
        run_id: str,
        owner: Owner,
        trigger: Trigger,
        format_: TableFormat,
        writer: TableWriter,
    ) -> Run:
        run = self._start(prepared, run_id, owner, trigger)
        stop = self.stop.child()  # a cancel of this run ends no other
        shown = self.progress or Silent()
        with attended(
            self.journal, run.id, owner, stop, shown, lambda: cancel(self.lake.spark, run.id)
        ) as told:
            context = RunContext(
                run.id,
                owner,
                trigger,
                self.lake.spark,
                format_,
                writer,
                self.journal,
                told,
                self.task_memory,
                self.budgets,
                self.lanes,
                stop,
            )
            outcome = self._closing_on_failure(run, owner, stop, lambda: _do(prepared, context, self.grounds))
        return self._finish(run, owner, _who_stopped(outcome, stop))

    def _start(self, prepared: Prepared, run_id: str, owner: Owner, trigger: Trigger) -> Run:
        return self.journal.start(
            run_id=run_id,
            table=str(prepared.view.ref),
            job=prepared.plan.job,
            owner=owner,
            trigger=trigger,
            plan=prepared.plan.to_dict(trash=False),
            policy={"keys": prepared.policy.to_dict()},
            now=clock.now(),
            lease_term=self.lease_term,
        )

    def _closing_on_failure(self, run: Run, owner: Owner, stop: Stop, do: Callable[[], Outcome]) -> Outcome:
        """A run that ends in an exception is closed with it, unless a commit was begun or a verdict may be in force.

        Then it stays open, and the next run reads from the table what happened instead of guessing.
        """
        try:
            return do()
        except Refused as error:
            self._finish(run, owner, Outcome(RunState.REFUSED, error.message))
            raise
        except Stopped as error:  # raised where nothing is half done
            return self._interrupted(run, error.message)
        except KeyboardInterrupt:
            if not self._begun(run):
                self._finish(run, owner, self._interrupted(run, "stopped by Ctrl-C"))
            raise
        except Exception as error:
            if self._begun(run):
                raise
            if stop.asked:  # what was under way on the engine has been cancelled
                return self._interrupted(run, f"stopped: {stop.reason}")
            self._finish(run, owner, Outcome(RunState.FAILED, _told(error)))
            raise

    def _begun(self, run: Run) -> bool:
        begun = (StepName.COMMITTING, DeletingStep.EXPIRING, DeletingStep.TRASHING)
        return any(step.name in begun for step in self.journal.steps(run.id))

    def _interrupted(self, run: Run, reason: str) -> Outcome:
        """With what it had committed by then, which stands."""
        steps = self.journal.steps(run.id)
        made = [step.detail.get("snapshot_id") for step in steps if step.name == StepName.COMMITTED]
        return Outcome(
            RunState.INTERRUPTED, reason, {"commits": len(made)}, tuple(each for each in made if each)
        )

    def _finish(self, run: Run, owner: Owner, outcome: Outcome) -> Run:
        now = clock.now()
        counters = {**outcome.counters, "seconds": round((now - run.started_at).total_seconds(), 2)}
        return self.journal.finish(
            run.id, outcome.state, outcome.reason, counters, outcome.snapshot_ids, now, owner
        )


def _who_stopped(outcome: Outcome, stop: Stop) -> Outcome:
    if outcome.state is not RunState.INTERRUPTED or not stop.asked or stop.reason in outcome.reason:
        return outcome
    return replace(outcome, reason="; ".join(each for each in (stop.reason, outcome.reason) if each))


def _unwritten(prepared: Prepared, owner: Owner, trigger: Trigger) -> Run:
    """A run of nothing, as a value: tables that need no work would fill the journal with it, hour by hour. It has no id."""
    now, plan = clock.now(), prepared.plan
    return Run(
        "",
        str(prepared.view.ref),
        plan.job,
        RunState.NOTHING_TO_DO,
        plan.reason,
        now,
        now,
        owner,
        trigger,
        plan.to_dict(trash=False),
    )


def _do(prepared: Prepared, context: RunContext, grounds: Grounds) -> Outcome:
    plan = prepared.plan
    if plan.empty:
        return Outcome(RunState.NOTHING_TO_DO, plan.reason)
    if plan.job is Job.EXPIRE:
        return expiring.execute(prepared, grounds, context)
    if plan.job is Job.HANDOFF:
        return cold_upkeep.execute(prepared, grounds, context)
    if plan.job is Job.PURGE:
        return purge.execute(prepared, grounds, context)
    if plan.job is Job.SWEEP:
        return sweeping.execute(prepared, grounds, context)
    if plan.job is Job.COMPACT_HISTORY:
        return compact_history.execute(prepared, grounds, context)
    if plan.job is Job.EXPIRE_PARTITIONS:
        return dropping.execute(prepared, context)
    if plan.job is Job.REWRITE_MANIFESTS:
        return manifests.execute(plan, prepared.view, context)
    paused = Windows.for_run(context.budgets, context.trigger).closed(clock.now())
    if paused is not None:
        return Outcome(RunState.NOTHING_TO_DO, paused.text)
    if plan.merges():
        return merging.execute(plan, prepared.view, prepared.policy, context)
    if prepared.files is None:
        raise AssertionError("a plan with groups was made from files")
    return rewriting.execute(plan, prepared.view, prepared.files, prepared.policy, context)


def _told(error: Exception) -> str:
    return error.message if isinstance(error, LakewardenError) else f"{type(error).__name__}: {error}"
