"""Executes a plan of bucket merges: merge on executors, journal, commit; many units at once.

If the process stops before COMMITTING is journaled, no commit can have happened; after it the table itself knows, by
run id and group. Paimon chooses the names of the outputs, and they are known only when a merge is done. So outputs of
a merge without a commit are not removed here: no snapshot names them, and a sweep finds them as orphans.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from lakewarden.errors import LakewardenError
from lakewarden.jobs.compact.cleanup import discard_groups
from lakewarden.jobs.journaled_commit import CleanupResult, intent_of, journaled_commit
from lakewarden.jobs.run_context import Outcome, RunContext, StepName
from lakewarden.jobs.units import progress_of, reasons_of, run_units_at_once, state_of
from lakewarden.lineage.summary import Lineage
from lakewarden.model.actions import MergeBuckets
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.spark.tasks import cancel
from lakewarden.tables.interface import MergedBuckets

log = logging.getLogger(__name__)


Unit = tuple[MergeBuckets, ...]


@dataclass(frozen=True, slots=True)
class UnitResult:
    """One unit of commit and how it ended. Only DONE ones have a snapshot."""

    unit: Unit
    state: RunState
    reason: str = ""
    snapshot_id: int | None = None
    merged: MergedBuckets | None = None


def execute(plan: Plan, view: TableView, policy: Policy, context: RunContext) -> Outcome:
    """Execute the plan. Ctrl-C stops the merging and lets a commit that has begun finish."""
    context.step(StepName.WRITING, {"outputs": {}, "table_uuid": view.uuid})
    units = commit_units(plan.merges(), policy.maybe_int("rewrite_max_commits"))
    merging = _Merging(plan, view, policy, context)
    with progress_of(context, f"{plan.job} {view.ref}", sum(each.bytes for each in plan.merges())):
        ended, interrupted = merging.run(units)
    return _outcome(plan, ended, interrupted)


def commit_units(merges: Sequence[MergeBuckets], max_commits: int | None) -> list[Unit]:
    """Which merges share a commit. By default none; with a maximum of commits, as few as it allows. The largest come first."""
    per_commit = 1 if not max_commits else -(-len(merges) // max_commits)
    units = [tuple(merges[start : start + per_commit]) for start in range(0, len(merges), per_commit)]
    return sorted(units, key=lambda unit: -sum(each.bytes for each in unit))


class _Merging:
    """The state of one execution."""

    def __init__(self, plan: Plan, view: TableView, policy: Policy, context: RunContext) -> None:
        self.plan, self.view, self.context = plan, view, context
        self.engine = context.format.rewrites().bucket_engine()
        self.keep_runs = policy.int("rewrite_min_input_files") - 1
        # Set once, seen by every thread: no unit starts merging or committing after it.
        self.stop = context.stop.event
        # One commit of this run at a time: two would only make each other retry.
        self.committing = threading.Lock()

    def run(self, units: Sequence[Unit]) -> tuple[list[UnitResult], bool]:
        """How each unit ended, and whether a cancel or Ctrl-C cut the work short."""
        ended, interrupted = run_units_at_once(self.context, units, self._unit, self._cancel, repeat=True)
        return ended, interrupted or self.stop.is_set()

    def _cancel(self) -> None:
        cancel(self.context.spark, self.context.run_id)

    def _unit(self, unit: Unit) -> UnitResult:
        if self.stop.is_set():
            return UnitResult(unit, RunState.INTERRUPTED, "stopped before it was merged")
        try:
            merged = self._merge(unit)
        except LakewardenError as error:  # the failure of one unit is reported, and the others continue
            log.debug("merge failed", exc_info=True)
            if self.stop.is_set():
                return self._skip(unit, RunState.INTERRUPTED, "stopped while it was merged")
            return self._skip(unit, RunState.FAILED, error.message)
        if merged.empty:
            return self._skip(
                unit, RunState.NOTHING_TO_DO, "Paimon found nothing to merge: others came first"
            )
        if merged.rows_after > merged.rows_before:
            self._discard(unit, merged)
            reason = f"Paimon wrote {merged.rows_after:,} rows from {merged.rows_before:,}: a merge must not add rows"
            return self._skip(unit, RunState.FAILED, reason)
        # From here on no other error is caught: an error around a commit must never remove files that the commit may have
        # added.
        return self._commit(unit, merged)

    def _merge(self, unit: Unit) -> MergedBuckets:
        context = self.context
        context.spark.sparkContext.setJobGroup(
            context.run_id, f"lakewarden {self.view.ref}", interruptOnCancel=True
        )
        return self.engine.merge(self.view, unit, self.keep_runs)

    def _commit(self, unit: Unit, merged: MergedBuckets) -> UnitResult:
        summary = self._lineage(unit, merged).summary()
        intent = intent_of([each.number for each in unit], list(merged.paths), summary)
        result = journaled_commit(
            self.context,
            intent,
            lambda: self.context.writer.commit_merge(self.view, merged, summary),
            lambda snapshot_id: {**intent, "snapshot_id": snapshot_id},
            discard=lambda error: self._discard(unit, merged),
            alone=self.committing,
            stopped=self.stop.is_set,
        )
        if result.state is RunState.INTERRUPTED:
            self._discard(unit, merged)
        if not result.done:
            return self._skip(unit, result.state, result.reason)
        self.context.progress.advance(sum(each.bytes for each in unit))
        return UnitResult(unit, RunState.DONE, "", result.value, merged)

    def _discard(self, unit: Unit, merged: MergedBuckets) -> CleanupResult:
        """Remove the outputs of a commit that did not happen."""
        return discard_groups(self.context, self.view, [each.number for each in unit], native=merged.paths)

    def _skip(self, unit: Unit, state: RunState, reason: str) -> UnitResult:
        for each in unit:
            detail = {"group": each.number, "partition": each.partition, "reason": reason}
            self.context.step(StepName.SKIPPED, detail)
            self.context.progress.note(f"skipped {each.partition or 'the table'}: {reason}")
        return UnitResult(unit, state, reason)

    def _lineage(self, unit: Unit, merged: MergedBuckets) -> Lineage:
        base = self.plan.bounds.base_snapshot_id
        return Lineage(
            operation="compaction",
            run_id=self.context.run_id,
            policy_hash=self.plan.policy_hash,
            trigger=self.context.trigger,
            input_snapshot_ids=[] if base is None else [base],
            row_count=sum(each.rows for each in unit),
            bytes_compressed=merged.bytes_before,
            group=",".join(str(each.number) for each in unit),
            # Paimon merges rows of one key by the table's own rules: only their number can be checked, which must not grow.
            proof="count",
        )


def _outcome(plan: Plan, ended: Sequence[UnitResult], interrupted: bool) -> Outcome:
    done = [each for each in ended if each.state is RunState.DONE]
    merged = [each.merged for each in done if each.merged is not None]
    groups = sum(len(each.unit) for each in done)
    counters = {
        "buckets_merged": sum(len(merge.buckets) for each in done for merge in each.unit),
        "files_compacted": sum(each.files_before for each in merged),
        "files_added": sum(each.files_after for each in merged),
        "bytes_before": sum(each.bytes_before for each in merged),
        "bytes_after": sum(each.bytes_after for each in merged),
        "rows": sum(each.rows_after for each in merged),
        "groups_done": groups,
        "groups_skipped": len(plan.merges()) - groups,
        "commits": len(done),
    }
    snapshots = tuple(each.snapshot_id for each in done if each.snapshot_id is not None)
    states = {each.state for each in ended}
    # What others merged in between is as good as done, where anything was done.
    if RunState.DONE in states:
        states.discard(RunState.NOTHING_TO_DO)
    skipped = [
        (each.reason, [merge.partition for merge in each.unit])
        for each in ended
        if each.state is not RunState.DONE
    ]
    return Outcome(state_of(plan, states, interrupted), reasons_of(plan, skipped), counters, snapshots)
