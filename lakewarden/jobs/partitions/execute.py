"""expire-partitions, in order: read the partitions, plan, journal the commit, drop them in one snapshot.

If the process stops:

    before the commit is begun   nothing happened
    after it                     the table shows, by run id, whether it happened; the next run settles it

Only planned files are dropped. A row that is written into such a partition during the run stays until a later plan
drops it. No file is deleted here: the files go to the trash when the snapshots that still name them expire.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lakewarden import clock
from lakewarden.errors import CommitLost
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.expire.plan import refuse_other_clock
from lakewarden.jobs.journaled_commit import CleanupResult, CommitResult, ending, intent_of, journaled_commit
from lakewarden.jobs.partitions import plan as expire_partitions
from lakewarden.jobs.run_context import Outcome, Prepared, RunContext, StepName
from lakewarden.jobs.units import progress_of
from lakewarden.lineage.summary import Lineage
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.tables.interface import Dropped, PartitionSet, TableFormat

# The number of attempts if other commits change the same files.
_ATTEMPTS = 5


def prepare(deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    """If the job is switched off, the partitions are not read."""
    if expire_partitions.switched_off(policy):
        return Prepared(expire_partitions.plan(view, None, policy, now), view, policy)
    if not expire_partitions.by_call(policy):
        refuse_other_clock("expire partitions of", view, now)
    partitions = format_.partitions(view, policy.maybe_text("partition_where"))
    return Prepared(expire_partitions.plan(view, partitions, policy, now), view, policy, more=partitions)


def execute(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    """One commit. If others changed the files first, plan again, but only for the same partitions."""
    first, begun = prepared.plan, 0
    with progress_of(context, f"{first.job} {prepared.view.ref}"):
        for attempt in range(_ATTEMPTS):
            context.stop.check()
            groups = list(range(begun, begun + len(prepared.plan.actions)))
            begun += len(groups)
            result = _attempt(prepared, context, attempt, groups)
            if result.value is not None:
                dropped = result.value
                return Outcome(RunState.DONE, "", _counters(prepared.plan, dropped), (dropped.snapshot_id,))
            if result.state is not RunState.LOST_RACE:
                return Outcome(result.state, result.reason)
            context.progress.note(f"{result.reason}: planning again")
            prepared = _again(prepared, first, deps, context)
            if prepared.plan.empty:
                return Outcome(
                    RunState.NOTHING_TO_DO, "none of the partitions exists, or is to be dropped, any more"
                )
        return Outcome(RunState.LOST_RACE, f"others changed the same files first, {_ATTEMPTS} times")


def _again(prepared: Prepared, first: Plan, deps: JobDeps, context: RunContext) -> Prepared:
    view = context.format.view(prepared.view.ref)
    replanned = prepare(deps, context.format, view, prepared.policy, clock.now())
    return Prepared(expire_partitions.only(replanned.plan, first), view, prepared.policy, more=replanned.more)


def _attempt(
    prepared: Prepared, context: RunContext, attempt: int, groups: list[int]
) -> CommitResult[Dropped]:
    view, plan = prepared.view, prepared.plan
    partitions: PartitionSet = prepared.more
    summary = _lineage(plan, context, attempt).summary()
    ids = [each.partition_id for each in expire_partitions.drops(plan)]

    def discarded(error: CommitLost) -> CleanupResult:
        if ending(error) is RunState.LOST_RACE:
            context.step(StepName.DISCARDED, {"groups": groups, "reason": error.message})
        return CleanupResult.GONE

    return journaled_commit(
        context,
        intent_of(groups, [], summary),
        lambda: context.writer.drop_partitions(view.ref, partitions, ids, summary),
        lambda dropped: {"groups": groups, "snapshot_id": dropped and dropped.snapshot_id},
        discard=discarded,
    )


def _lineage(plan: Plan, context: RunContext, attempt: int) -> Lineage:
    drops, base = expire_partitions.drops(plan), plan.bounds.base_snapshot_id
    return Lineage(
        operation="partition-expiry",
        run_id=context.run_id,
        policy_hash=plan.policy_hash,
        trigger=context.trigger,
        input_snapshot_ids=[] if base is None else [base],
        row_count=sum(drop.rows for drop in drops),
        bytes_compressed=sum(drop.bytes for drop in drops),
        group=str(attempt),
    )


def _counters(plan: Plan, dropped: Dropped) -> Mapping[str, Any]:
    return {
        "partitions_dropped": len(plan.actions),
        "files_dropped": dropped.files,
        "rows_dropped": dropped.rows,
        "bytes_dropped": dropped.bytes,
        "commits": 1,
    }
