"""rewrite-manifests: many small manifests become few, clustered by partition; data files are not touched."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from lakewarden.errors import CommitUnknown, LakewardenError
from lakewarden.jobs.compact.binpack import outputs_for
from lakewarden.jobs.journaled_commit import CommitResult, intent_of, journaled_commit
from lakewarden.jobs.run_context import Outcome, RunContext
from lakewarden.jobs.units import run_units
from lakewarden.lineage.summary import Lineage
from lakewarden.model.actions import ManifestRewrite
from lakewarden.model.files import Manifest
from lakewarden.model.plan import Bounds, Plan, count_skipped
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job, RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy

log = logging.getLogger(__name__)


def plan(view: TableView, manifests: Sequence[Manifest], policy: Policy, now: datetime) -> Plan:
    """Plan the partition specs whose manifests are worth merging, if the table has at least
    `manifest_rewrite_min_manifests`.
    """
    empty = Plan(
        job=Job.REWRITE_MANIFESTS,
        table=view.ref,
        made_at=now,
        bounds=Bounds(view.current_snapshot_id, "main", policy.int("manifest_target_bytes")),
        policy_hash=policy.hash(),
        reason="",
        target_bytes=policy.int("manifest_target_bytes"),
    )
    if not policy.bool("manifest_rewrite_enabled"):
        return replace(empty, reason=f"switched off: {policy.explain('manifest_rewrite_enabled')}", off=True)
    least = policy.explain("manifest_rewrite_min_manifests")
    if len(manifests) < policy.int("manifest_rewrite_min_manifests"):
        too_few = Reason(ReasonKind.TOO_FEW, f"too few: {least}")
        few = ("manifest", len(manifests), sum(each.bytes for each in manifests), too_few)
        return replace(
            empty, reason=f"the table has {len(manifests)} manifests: {least}", skipped=count_skipped([few])
        )
    actions, skipped = [], []
    for spec_id in sorted({each.spec_id for each in manifests}):
        members = [each for each in manifests if each.spec_id == spec_id]
        total = sum(each.bytes for each in members)
        expected = _expected(members, policy.int("manifest_target_bytes"))
        # At least half of them must go: a table that is simply large must not be rewritten on every pass.
        if expected * 2 <= len(members):
            actions.append(
                ManifestRewrite(spec_id, len(members), total, expected, f"many manifests: {least}")
            )
        else:
            reason = f"folding would not halve them: {policy.explain('manifest_target_bytes')}"
            skipped.append(("manifest", len(members), total, Reason(ReasonKind.NO_GAIN, reason)))
    return replace(empty, actions=tuple(actions), skipped=count_skipped(skipped), reason=_summary(actions))


def _expected(members: Sequence[Manifest], target: int) -> int:
    """Data and delete manifests are merged separately."""
    return sum(
        outputs_for(sum(each.bytes for each in members if each.content == content), target)
        for content in sorted({each.content for each in members})
    )


def _summary(actions: Sequence[ManifestRewrite]) -> str:
    if not actions:
        return "the manifests already have their size"
    return f"{sum(a.manifests for a in actions)} manifests become about {sum(a.expected for a in actions)}"


def execute(plan: Plan, view: TableView, context: RunContext) -> Outcome:
    """One metadata-only commit for each partition spec. Iceberg checks at the commit that the manifests it read are current."""

    def commit(unit: tuple[int, ManifestRewrite]) -> CommitResult[int | None]:
        number, action = unit
        summary = _lineage(plan, view, context, number, action).summary()
        result = journaled_commit(
            context,
            intent_of([number], [], summary),
            lambda: context.writer.rewrite_manifests(view.ref, action.spec_id, plan.target_bytes, summary),
            lambda snapshot_id: {"groups": [number], "snapshot_id": snapshot_id},
        )
        if result.done:
            context.progress.advance(action.bytes)
        return result

    results = run_units(
        context,
        f"{plan.job} {view.ref}",
        list(enumerate(_actions(plan))),
        commit,
        total=sum(each.bytes for each in _actions(plan)),
        last=lambda result: not result.done,
    )
    snapshots = [each.value for each in results if each.value is not None]
    last = results[-1]
    if not last.done:
        # Unknown stays unknown. If earlier commits were made, a lost one makes the run partial.
        state = last.state if isinstance(last.error, CommitUnknown) or not snapshots else RunState.PARTIAL
        return _ended(state, last.reason, plan, view, snapshots, context)
    if not snapshots:
        reason = "the format's library folded none of these manifests"
        return _ended(RunState.NOTHING_TO_DO, reason, plan, view, snapshots, context)
    return _ended(RunState.DONE, "", plan, view, snapshots, context)


def _ended(
    state: RunState, reason: str, plan: Plan, view: TableView, snapshots: Sequence[int], context: RunContext
) -> Outcome:
    counters = {
        "manifests_before": sum(action.manifests for action in _actions(plan)),
        "commits": len(snapshots),
    }
    if snapshots:
        try:
            counters["manifests_after"] = len(context.format.manifests(view.ref, snapshots[-1]))
        except LakewardenError as error:
            # Only a number is missing. The commit is done, even if its snapshot has expired since.
            log.warning("the manifests that run %s left were not counted: %s", context.run_id, error)
    return Outcome(state, reason, counters, tuple(snapshots))


def _actions(plan: Plan) -> list[ManifestRewrite]:
    return [action for action in plan.actions if isinstance(action, ManifestRewrite)]


def _lineage(
    plan: Plan, view: TableView, context: RunContext, number: int, action: ManifestRewrite
) -> Lineage:
    return Lineage(
        operation="manifest-rewrite",
        run_id=context.run_id,
        policy_hash=plan.policy_hash,
        trigger=context.trigger,
        input_snapshot_ids=[] if plan.bounds.base_snapshot_id is None else [plan.bounds.base_snapshot_id],
        row_count=0,
        bytes_compressed=action.bytes,
        group=str(number),
    )
