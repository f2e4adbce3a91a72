"""compact: many small files of a partition become few of the target size, in order if the table has one.

The planner is pure: files in, groups out. It looks at each partition alone. When packing, files under `rewrite_small_bytes`
are candidates once there are `rewrite_min_input_files` of them, and files over `rewrite_max_bytes` are split; when
clustering, files that are not yet in order are candidates (see cluster.py). `compact-deletes` handles files with deletes.
Every other file is skipped with its reason.

The plan also states what reading the table costs before the rewrite, and the expected cost after it, from
metadata alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import PolicyError
from lakewarden.jobs.compact.binpack import (
    Candidate,
    SettledFiles,
    candidates,
    carries_deletes,
    engine_for,
    limit_reason,
    moves,
    named_twice,
    output_spec,
    outputs_for,
    runs,
    skip,
    skip_all,
    split,
    spread,
    unit_bound,
    units,
    within_run_limit,
)
from lakewarden.jobs.compact.cluster import (
    Clustering,
    choose_members,
    clustering,
    expected_shares,
    outputs_of,
)
from lakewarden.jobs.compact.partition_age import partition_open_reason
from lakewarden.model.actions import Bin, RewriteGroup
from lakewarden.model.files import FileSet, Partition
from lakewarden.model.plan import Bounds, Plan, ReadCost, SkippedRow, count_skipped
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.write.encoding import row_group_bytes

Shares = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs for planning any partition."""

    view: TableView
    files: FileSet
    policy: Policy
    chosen: Clustering
    engine: tuple[str, str]
    shares: Shares
    now: datetime


def plan(
    view: TableView,
    files: FileSet | None,
    policy: Policy,
    unfit: str | None,
    now: datetime,
    shares: Shares | None = None,
) -> Plan:
    """Which files of which partitions are rewritten together, and why every other file is skipped.

    `unfit` is why the Arrow kernel cannot write this table at all, if it cannot; the format's own writer then does.
    `shares`: how well each partition is clustered, if the strategy has columns.
    """
    chosen = clustering(view, policy)
    empty = empty_plan(Job.COMPACT, view, policy, now, chosen)
    if not policy.bool("rewrite_enabled"):
        return replace(empty, reason=f"switched off: {policy.explain('rewrite_enabled')}", off=True)
    if files is None:
        return replace(empty, reason="the table has no snapshot yet")
    if unfit and chosen.ordering is not None and view.format == "paimon":
        return leave_alone(Job.COMPACT, view, policy, f"Paimon's own writer only packs: {unfit}", now)
    work = PlanInputs(view, files, policy, chosen, default_engine(view, policy, unfit), shares or {}, now)
    looked_at, skipped = _candidates(work)
    groups: list[RewriteGroup] = []
    for partition_id, members in groupby(looked_at, key=lambda each: each.partition):
        planned, left = _plan_partition(work, files.partitions[partition_id], list(members))
        groups.extend(planned)
        skipped.extend(left)
    return finish_plan(empty, work, groups, skipped, _summary)


def empty_plan(job: Job, view: TableView, policy: Policy, now: datetime, chosen: Clustering) -> Plan:
    branch = policy.text("rewrite_branch")
    return Plan(
        job=job,
        table=view.ref,
        made_at=now,
        bounds=Bounds(view.head(branch), branch, policy.int("rewrite_max_bytes")),
        policy_hash=policy.hash(),
        reason="",
        strategy=chosen.strategy,
        columns=chosen.columns,
        target_bytes=policy.int("rewrite_target_bytes"),
    )


def finish_plan(
    empty: Plan,
    work: PlanInputs,
    groups: list[RewriteGroup],
    skipped: list[SkippedRow],
    summary: Callable[[Sequence[RewriteGroup]], str],
) -> Plan:
    """Within the run's limit, numbered, with what reading costs before and after."""
    kept, deferred = within_run_limit(groups, work.policy)
    skipped.extend(("file", group.files, group.bytes, limit_reason(work.policy)) for group in deferred)
    before = cost_before(work.files, work.shares)
    group_bytes = row_group_bytes(work.view.properties)
    return replace(
        empty,
        actions=tuple(replace(group, number=number) for number, group in enumerate(kept)),
        skipped=count_skipped(skipped),
        reason=summary(kept),
        cut_short=limit_reason(work.policy).text if deferred else "",
        cost_before=before,
        cost_after=cost_after(before, work.files, kept, group_bytes, work.shares),
    )


def leave_alone(job: Job, view: TableView, policy: Policy, reason: str, now: datetime) -> Plan:
    """A plan for a table whose files only its format's own compaction may touch."""
    skipped = () if view.current_snapshot_id is None else (("table", 1, 0, Reason(ReasonKind.UNFIT, reason)),)
    empty = empty_plan(job, view, policy, now, clustering(view, policy))
    return replace(empty, reason=f"left alone: {reason}", skipped=count_skipped(skipped))


def check(view: TableView, policy: Policy) -> None:
    """Refuses a policy that names a branch, spec or column that the table does not have, before anything is read."""
    if view.format == "paimon" and policy.text("rewrite_branch") != "main":
        reason = f"found {policy.text('rewrite_branch')!r}; of Paimon tables only main is compacted"
        raise PolicyError(key="rewrite_branch", reason=reason)
    branches = [ref.name for ref in view.refs if ref.kind == "branch"] or ["main"]
    if policy.text("rewrite_branch") not in (*branches, "main"):
        _not_there(view, "rewrite_branch", policy.text("rewrite_branch"), "branches", branches)
    spec = policy["rewrite_output_spec_id"]
    known = [str(each.id) for each in view.specs]
    if spec not in ("current", "keep") and str(spec) not in known:
        _not_there(view, "rewrite_output_spec_id", str(spec), "partition specs", known)
    fields = json.loads(view.schema_json)["fields"]
    columns = [field["name"] for field in fields]
    for key in ("rewrite_zorder_columns", "rewrite_sort_columns"):
        for name in policy.columns(key):
            if name.split()[0] not in columns:
                _not_there(view, key, name.split()[0], "columns", columns)
            _check_ordered(view, key, next(each for each in fields if each["name"] == name.split()[0]))
    _check_strategy(view, policy)


def _check_ordered(view: TableView, key: str, field: Mapping[str, Any]) -> None:
    """Structs, lists and maps have no order of their own: Iceberg's and Paimon's writers refuse them, late and by other
    names.
    """
    nested = str(field["type"]["type"]).lower() if isinstance(field["type"], dict) else ""
    if nested:
        raise PolicyError(
            key=key,
            reason=f"found {field['name']!r}; it is a {nested} in {view.ref}, and rows are ordered by plain columns only",
        )


def _check_strategy(view: TableView, policy: Policy) -> None:
    if clustering(view, policy).ordering is not None or policy.text("rewrite_strategy") in (
        "auto",
        "binpack",
    ):
        return
    raise PolicyError(
        key="rewrite_strategy",
        reason=f"sort needs an order: set rewrite_sort_columns, or give {view.ref} a sort order"
        if policy.text("rewrite_strategy") == "sort"
        else f"{policy.text('rewrite_strategy')} needs rewrite_zorder_columns, 2 to 4 of them",
    )


def _not_there(view: TableView, key: str, found: str, what: str, known: Sequence[str]) -> NoReturn:
    raise PolicyError(key=key, reason=f"found {found!r}; {what} of {view.ref}: {', '.join(known)}")


def default_engine(view: TableView, policy: Policy, unfit: str | None) -> tuple[str, str]:
    """The kernel, or the format's own writer, which goes by the format's name."""
    if policy.text("rewrite_engine") != "arrow":
        return view.format, policy.explain("rewrite_engine")
    return (view.format, unfit) if unfit else ("arrow", "")


def _candidates(work: PlanInputs) -> tuple[list[Candidate], list[SkippedRow]]:
    """The candidates, and the counts of all other files. Decided on whole columns."""
    table, policy = work.files.files, work.policy
    twice, skipped = named_twice(table)
    carries = pc.and_not(carries_deletes(table), twice)
    empty = pc.and_not(pc.equal(table["records"], 0), pc.or_(carries, twice))
    skipped += [
        skip(table, empty, Reason(ReasonKind.EMPTY, "has no rows")),
        skip(
            table,
            carries,
            Reason(ReasonKind.HAS_DELETES, "carries deletes, which compact does not apply"),
        ),
    ]
    rest = pc.invert(pc.or_(twice, pc.or_(carries, empty)))
    if work.chosen.ordering is not None:
        return candidates(table, rest), skipped
    is_small = pc.less(table["bytes"], policy.int(_small_key(policy)))
    is_large = pc.greater(table["bytes"], policy.int("rewrite_max_bytes"))
    # A file of one row cannot be split, and one of none has nothing to move.
    is_large = pc.and_(is_large, pc.greater(table["records"], 1))
    moving = [each.id for each in work.files.partitions if moves(work.view, policy, each)]
    goes = pc.is_in(table["partition"], pa.array(moving, table["partition"].type))
    wanted = pc.and_(rest, pc.or_(goes, pc.or_(is_small, is_large)))
    right_sized = Reason(ReasonKind.LARGE_ENOUGH, f"large enough: {policy.explain(_small_key(policy))}")
    skipped.append(skip(table, pc.and_not(rest, wanted), right_sized))
    return candidates(table, wanted), skipped


def _small_key(policy: Policy) -> str:
    """A target below the small size bounds what small means: outputs of this run must not be candidates of the next."""
    return min("rewrite_small_bytes", "rewrite_target_bytes", key=policy.int)


def _plan_partition(
    work: PlanInputs, partition: Partition, members: list[Candidate]
) -> tuple[list[RewriteGroup], list[SkippedRow]]:
    open_reason = partition_open_reason(work.view, partition, work.policy, work.now)
    if open_reason:
        return [], [skip_all(members, open_reason)]
    moving = moves(work.view, work.policy, partition)
    if work.chosen.ordering is not None:
        return _cluster_partition(work, partition, members, moving)
    return _move_partition(work, partition, members) if moving else _pack_partition(work, partition, members)


def _move_partition(
    work: PlanInputs, partition: Partition, members: list[Candidate]
) -> tuple[list[RewriteGroup], list[SkippedRow]]:
    """Every file goes to the other spec, also one that is alone or large enough."""
    policy = work.policy
    bins = [
        Bin(tuple(each.whole() for each in filled))
        for filled in spread(members, policy.int("rewrite_target_bytes"))
    ]
    by_path = {each.path: each for each in members}
    groups = [
        make_group(work, partition, [by_path[path] for path in _paths(unit)], unit, _moved(policy))
        for unit in units(bins, unit_bound(policy))
    ]
    return groups, []


def _moved(policy: Policy) -> str:
    return f"of another partition spec: {policy.explain('rewrite_output_spec_id')}"


def _pack_partition(
    work: PlanInputs, partition: Partition, members: list[Candidate]
) -> tuple[list[RewriteGroup], list[SkippedRow]]:
    policy = work.policy
    target, largest = policy.int("rewrite_target_bytes"), policy.int("rewrite_max_bytes")
    oversize = [each for each in members if each.bytes > largest]
    small = [each for each in members if each.bytes <= largest]
    merged: list[Bin] = []
    skipped: list[SkippedRow] = []
    # Where files are in order, only neighbours may become one.
    for run in runs(small) if work.files.ordered else [small]:
        chosen, left = _enough(work.view, run, policy)
        made, lone = _merge(chosen, target)
        merged, skipped = merged + made, skipped + left
        if lone:
            why = "alone in its output: rewriting it would change nothing"
            skipped.append(skip_all(lone, Reason(ReasonKind.NO_GAIN, why)))
    bins = [piece for each in oversize for piece in split(each, target)] + merged
    by_path = {each.path: each for each in members}
    groups = [
        make_group(work, partition, [by_path[path] for path in _paths(unit)], unit, _why(unit, policy))
        for unit in units(bins, unit_bound(policy))
    ]
    return groups, skipped


def _paths(bins: Sequence[Bin]) -> list[str]:
    return list(dict.fromkeys(source.path for bin_ in bins for source in bin_.sources))


def _cluster_partition(
    work: PlanInputs, partition: Partition, members: list[Candidate], moving: bool
) -> tuple[list[RewriteGroup], list[SkippedRow]]:
    policy, shares = work.policy, work.shares.get(partition.id, {})
    if work.files.ordered:
        why = Reason(ReasonKind.UNFIT, "rows of a bucket keep the order they came in")
        return [], [skip_all(members, why)]
    chosen, skipped = (
        (members, []) if moving else choose_members(work.view, work.chosen, members, shares, policy)
    )
    groups = []
    for unit in spread(chosen, unit_bound(policy)):
        total = sum(each.bytes for each in unit)
        outputs = outputs_of(work.chosen, total, policy)
        whole = Bin(tuple(each.whole() for each in unit), outputs)
        order = f"not in order: {work.chosen.strategy} on {', '.join(work.chosen.names)}"
        reason = _moved(policy) if moving else order
        group = make_group(work, partition, unit, [whole], reason)
        groups.append(
            replace(
                group,
                clustering=work.chosen.tag,
                ordered=True,
                share_before=shares,
                share_after=expected_shares(work.chosen, outputs),
            )
        )
    return groups, skipped


def make_group(
    work: PlanInputs, partition: Partition, members: Sequence[Candidate], bins: Sequence[Bin], reason: str
) -> RewriteGroup:
    engine = engine_for(work.view, partition, members, work.files.deletes, work.policy, work.engine)
    return RewriteGroup(
        number=0,
        partition_id=partition.id,
        partition=partition.path,
        spec_id=partition.spec_id,
        output_spec_id=output_spec(work.view, work.policy, partition),
        bins=tuple(bins),
        reason=reason,
        engine=engine[0],
        engine_reason=engine[1],
        row_groups=sum(each.row_groups for each in members),
    )


def _enough(
    view: TableView, small: list[Candidate], policy: Policy
) -> tuple[list[Candidate], list[SkippedRow]]:
    """The small files if there are enough new ones; settled ones join in but never start a rewrite."""
    target = policy.int("rewrite_target_bytes")
    settled = SettledFiles(view, target)
    fresh = [each for each in small if not settled(each)]
    if len(fresh) < policy.int("rewrite_min_input_files"):
        reason = f"too few small files in the partition: {policy.explain('rewrite_min_input_files')}"
        resting = [each for each in small if settled(each)]
        done = Reason(ReasonKind.SETTLED, "already compacted to this target")
        return [], [skip_all(fresh, Reason(ReasonKind.TOO_FEW, reason)), skip_all(resting, done)]
    # The new ones have to be worth it by themselves: outputs that came out tiny would make the next run pay, and so on.
    if not (_pays(fresh, target) and _pays(small, target)):
        reason = f"merging would not make fewer files: {policy.explain('rewrite_target_bytes')}"
        return [], [skip_all(small, Reason(ReasonKind.NO_GAIN, reason))]
    return small, []


def _pays(members: Sequence[Candidate], target: int) -> bool:
    """Merging makes fewer files, and they are small enough on the average."""
    total = sum(each.bytes for each in members)
    return outputs_for(total, target) < len(members) and 2 * total <= target * len(members)


def _merge(small: list[Candidate], target: int) -> tuple[list[Bin], list[Candidate]]:
    """Bins of nearly the target size. A file that would be alone in a bin is left out."""
    filled = spread(small, target)
    bins = [Bin(tuple(each.whole() for each in members)) for members in filled if len(members) > 1]
    return bins, [members[0] for members in filled if len(members) == 1]


def _why(unit: Sequence[Bin], policy: Policy) -> str:
    if all(not source.whole for bin_ in unit for source in bin_.sources):
        return f"too large: {policy.explain('rewrite_max_bytes')}"
    return f"small files: under {policy.explain(_small_key(policy))}"


def _summary(groups: Sequence[RewriteGroup]) -> str:
    if not groups:
        return "nothing is worth rewriting"
    partitions = len({(group.spec_id, group.partition) for group in groups})
    files = sum(group.files for group in groups)
    outputs = sum(group.outputs for group in groups)
    return f"{files} files in {partitions} partition{'s' if partitions != 1 else ''} become {outputs}"


def cost_before(files: FileSet, shares: Shares) -> ReadCost:
    """`shares` is, by partition, the share of files a query for one value of each cluster column opens."""
    table = files.files
    counts = {row["values"]: row["counts"] for row in pc.value_counts(table["partition"]).to_pylist()}
    opened = [count * _mean(shares.get(partition, {})) for partition, count in counts.items()]
    return ReadCost(
        files=table.num_rows,
        row_groups=pc.sum(table["row_groups"]).as_py() or 0,
        delete_files=len(files.deletes),
        bytes=pc.sum(table["bytes"]).as_py() or 0,
        point_files=sum(opened) / len(opened) if opened else 0.0,
    )


def cost_after(
    before: ReadCost, files: FileSet, groups: Sequence[RewriteGroup], row_group_bytes: int, shares: Shares
) -> ReadCost:
    """Every group's sources replaced by its outputs; rows and bytes are taken to stay about the same."""
    partitions = max(1, len(set(files.files["partition"].to_pylist())))
    gone = sum(group.files for group in groups)
    come = sum(group.outputs for group in groups)
    row_groups = sum(
        max(group.outputs, -(-group.bytes // row_group_bytes)) - group.row_groups for group in groups
    )
    dropped: frozenset[int] = frozenset().union(*(group.deletes for group in groups))
    opened = sum(
        group.files * _mean(shares.get(group.partition_id, {})) - group.outputs * _mean(group.share_after)
        for group in groups
    )
    return ReadCost(
        files=before.files - gone + come,
        row_groups=before.row_groups + row_groups,
        delete_files=before.delete_files - len(dropped),
        bytes=before.bytes,
        point_files=max(0.0, before.point_files - opened / partitions),
    )


def _mean(shares: Mapping[str, float]) -> float:
    """Over the cluster columns; a table without any opens every file of a partition."""
    return sum(shares.values()) / len(shares) if shares else 1.0
