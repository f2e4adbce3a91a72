"""The frame of every run: recover, plan, journal, execute, close. The differences between jobs are in the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from lakewarden import clock
from lakewarden.config.schema import BudgetsConfig
from lakewarden.deletion.foreign_metadata import refuse_foreign
from lakewarden.errors import Busy, Refused, Stopped, UsageError, message_of
from lakewarden.jobs.cold.table import refuse_frozen
from lakewarden.jobs.commit_guard import RunGuard, foresee
from lakewarden.jobs.deps import JobDeps, JobLake
from lakewarden.jobs.heartbeat import DRIVEN, driving, with_heartbeat
from lakewarden.jobs.purge.settle import settle_batches
from lakewarden.jobs.recovery import recover
from lakewarden.jobs.registry import spec_of
from lakewarden.jobs.run_context import DeletingStep, Outcome, Prepared, RunContext, StepName, Stop, finish
from lakewarden.model.plan import Bounds, Plan
from lakewarden.model.prices import PRICES, Price
from lakewarden.model.run import Job, Owner, Progress, Run, RunState, Silent, Trigger
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.spark.task_slots import TaskSlots
from lakewarden.spark.tasks import cancel
from lakewarden.state.runs import Journal, current_owner, new_run_id
from lakewarden.tables.interface import TableFormat, TableWriter


def prepare(
    job: Job, format_: TableFormat, view: TableView, policy: Policy, now: datetime, deps: JobDeps
) -> Prepared:
    """Read what the planner needs, then plan. Changes nothing."""
    spec = spec_of(job)
    if spec.facts.changes_table:
        refuse_foreign(job, view, deps.state, deps.lake.strays)
    return spec.prepare(deps, format_, view, policy, now)


class _Lake(JobLake, Protocol):
    spark: Any


@dataclass(frozen=True, slots=True)
class Runner:
    lake: _Lake
    journal: Journal
    task_memory: int
    progress: Progress | None
    budgets: BudgetsConfig = field(default_factory=BudgetsConfig)
    slots: TaskSlots | None = None
    history: str = "state"
    prices: Mapping[str, Price] = field(default_factory=lambda: PRICES)
    stop: Stop = field(default_factory=Stop)
    lease_term: int | None = None  # of the worker's lease; None for a run that was started by hand
    quiet: bool = False  # a run with nothing to do is not journaled

    @property
    def deps(self) -> JobDeps:
        state, rate = self.journal.state, self.budgets.deletes_per_s
        return JobDeps(state, self.lake, rate, self.history, self.prices)

    def run(
        self,
        job: Job,
        table: TableRef,
        resolve: Callable[[TableView], Policy],
        trigger: Trigger,
        run_id: str | None = None,
    ) -> Run:
        self.stop.check()
        format_, owner, spec = self.lake.format_for(table), current_owner(), spec_of(job)
        self._recover(job, format_, table, owner)
        view = format_.view(table)
        policy = resolve(view)
        if not spec.facts.on_cold_tables:
            refuse_frozen(job, view, self.journal.state)
        if spec.before_plan is not None:
            spec.before_plan(self.deps, format_, view)
        run_id = run_id or new_run_id(clock.now())
        try:
            prepared = prepare(job, format_, view, policy, clock.now(), self.deps)
            if spec.facts.operation and not prepared.plan.empty:
                foresee(table, spec.facts.operation, run_id, policy, trigger, self.journal.state)
        except Refused as error:
            self._journal_unplanned(RunState.REFUSED, job, run_id, view, policy, owner, trigger, error)
            raise
        except Exception as error:
            if isinstance(error, (UsageError, Stopped)):
                raise  # an error of the call, not of the table: it is only reported to the caller
            with suppress(Busy):  # then the journal has the other run
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
        """Journal a run that was refused or could not be planned: it is part of the table's history too."""
        made = Plan(job, view.ref, clock.now(), Bounds(None, "main", 0), policy.hash(), message_of(error))
        run = self._start(Prepared(made, view, policy), run_id, owner, trigger)
        finish(self.journal, run, owner, Outcome(state, message_of(error)))

    def _recover(self, job: Job, format_: TableFormat, table: TableRef, owner: Owner) -> None:
        """Settle what an earlier run of this job left open before a new plan is made."""
        spec = spec_of(job)
        settle = spec.settle and spec.settle(self.deps, self.journal, format_, table)
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
        if spec.facts.settles_trash:
            settle_batches(self.deps, format_, table, self.journal)

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
        with with_heartbeat(
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
                self.slots,
                stop,
            )
            outcome = self._closing_on_failure(run, owner, stop, lambda: _do(prepared, context, self.deps))
        return finish(self.journal, run, owner, _who_stopped(outcome, stop))

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
        """Close a run that ends with an exception, unless a commit was begun or a deletion batch may be in force.

        Then it stays open, and the next run reads the outcome from the table.
        """
        try:
            return do()
        except Refused as error:
            finish(self.journal, run, owner, Outcome(RunState.REFUSED, error.message))
            raise
        except Stopped as error:  # raised only where no work is half done
            return self._interrupted(run, error.message)
        except KeyboardInterrupt:
            if not self._begun(run):
                finish(self.journal, run, owner, self._interrupted(run, "stopped by Ctrl-C"))
            raise
        except Exception as error:
            if self._begun(run):
                raise
            if stop.asked:  # the work on the engine has been cancelled
                return self._interrupted(run, f"stopped: {stop.reason}")
            finish(self.journal, run, owner, Outcome(RunState.FAILED, message_of(error)))
            raise

    def _begun(self, run: Run) -> bool:
        begun = (StepName.COMMITTING, DeletingStep.EXPIRING, DeletingStep.TRASHING)
        return any(step.name in begun for step in self.journal.steps(run.id))

    def _interrupted(self, run: Run, reason: str) -> Outcome:
        """Close the run with its commits so far: they stay."""
        steps = self.journal.steps(run.id)
        made = [step.detail.get("snapshot_id") for step in steps if step.name == StepName.COMMITTED]
        return Outcome(
            RunState.INTERRUPTED, reason, {"commits": len(made)}, tuple(each for each in made if each)
        )


def _who_stopped(outcome: Outcome, stop: Stop) -> Outcome:
    if outcome.state is not RunState.INTERRUPTED or not stop.asked or stop.reason in outcome.reason:
        return outcome
    return replace(outcome, reason="; ".join(each for each in (stop.reason, outcome.reason) if each))


def _unwritten(prepared: Prepared, owner: Owner, trigger: Trigger) -> Run:
    """A run with nothing to do. It has no id and is not journaled: tables without work would fill the journal every hour."""
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


def _do(prepared: Prepared, context: RunContext, deps: JobDeps) -> Outcome:
    plan = prepared.plan
    if plan.empty:
        return Outcome(RunState.NOTHING_TO_DO, plan.reason)
    return spec_of(plan.job).execute(prepared, deps, context)
