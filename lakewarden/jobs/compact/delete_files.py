"""compact-deletes besides rewriting data: drops delete files that apply to no data file, and merges small ones."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.errors import CommitLost
from lakewarden.jobs.compact.damage import merge_trouble
from lakewarden.jobs.journaled_commit import CleanupResult, intent_of, journaled_commit
from lakewarden.jobs.run_context import RunContext, StepName
from lakewarden.lineage.summary import Lineage
from lakewarden.model.actions import DropDeletes, MergeDeletes
from lakewarden.model.files import FileSet
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView
from lakewarden.tables.interface import Rewrite


@dataclass(frozen=True, slots=True)
class DeleteFileResult:
    """How one chore ended. A chore that found nothing to do is done, without a snapshot."""

    state: RunState
    reason: str = ""
    snapshot_id: int | None = None
    delete_files: int = 0


def has_delete_actions(plan: Plan) -> bool:
    return any(isinstance(action, DropDeletes | MergeDeletes) for action in plan.actions)


def run_delete_actions(
    plan: Plan, view: TableView, files: FileSet, context: RunContext
) -> list[DeleteFileResult]:
    """Each in its own commit, numbered after the groups."""
    chores = []
    for number, action in enumerate(plan.actions):
        if isinstance(action, DropDeletes | MergeDeletes):
            chores.append(_do(number, action, plan, view, files, context))
    return chores


def _do(
    number: int,
    action: DropDeletes | MergeDeletes,
    plan: Plan,
    view: TableView,
    files: FileSet,
    context: RunContext,
) -> DeleteFileResult:
    if isinstance(action, MergeDeletes) and (reason := merge_trouble(view, files, context)):
        return DeleteFileResult(RunState.PARTIAL, reason)
    lineage = Lineage(
        operation="compaction",
        run_id=context.run_id,
        policy_hash=plan.policy_hash,
        trigger=context.trigger,
        input_snapshot_ids=[files.snapshot_id],
        row_count=0,
        bytes_compressed=0,
        group=str(number),
    )
    summary = lineage.summary()
    intent = intent_of([number], [], summary)

    def commit() -> int | None:
        if isinstance(action, DropDeletes):
            return context.writer.commit_rewrite(
                Rewrite(view.ref, files, plan.bounds, (), (), summary, action.keys)
            )
        return context.writer.merge_deletes(view.ref, action.where, 2, summary)

    def discard_lost(error: CommitLost) -> CleanupResult:
        context.step(StepName.DISCARDED, {"groups": [number]})
        return CleanupResult.GONE

    result = journaled_commit(
        context, intent, commit, lambda id_: {**intent, "snapshot_id": id_}, discard=discard_lost
    )
    count = len(action.keys) if isinstance(action, DropDeletes) else action.delete_files
    return DeleteFileResult(result.state, result.reason, result.value, 0 if result.value is None else count)
