"""compact-deletes: data files that carry deletes are rewritten without the deleted rows, and the deletes leave the table.

A data file is worth it from `delete_compaction_min_deletes` delete files on, or when `delete_compaction_ratio` of its rows
are known to be deleted. Where it is not, many small position-delete files are merged instead, or applied if Spark cannot
merge those of the table. Delete files that no longer apply to any data file are dropped. Rows keep their order, so files
that were written in an order stay in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby

import pyarrow.compute as pc

from lakewarden.jobs.compact.binpack import (
    Candidate,
    candidates,
    carries_deletes,
    clustering_of,
    named_twice,
    skip,
    skip_all,
    spread,
    unit_bound,
    units,
)
from lakewarden.jobs.compact.cluster import clustering
from lakewarden.jobs.compact.partition_age import partition_open_reason
from lakewarden.jobs.compact.plan import PlanInputs, default_engine, empty_plan, finish_plan, make_group
from lakewarden.model.actions import Bin, DropDeletes, MergeDeletes, RewriteGroup
from lakewarden.model.files import DeleteFile, FileSet, Partition
from lakewarden.model.plan import Plan, SkippedRow
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy

# Iceberg's merge of delete files runs in Spark, which has no such type and refuses the whole table.
_NOT_FOR_SPARK = re.compile(r'"type": ?"time"')


def plan(
    view: TableView,
    files: FileSet | None,
    policy: Policy,
    unfit: str | None,
    now: datetime,
    dangling: Sequence[str] = (),
) -> Plan:
    """Which data files are rewritten without their deletes, and which delete files are dropped. `dangling`: those that
    apply to no data file.
    """
    chosen = clustering(view, policy)
    empty = empty_plan(Job.COMPACT_DELETES, view, policy, now, chosen)
    empty = replace(empty, strategy="binpack", columns=())
    if not policy.bool("delete_compaction_enabled"):
        return replace(empty, reason=f"switched off: {policy.explain('delete_compaction_enabled')}", off=True)
    if files is None:
        return replace(empty, reason="the table has no snapshot yet")
    work = PlanInputs(view, files, policy, chosen, default_engine(view, policy, unfit), {}, now)
    table = files.files
    twice, skipped = named_twice(table)
    carries = pc.and_not(carries_deletes(table), twice)
    without = Reason(ReasonKind.NO_DELETES, "carries no deletes")
    skipped.append(skip(table, pc.invert(pc.or_(carries, twice)), without))
    groups: list[RewriteGroup] = []
    light: list[Candidate] = []
    counting = _Deleted(files)
    for partition_id, members in groupby(candidates(table, carries), key=lambda each: each.partition):
        planned, left, few = _plan_partition(work, files.partitions[partition_id], list(members), counting)
        groups.extend(planned)
        skipped.extend(left)
        light.extend(few)
    made = finish_plan(empty, work, groups, skipped, _summary)
    more: list[MergeDeletes | DropDeletes] = [*_merge_deletes(work, light), *_drop(dangling)]
    reason = "; ".join(
        part for part in (made.reason if groups else "", *(each.reason for each in more)) if part
    )
    return replace(made, actions=(*made.actions, *more), reason=reason or "no delete is worth applying")


class _Deleted:
    """How many rows of a data file are known to be deleted, from metadata alone."""

    def __init__(self, files: FileSet) -> None:
        self._deletes = files.deletes
        uses = [place for places in files.files["deletes"].to_pylist() for place in places or ()]
        self._uses = dict.fromkeys(uses, 0)
        for place in uses:
            self._uses[place] += 1

    def rows(self, each: Candidate) -> float:
        """Position deletes for several files count evenly. Equality deletes do not count: only the rows show what they
        delete.
        """
        found = [(self._deletes[place], self._uses[place]) for place in each.deletes]
        return sum(delete.records / uses for delete, uses in found if delete.kind != "equality")


def _plan_partition(
    work: PlanInputs, partition: Partition, members: list[Candidate], counting: _Deleted
) -> tuple[list[RewriteGroup], list[SkippedRow], list[Candidate]]:
    open_reason = partition_open_reason(work.view, partition, work.policy, work.now)
    if open_reason:
        return [], [skip_all(members, open_reason)], []
    heavy = [each for each in members if _worth_it(each, counting, work.policy)]
    light = [each for each in members if not _worth_it(each, counting, work.policy)]
    if _NOT_FOR_SPARK.search(work.view.schema_json) and len(_small(work, light)) >= _least(work.policy):
        heavy, light = members, []
    few = (
        f"few deletes: {work.policy.explain('delete_compaction_min_deletes')}, "
        f"{work.policy.explain('delete_compaction_ratio')}"
    )
    skipped = [skip_all(light, Reason(ReasonKind.TOO_FEW, few))] if light else []
    return _groups(work, partition, heavy), skipped, light


def _worth_it(each: Candidate, counting: _Deleted, policy: Policy) -> bool:
    if len(each.deletes) >= policy.int("delete_compaction_min_deletes"):
        return True
    return counting.rows(each) >= policy.float("delete_compaction_ratio") * max(1, each.records)


def _groups(work: PlanInputs, partition: Partition, heavy: list[Candidate]) -> list[RewriteGroup]:
    """Files that were written in an order are rewritten one by one, which keeps it; the others are packed."""
    target, bound = work.policy.int("rewrite_target_bytes"), unit_bound(work.policy)
    tag = work.chosen.tag
    ordered = [each for each in heavy if tag and clustering_of(each.path) == tag]
    loose = [each for each in heavy if not (tag and clustering_of(each.path) == tag)]
    one_by_one = [Bin((each.whole(),)) for each in ordered]
    packed = [Bin(tuple(each.whole() for each in members)) for members in spread(loose, target)]
    by_path = {each.path: each for each in heavy}
    groups = []
    for bins, order in ((one_by_one, tag), (packed, "")):
        for unit in units(bins, bound):
            members = [by_path[source.path] for bin_ in unit for source in bin_.sources]
            group = make_group(work, partition, members, unit, _why(members, work))
            groups.append(replace(group, clustering=order))
    return groups


def _why(members: Sequence[Candidate], work: PlanInputs) -> str:
    files = len({place for each in members for place in each.deletes})
    return f"{files} delete file{'s' if files != 1 else ''} to apply: {work.policy.explain('delete_compaction_min_deletes')}"


def _merge_deletes(work: PlanInputs, light: Sequence[Candidate]) -> list[MergeDeletes]:
    """Files that keep their deletes may still carry too many delete files; vectors are one per file already."""
    if work.policy.text("rewrite_branch") != "main":
        return []  # Iceberg's merge knows the main branch only
    small = _small(work, light)
    if len(small) < _least(work.policy) or _NOT_FOR_SPARK.search(work.view.schema_json):
        return []
    size = sum(each.bytes for each in small)
    reason = f"{len(small)} small position-delete files are merged: {work.policy.explain('rewrite_min_input_files')}"
    return [MergeDeletes(len(small), size, reason, work.policy.maybe_text("rewrite_where"))]


def _small(work: PlanInputs, light: Sequence[Candidate]) -> list[DeleteFile]:
    """What is about one data file merges with others about it, the rest with others of its partition."""
    limit = work.policy.int("rewrite_small_bytes")
    together: dict[str, set[int]] = {}
    for each in light:
        for place in each.deletes:
            file = work.files.deletes[place]
            if file.kind == "position" and file.bytes < limit:
                together.setdefault(file.referenced or f"partition {each.partition}", set()).add(place)
    return [work.files.deletes[place] for found in together.values() if len(found) > 1 for place in found]


def _least(policy: Policy) -> int:
    return max(2, policy.int("rewrite_min_input_files"))


def _drop(dangling: Sequence[str]) -> list[DropDeletes]:
    if not dangling:
        return []
    plural = "s apply" if len(dangling) != 1 else " applies"
    return [DropDeletes(tuple(dangling), f"{len(dangling)} delete file{plural} to no data file")]


def _summary(groups: Sequence[RewriteGroup]) -> str:
    files = sum(group.files for group in groups)
    deletes = len({place for group in groups for place in group.deletes})
    return f"{deletes} delete file{'s' if deletes != 1 else ''} applied to {files} data file{'s' if files != 1 else ''}"
