"""Groups that lost although their files are still there: written anew, with the deletes applied that arrived meanwhile."""

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
class Again:
    """A plan of new groups on the newest snapshot, instead of these."""

    plan: Plan
    files: FileSet
    instead_of: frozenset[int]


def redo(
    plan: Plan, results: Sequence[Result], view: TableView, policy: Policy, context: RunContext
) -> Again | None:
    """Groups that lost although all their files are still there; None if there are none.

    A group that the kernel packed takes deletes in and rarely comes here; where rows change their order, or Iceberg's own
    writer wrote them, nobody can tell where a deleted row went.
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
        context.progress.note(f"writing {group.partition or 'the table'} anew: deletes arrived meanwhile")
    bounds = replace(plan.bounds, base_snapshot_id=head)
    return Again(
        replace(plan, actions=groups, bounds=bounds), files, frozenset(group.number for group in whole)
    )


def _live(files: FileSet, groups: Sequence[RewriteGroup]) -> dict[str, Candidate]:
    wanted = pa.array([path for group in groups for path in group.paths()])
    return {each.path: each for each in candidates(files.files, pc.is_in(files.files["path"], wanted))}


def _renewed(group: RewriteGroup, number: int, live: Mapping[str, Candidate]) -> RewriteGroup:
    """The same files with the deletes they carry now. Partitions and deletes are numbered anew by every scan."""
    bins = tuple(
        replace(bin_, sources=tuple(replace(each, deletes=live[each.path].deletes) for each in bin_.sources))
        for bin_ in group.bins
    )
    return replace(group, number=number, partition_id=live[group.paths()[0]].partition, bins=bins)
