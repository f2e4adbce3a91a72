"""What compact-deletes does besides rewriting data: delete files that apply to nothing leave, small ones are merged."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.errors import CommitLost, CommitUnknown
from lakewarden.jobs.compact.cleanup import ending
from lakewarden.jobs.compact.damage import merge_trouble
from lakewarden.jobs.run_context import RunContext, StepName
from lakewarden.lineage.summary import Lineage
from lakewarden.model.actions import DropDeletes, MergeDeletes
from lakewarden.model.files import FileSet
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView
from lakewarden.tables.interface import Rewrite


@dataclass(frozen=True, slots=True)
class Chore:
    """How one ended. A chore that found nothing left to do is done, without a snapshot."""

    state: RunState
    reason: str = ""
    snapshot_id: int | None = None
    delete_files: int = 0


def has_chores(plan: Plan) -> bool:
    return any(isinstance(action, DropDeletes | MergeDeletes) for action in plan.actions)


def do_chores(plan: Plan, view: TableView, files: FileSet, context: RunContext) -> list[Chore]:
    """Each in a commit of its own, numbered after the groups."""
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
) -> Chore:
    if isinstance(action, MergeDeletes) and (reason := merge_trouble(view, files, context)):
        return Chore(RunState.PARTIAL, reason)
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
    detail = {
        "groups": [number],
        "outputs": [],
        "summary": {key: summary[key] for key in ("lineage.run_id", "lineage.group")},
    }
    context.step(StepName.COMMITTING, detail)
    try:
        if isinstance(action, DropDeletes):
            rewrite = Rewrite(view.ref, files, plan.bounds, (), (), summary, action.keys)
            snapshot_id = context.writer.commit_rewrite(rewrite)
            count = len(action.keys)
        else:
            snapshot_id = context.writer.merge_deletes(view.ref, action.where, 2, summary)
            count = action.delete_files
    except CommitLost as error:
        context.step(StepName.DISCARDED, {"groups": [number]})
        return Chore(ending(error), error.message)
    except CommitUnknown as error:
        return Chore(RunState.UNKNOWN, error.message)
    context.step(StepName.COMMITTED, {**detail, "snapshot_id": snapshot_id})
    return Chore(RunState.DONE, "", snapshot_id, count if snapshot_id is not None else 0)
