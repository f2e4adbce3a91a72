"""expire-partitions in order: read the partitions, plan, journal the commit, drop the partitions in one snapshot.

If the process stops:

    before the commit starts   nothing happened
    after that                 the table shows by the run id whether the commit happened; the next run settles it

Only planned files are removed. Rows written into such a partition since the plan stay until a later plan includes them. No
file is deleted here: files go to the trash when the snapshots that still name them expire.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitNotSent, CommitRefused, CommitUnknown
from lakewarden.jobs.expire.plan import refuse_other_clock
from lakewarden.jobs.partitions import plan as expire_partitions
from lakewarden.jobs.run_context import Outcome, Prepared, RunContext, StepName
from lakewarden.lineage.summary import Lineage
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.tables.interface import Dropped, PartitionSet, TableFormat

# The number of attempts if other commits change the same files.
_ATTEMPTS = 5


def prepare(format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    """Plan the expiry. If it is switched off, the partitions are not read."""
    if expire_partitions.switched_off(policy):
        return Prepared(expire_partitions.plan(view, None, policy, now), view, policy)
    if not expire_partitions.by_call(policy):
        refuse_other_clock("expire partitions of", view, now)
    partitions = format_.partitions(view, policy.maybe_text("partition_where"))
    return Prepared(expire_partitions.plan(view, partitions, policy, now), view, policy, more=partitions)


def execute(prepared: Prepared, context: RunContext) -> Outcome:
    """Commit once. After a conflict, plan again for at most the same partitions."""
    first, begun = prepared.plan, 0
    context.progress.begin(f"{first.job} {prepared.view.ref}", 0)
    try:
        for attempt in range(_ATTEMPTS):
            context.stop.check()
            groups = list(range(begun, begun + len(prepared.plan.actions)))
            begun += len(groups)
            try:
                dropped = _attempt(prepared, context, attempt, groups)
                return Outcome(RunState.DONE, "", _counters(prepared.plan, dropped), (dropped.snapshot_id,))
            except (CommitRefused, CommitNotSent) as error:
                return Outcome(RunState.FAILED, error.message)
            except CommitUnknown as error:
                return Outcome(RunState.UNKNOWN, error.message)
            except CommitLost as error:
                context.step(StepName.DISCARDED, {"groups": groups, "reason": error.message})
                context.progress.note(f"{error.message}: planning again")
            prepared = _again(prepared, first, context)
            if prepared.plan.empty:
                return Outcome(RunState.NOTHING_TO_DO, "none of the partitions exists or is due any more")
        return Outcome(RunState.LOST_RACE, f"other commits changed the same files first, {_ATTEMPTS} times")
    finally:
        context.progress.end()


def _again(prepared: Prepared, first: Plan, context: RunContext) -> Prepared:
    view = context.format.view(prepared.view.ref)
    replanned = prepare(context.format, view, prepared.policy, clock.now())
    return Prepared(expire_partitions.only(replanned.plan, first), view, prepared.policy, more=replanned.more)


def _attempt(prepared: Prepared, context: RunContext, attempt: int, groups: list[int]) -> Dropped:
    view, plan = prepared.view, prepared.plan
    partitions: PartitionSet = prepared.more
    summary = _lineage(plan, context, attempt).summary()
    keys = {key: summary[key] for key in ("lineage.run_id", "lineage.group")}
    context.step(StepName.COMMITTING, {"groups": groups, "outputs": [], "summary": keys})
    ids = [each.partition_id for each in expire_partitions.drops(plan)]
    dropped = context.writer.drop_partitions(view.ref, partitions, ids, summary)
    context.step(StepName.COMMITTED, {"groups": groups, "snapshot_id": dropped.snapshot_id})
    return dropped


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
