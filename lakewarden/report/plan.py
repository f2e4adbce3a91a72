"""A plan on the screen: what would be done, what is kept, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

from rich.text import Text

from lakewarden.formatting import counted, known_size, number, size, some
from lakewarden.model.actions import (
    Action,
    AgeFiles,
    DropDeletes,
    DropPartition,
    EraseFiles,
    ExpireChangelogs,
    ExpireRefs,
    ExpireSnapshots,
    FoldHistory,
    HandOff,
    ManifestRewrite,
    MergeBuckets,
    MergeDeletes,
    ReleaseSnapshots,
    RewriteGroup,
    TrashFiles,
)
from lakewarden.model.job_facts import JOBS
from lakewarden.model.plan import Plan, ReadCost, Skipped
from lakewarden.model.prices import HandOffCost
from lakewarden.model.run import Job
from lakewarden.report import look
from lakewarden.report.cost import dollars

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_GROUPS = 20


@dataclass(frozen=True, slots=True)
class PlanReport:
    """`next_command` executes the plan with the same settings."""

    plan: Plan
    next_command: str

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.plan.to_dict(),
            "columns": list(self.plan.columns),
            "totals": totals(self.plan),
            "next_command": None if self.plan.empty else self.next_command,
        }

    def render(self, width: int) -> RenderableType:
        plan = self.plan
        return look.stack(
            look.title(str(plan.job), str(plan.table)),
            look.facts(_header(plan)),
            *_body(plan),
            look.lines(_kept(plan.skipped), ("left", "right", "right", "left")) if plan.skipped else None,
            Text(),
            self._ending(),
        )

    def _ending(self) -> Text:
        if self.plan.empty:
            return look.dim("this was a plan: nothing was changed, and there is nothing to do")
        return Text.assemble(
            ("this was a plan: nothing was changed; to do it:\n  ", "dim"), look.command(self.next_command)
        )


def totals(plan: Plan) -> dict[str, int]:
    """The totals of a plan. Manifests and data files have separate counters."""
    groups = plan.groups()
    folds = [action for action in plan.actions if isinstance(action, ManifestRewrite)]
    counted_ = {
        "actions": len(plan.actions),
        "input_bytes": sum(group.bytes for group in groups) + sum(fold.bytes for fold in folds),
    }
    if groups:
        counted_["input_files"] = sum(group.files for group in groups)
        counted_["output_files"] = sum(group.outputs for group in groups)
        counted_["rows"] = sum(group.rows for group in groups)
    if merges := plan.merges():
        counted_["buckets"] = sum(len(each.buckets) for each in merges)
        counted_["sorted_runs"] = sum(each.runs for each in merges)
        counted_["files_to_merge"] = sum(each.files for each in merges)
        counted_["input_bytes"] += sum(each.bytes for each in merges)
        counted_["rows"] = sum(each.rows for each in merges)
    gone = [action for action in plan.actions if isinstance(action, TrashFiles | EraseFiles)]
    if gone:
        counted_["files"] = sum(each.files for each in gone)
        counted_["bytes"] = sum(each.bytes for each in gone)
    snapshots = [action for action in plan.actions if isinstance(action, ExpireSnapshots)]
    if snapshots:
        counted_["snapshots"] = sum(len(each.snapshot_ids) for each in snapshots)
    for each in plan.actions:
        if isinstance(each, HandOff):
            counted_ |= {"snapshots": len(each.snapshot_ids), "files": each.files, "bytes": each.bytes}
        elif isinstance(each, AgeFiles):
            counted_ |= {"files_to_age": each.files, "bytes_to_age": each.bytes}
        elif isinstance(each, ReleaseSnapshots):
            counted_ |= {"snapshots_to_release": len(each.snapshot_ids), "files_to_trash": each.files}
    folded = [action for action in plan.actions if isinstance(action, FoldHistory)]
    if folded:
        counted_["months"] = len(folded)
        counted_["entries"] = sum(each.entries for each in folded)
    partitions = [action for action in plan.actions if isinstance(action, DropPartition)]
    if partitions:
        counted_["partitions"] = len(partitions)
        counted_["files"] = sum(each.files for each in partitions)
        counted_["rows"] = sum(each.rows for each in partitions)
        counted_["bytes"] = sum(each.bytes for each in partitions)
    deletes = {place for group in groups for place in group.deletes}
    others = sum(_delete_files(action) for action in plan.actions)
    if deletes or others:
        counted_["delete_files"] = len(deletes) + others
    if folds:
        counted_["input_manifests"] = sum(fold.manifests for fold in folds)
        counted_["output_manifests"] = sum(fold.expected for fold in folds)
    return counted_


def _delete_files(action: Action) -> int:
    match action:
        case DropDeletes():
            return len(action.keys)
        case MergeDeletes():
            return action.delete_files
        case _:
            return 0


def _header(plan: Plan) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    if plan.strategy:
        by = f" by {', '.join(plan.columns)}" if plan.columns else ""
        rows.append(("strategy", f"{plan.strategy}{by}, to files of {size(plan.target_bytes)}"))
    rows.extend(("engine", each) for each in _engines(plan))
    if plan.bounds.branch != "main":
        rows.append(("branch", plan.bounds.branch))
    rows.append(("result", plan.reason or "nothing to do"))
    if _common_reason(plan):
        rows.append(("why", _common_reason(plan)))
    if plan.cut_short:
        rows.append(("limit", plan.cut_short))
    if plan.cost_before and plan.cost_after and not plan.empty:
        rows.append(("full scan", _scan_cost(plan.cost_before, plan.cost_after)))
        opened = f"{plan.cost_before.point_files:.1f} → {plan.cost_after.point_files:.1f}"
        rows.append(("one value", f"a query opens {opened} files of an average partition"))
    return rows + [each for action in plan.actions for each in _money(action)]


def _money(action: Action) -> list[tuple[str, str | Text]]:
    """The cost and the saving of an action of the colder tier, if prices are known."""
    match action:
        case HandOff(cost=HandOffCost() as cost):
            change = "saves" if cost.saved_month >= 0 else "costs"
            then = f"{dollars(cost.month)} a month; {change} {dollars(abs(cost.saved_month))} a month once the live files are gone"
            rows: list[tuple[str, str | Text]] = [
                ("cost", f"{dollars(cost.requests)} of requests once, then {then}")
            ]
            if cost.read_once:
                rows.append(("to read it", f"{dollars(cost.read_once)} for all of it, each time"))
            if cost.leave_early:
                rows.append(("to leave", f"{dollars(cost.leave_early)} if it were deleted on its first day"))
            if cost.padding_month:
                told = f"compacting first would save {dollars(cost.padding_month)} a month of it"
                rows.append(("small objects", told))
            return rows
        case AgeFiles(cost=aged):
            once = (
                f"{dollars(aged.requests)} of requests, {dollars(aged.retrieval)} to read it out of its class"
            )
            fees = (
                f", {dollars(aged.early_fees)} for leaving it before its minimum storage time"
                if aged.early_fees
                else ""
            )
            return [("ageing", f"{once}{fees}; then saves {dollars(aged.saved_month)} a month")]
        case _:
            return []


def _scan_cost(before: ReadCost, after: ReadCost) -> str:
    """The files, row groups and delete files of a full scan, before and after."""
    pairs = [
        (before.files, after.files, "files"),
        (before.row_groups, after.row_groups, "row groups"),
        (before.delete_files, after.delete_files, "delete files"),
    ]
    return ", ".join(f"{number(old)} → {number(new)} {noun}" for old, new, noun in pairs if old or new)


def _engines(plan: Plan) -> list[str]:
    """Each engine once per reason, with its number of groups if there are several engines."""
    tally: dict[tuple[str, str], int] = {}
    for group in plan.groups():
        key = (group.engine, group.engine_reason)
        tally[key] = tally.get(key, 0) + 1
    return [
        engine + (f", {counted(groups, 'group')}" if len(tally) > 1 else "") + (f": {why}" if why else "")
        for (engine, why), groups in tally.items()
    ]


def _body(plan: Plan) -> list[RenderableType]:
    if plan.empty:
        return []
    # A reason that all actions share is shown once, above. Otherwise each line shows its own.
    columns = 4 if _common_reason(plan) else 5
    headings = ("where", "from → to", "size", "rows", "why")[:columns]
    sides: list[look.Justify] = ["left", "right", "right", "right", "left"]
    shown = sorted(_line(action)[:columns] for action in plan.actions[:SHOWN_GROUPS])
    rest = len(plan.actions) - len(shown)
    return [
        Text(),
        look.lines(shown, sides[:columns], headings),
        *([look.dim(f"  and {rest:,} more")] if rest else []),
        look.lines([_total(plan)], ("left", "left")),
    ]


def _common_reason(plan: Plan) -> str:
    reasons = {action.reason for action in plan.actions}
    return reasons.pop() if len(reasons) == 1 else ""


def _line(action: Action) -> tuple[str, str, str, str, str]:
    match action:
        case RewriteGroup():
            where = action.partition or "the table"
            change = f"{number(action.files)} → {number(action.outputs)} files"
            return where, change, size(action.bytes), number(action.rows), action.reason
        case MergeBuckets():
            where = action.partition or "the table"
            buckets = counted(len(action.buckets), "bucket")
            change = f"{number(action.runs)} sorted runs in {buckets}, {'full' if action.full else 'minor'}"
            return where, change, size(action.bytes), number(action.rows), action.reason
        case ManifestRewrite():
            change = f"{number(action.manifests)} → {number(action.expected)} manifests"
            return f"spec {action.spec_id}", change, size(action.bytes), "", action.reason
        case DropDeletes():
            return "the table", f"{counted(len(action.keys), 'delete file')} dropped", "", "", action.reason
        case MergeDeletes():
            change = f"{counted(action.delete_files, 'delete file')} merged"
            return "the table", change, size(action.bytes), "", action.reason
        case ExpireSnapshots():
            return (
                "the table",
                f"expire {counted(len(action.snapshot_ids), 'snapshot')}",
                "",
                "",
                action.reason,
            )
        case ExpireRefs():
            return "the table", f"drop {some(list(action.names))}", "", "", action.reason
        case ExpireChangelogs():
            change = f"expire {counted(len(action.ids), 'changelog')}"
            return "the table", change, "", "", action.reason
        case DropPartition():
            change = f"drop {counted(action.files, 'file')}"
            return action.partition, change, size(action.bytes), number(action.rows), action.reason
        case HandOff():
            snapshots = counted(len(action.snapshot_ids), "snapshot")
            change = f"copy {counted(action.files, 'file')} of {snapshots} to {action.catalog}"
            return "the table", change, size(action.bytes), "", action.reason
        case ReleaseSnapshots():
            change = f"release {counted(len(action.snapshot_ids), 'snapshot')}, trash {counted(action.files, 'file')}"
            return "the cold table", change, size(action.bytes), "", action.reason
        case AgeFiles():
            change = f"move {counted(action.files, 'file')} to {action.storage_class}"
            return "the cold table", change, size(action.bytes), "", action.reason
        case TrashFiles():
            change = f"trash {counted(action.files, 'file')}"
            return action.kind, change, known_size(action.bytes, action.files), "", action.reason
        case EraseFiles():
            change = f"erase {counted(action.files, 'file')}"
            return action.batch_id, change, known_size(action.bytes, action.files), "", action.reason
        case FoldHistory():
            before = f" with {number(action.folded)} folded before" if action.folded else ""
            change = f"fold {counted(action.entries, 'entry', 'entries')}{before}"
            return action.month, change, "", "", action.reason
        case _:
            assert_never(action)


def _total(plan: Plan) -> tuple[Text, str]:
    all_ = totals(plan)
    if plan.job is Job.COMPACT_HISTORY:
        told = f"{counted(all_['entries'], 'entry', 'entries')} of {counted(all_['months'], 'month')}"
        return Text(JOBS[plan.job].would, style="bold"), told
    if would := JOBS[plan.job].would:
        parts = [
            counted(all_[f"{noun}s"], noun)
            for noun in ("partition", "snapshot", "file", "row")
            if f"{noun}s" in all_
        ]
        going = [each for each in plan.actions if isinstance(each, TrashFiles | EraseFiles)]
        unsized = sum(each.files for each in going if not each.bytes)
        told = known_size(all_.get("bytes", 0), all_.get("files", 0), unsized)
        return Text(would, style="bold"), ", ".join([*parts, told])
    parts = [
        f"{number(all_[f'input_{noun}'])} → {number(all_[f'output_{noun}'])} {noun}"
        for noun in ("files", "manifests")
        if f"input_{noun}" in all_
    ]
    if "buckets" in all_:
        parts.append(f"{number(all_['files_to_merge'])} files of {counted(all_['buckets'], 'bucket')}")
    parts.append(size(all_["input_bytes"]))
    if "rows" in all_:
        parts.append(counted(all_["rows"], "row"))
    groups = f" in {counted(len(plan.actions), 'group')}" if len(plan.actions) > 1 else ""
    return Text("would rewrite", style="bold"), ", ".join(parts) + groups


def _kept(skipped: tuple[Skipped, ...]) -> list[tuple[Text, str, str, str]]:
    return [
        (Text("keep", style="green"), counted(each.count, each.what), size(each.bytes), each.reason)
        for each in skipped
    ]
