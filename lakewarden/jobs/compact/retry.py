"""Writes groups again that lost the race although their files still exist, with the newly arrived deletes applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.jobs.compact.binpack import Candidate, candidates
from lakewarden.jobs.compact.result import Result
from lakewarden.jobs.run_context import RunContext
from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """A plan of new groups on the newest snapshot, instead of these."""

    plan: Plan
    files: FileSet
    instead_of: frozenset[int]


def redo(
    plan: Plan, results: Sequence[Result], view: TableView, policy: Policy, context: RunContext
) -> RetryPlan | None:
    """A plan for the groups that lost the race although all their files still exist; None if there are none.

    Commits of groups that the kernel packed carry new deletes over, so they rarely come here. If rows change their order,
    or Iceberg's own writer wrote them, the new place of a deleted row is not known.
    """
    lost = [each.group for each in results if each.state is RunState.LOST_RACE]
    if not lost:
        return None
    branch = plan.bounds.branch
    fresh = context.format.view(view.ref)
    head = fresh.head(branch)
    if head is None:
        return None
    names = list(lost[0].share_before)
    files = context.format.files(view.ref, head, policy.maybe_text("rewrite_where"), names)
    live = _live(files, lost)
    whole = [group for group in lost if all(path in live for path in group.paths())]
    if not whole:
        return None
    # Chores are numbered after the plan's groups.
    start = max(len(plan.actions), *(each.group.number + 1 for each in results))
    groups = tuple(_renewed(group, number, live) for number, group in enumerate(whole, start))
    for group in whole:
        context.progress.note(
            f"writing {group.partition or 'the table'} again: deletes arrived during the rewrite"
        )
    bounds = replace(plan.bounds, base_snapshot_id=head)
    return RetryPlan(
        replace(plan, actions=groups, bounds=bounds), files, frozenset(group.number for group in whole)
    )


def _live(files: FileSet, groups: Sequence[RewriteGroup]) -> dict[str, Candidate]:
    wanted = pa.array([path for group in groups for path in group.paths()])
    return {each.path: each for each in candidates(files.files, pc.is_in(files.files["path"], wanted))}


def _renewed(group: RewriteGroup, number: int, live: Mapping[str, Candidate]) -> RewriteGroup:
    """The same files with their current deletes. Every scan numbers partitions and deletes again."""
    bins = tuple(
        replace(bin_, sources=tuple(replace(each, deletes=live[each.path].deletes) for each in bin_.sources))
        for bin_ in group.bins
    )
    return replace(group, number=number, partition_id=live[group.paths()[0]].partition, bins=bins)
