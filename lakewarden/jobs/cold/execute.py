"""The whole job handoff: hand off expiring snapshots, release cold snapshots past their retention, move old data deeper.

The three parts are in `handoff.py`, `retention.py` and `transition.py`. Here they are planned together and executed in that
order: a new cold snapshot may need files that would otherwise be released, and released files need no transition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitUnknown, PolicyError
from lakewarden.jobs.cold import handoff, transition
from lakewarden.jobs.cold import retention as cold_retention
from lakewarden.jobs.cold.retention import ColdRelease
from lakewarden.jobs.cold.table import Cold, look
from lakewarden.jobs.cold.transition import ClassTransition
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.recovery import IN_FLIGHT, RunResult
from lakewarden.jobs.run_context import ColdStep, DeletingStep, Outcome, Prepared, RunContext
from lakewarden.model.actions import AgeFiles, HandOff, ReleaseSnapshots
from lakewarden.model.plan import ManyTrashed, Plan, count_skipped
from lakewarden.model.prices import ARCHIVED
from lakewarden.model.run import Run, RunState
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.cold import ColdFile, ColdSnapshots
from lakewarden.state.runs import Journal
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import BatchState
from lakewarden.tables.interface import TableFormat


@dataclass(frozen=True, slots=True)
class ColdMaintenance:
    """What handing off and moving to a deeper class read. `files` are all files of the hand-off, already copied or not."""

    files: pa.Table | None = None
    transition: ClassTransition = field(default_factory=ClassTransition)


def prepare(deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    """Plan all three parts. Reads only metadata."""
    _check(policy)
    handing = handoff.prepare(deps, format_, view, policy, now)
    cold = look(deps, format_, view, policy) if policy.bool("handoff_enabled") else None
    if cold is None:
        return replace(handing, more=ColdMaintenance(handing.more))
    releasing = cold_retention.prepare(deps, cold, view, policy, now)
    aged = transition.prepare(deps, cold, view.uuid, policy, now, releasing.snapshot_ids)
    combined = _together(handing.plan, releasing, aged)
    return replace(handing, plan=combined, more=ColdMaintenance(handing.more, aged))


def _check(policy: Policy) -> None:
    first = policy.maybe_text("handoff_storage_class")
    if policy.bool("handoff_enabled") and first in ARCHIVED:
        reason = f"{first} cannot be read back, and a copy counts only after it was read back; choose the class for later with"
        raise PolicyError(
            key="handoff_storage_class",
            reason=f"{reason} handoff_deep_storage_class, with handoff_retention_hours=0",
        )


def _together(plan: Plan, releasing: ColdRelease, aged: ClassTransition) -> Plan:
    skipped = [*(each.row() for each in plan.skipped), *releasing.skipped, *aged.skipped]
    new = [each for each in (releasing.action, aged.action) if each is not None]
    reasons = [plan.reason]
    if releasing.action:
        reasons.append(f"{len(releasing.snapshot_ids):,} cold snapshots are past their retention")
    if aged.action:
        reasons.append(f"{aged.action.files:,} copies are old enough for {aged.action.storage_class}")
    return replace(
        plan,
        actions=(*plan.actions, *new),
        skipped=count_skipped(skipped),
        reason="; ".join(reasons),
        trash=() if releasing.files is None else ManyTrashed(releasing.files, cold_retention.CAUSE),
    )


def execute(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    upkeep: ColdMaintenance = prepared.more
    counters: dict[str, Any] = {}
    try:
        for action in prepared.plan.actions:
            match action:
                case HandOff():
                    done = _hand_off(prepared, upkeep, deps, context)
                    if done.state is not RunState.DONE:
                        return done
                    counters |= done.counters
                case ReleaseSnapshots():
                    cold, live = _cold(prepared, deps, context), context.format.view(prepared.view.ref)
                    counters |= cold_retention.execute(action, cold, live, prepared.policy, deps, context)
                case AgeFiles():
                    cold, uuid = _cold(prepared, deps, context), prepared.view.uuid
                    files = _still_old(prepared, upkeep, cold, deps)
                    counters |= transition.execute(action, files, cold, uuid, deps, context)
                case _:
                    raise AssertionError(f"handoff plans no {type(action).__name__}")
    except CommitLost as error:
        TrashedFiles(deps.state).void(context.run_id)
        return Outcome(RunState.LOST_RACE, error.message, counters)
    except CommitUnknown as error:
        return Outcome(RunState.UNKNOWN, error.message, counters)
    return Outcome(RunState.DONE, "", counters)


def _cold(prepared: Prepared, deps: JobDeps, context: RunContext) -> Cold:
    """The cold table, read again after the earlier parts of this run."""
    cold = look(deps, context.format, prepared.view, prepared.policy)
    assert cold is not None, "a plan with cold actions requires a cold table"
    return cold


def _still_old(prepared: Prepared, upkeep: ColdMaintenance, cold: Cold, deps: JobDeps) -> list[ColdFile]:
    """The copies planned for transition, without those that a snapshot of this run's hand-off needs."""
    planned = upkeep.transition.files
    if not any(isinstance(action, HandOff) for action in prepared.plan.actions):
        return [*planned]
    now = transition.prepare(deps, cold, prepared.view.uuid, prepared.policy, clock.now(), ())
    there = {file.cold_path for file in now.files}
    return [each for each in planned if each.cold_path in there]


def _hand_off(prepared: Prepared, upkeep: ColdMaintenance, deps: JobDeps, context: RunContext) -> Outcome:
    view, files = prepared.view, upkeep.files
    assert files is not None
    cold = look(deps, context.format, view, prepared.policy)
    if cold is not None:
        move = context.format.cold_tier().rehome(view, cold.home)
        moved = {path: move(path) for path in files["path"].to_pylist()}
        cold_retention.take_back(deps, view, cold, moved, context.run_id)
    (action,) = (action for action in prepared.plan.actions if isinstance(action, HandOff))
    done = handoff.execute(replace(prepared, more=files), deps, context)
    if done.state is RunState.DONE:
        ColdSnapshots(deps.state).add(view.uuid, action.snapshot_ids, context.run_id, clock.now())
    return done


def settle(
    deps: JobDeps, journal: Journal, format_: TableFormat, table: TableRef, run: Run
) -> RunResult | None:
    """The real outcome of a run that stopped, read from the cold table. None while a commit may still arrive."""
    steps = {step.name: step for step in journal.steps(run.id)}
    view = format_.view(table)
    handed: RunResult | None = None
    if DeletingStep.HANDING in steps:
        handed = handoff.settle(journal, format_, table, run)
        if handed is None:
            return None
        step = steps[DeletingStep.HANDING]
        home = format_.cold_tier().find(view, TableRef.parse(step.detail["cold"]).catalog)
        # Also for a failed run: where snapshots are registered one by one, some may exist already.
        known, there = ColdSnapshots(deps.state), home.snapshots if home else frozenset()
        new = there.intersection(step.detail["snapshot_ids"]) - set(known.handed(view.uuid))
        known.add(view.uuid, new, run.id, step.at)
    batch = TrashedFiles(deps.state).batch(run.id)
    if batch is not None and batch.state is BatchState.PENDING:
        home = format_.cold_tier().find(view, TableRef.parse(batch.detail["cold"]).catalog)
        in_flight = run.state is RunState.UNKNOWN and clock.now() - batch.made_at < IN_FLIGHT
        if in_flight and home is not None and not home.snapshots.isdisjoint(batch.detail["snapshot_ids"]):
            return None
        if cold_retention.settle(deps, batch, home):
            return RunResult(
                RunState.DONE,
                "its snapshots were removed from the cold table, and its files are in the trash",
            )
        return handed or RunResult(RunState.FAILED, "no snapshot was removed from the cold table")
    return _rest(steps, handed, batch is not None and batch.state is BatchState.ACTIVE)


def _rest(steps: Mapping[str, Any], handed: RunResult | None, released: bool) -> RunResult:
    """The outcome if no commit is open: what the journal records as done was done."""
    if ColdStep.AGEING in steps and ColdStep.AGED not in steps:
        before = handed is not None or released
        state = RunState.PARTIAL if before else RunState.FAILED
        return RunResult(state, "finished transitions stay; the next run continues from there")
    if handed is not None:
        return handed
    if released or ColdStep.AGED in steps:
        return RunResult(RunState.DONE, "all of it was done")
    return RunResult(RunState.FAILED, "it had not begun")
