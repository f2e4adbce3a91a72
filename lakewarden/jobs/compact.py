"""compact: many small files of a partition become few of the target size; the rows do not change.

The planner is pure: files in, groups out. It looks at each partition alone. Files under `rewrite_small_bytes` are
candidates once there are `rewrite_min_input_files` of them; files over `rewrite_max_bytes` are split; files that carry
deletes are left to `compact-deletes`; everything else is spared with its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import PolicyError
from lakewarden.jobs.sealed import sealed
from lakewarden.model import FileSet, Job, Partition, TableView
from lakewarden.plan import Bin, Bounds, Plan, RewriteGroup, Source, count_spared
from lakewarden.policy.resolve import Policy

_COLUMNS = ("partition", "path", "format", "bytes", "records", "sequence_number", "first_row_id", "encrypted")
_SETTLED = re.compile(r"[/-]lakewarden-[^/]*-t(\d+)-[^/]*$")
# What the kernel's storage layer reaches; files elsewhere (HDFS, say) are left to Iceberg's own writer.
KERNEL_STORES = frozenset({"file", "s3", "s3a", "s3n", "gs", "abfs", "abfss"})
SparedRow = tuple[str, int, int, str]


def output_name(run_id: str, group: int, index: int, target_bytes: int) -> str:
    """The name says which run wrote the file and for which target, so a later plan knows it as settled."""
    return f"lakewarden-{run_id}-{group:05d}-{index:05d}-t{target_bytes}-"


def settled(path: str, target_bytes: int) -> bool:
    """Written by a compaction to this target or a larger one: not worth rewriting for its own sake.

    Merging may compress so well that outputs come out small; without this a table would be rewritten for ever.
    """
    found = _SETTLED.search(path)
    return found is not None and int(found.group(1)) >= target_bytes


@dataclass(frozen=True, slots=True)
class _Candidate:
    partition: int
    path: str
    format: str
    bytes: int
    records: int
    sequence_number: int
    first_row_id: int | None
    encrypted: bool

    def rows(self, start: int, end: int) -> Source:
        return Source(
            self.path, self.bytes, self.records, start, end, self.sequence_number, self.first_row_id
        )

    def whole(self) -> Source:
        return self.rows(0, self.records)


def plan(view: TableView, files: FileSet | None, policy: Policy, unfit: str | None, now: datetime) -> Plan:
    """Which files of which partitions are rewritten together, and why every other one is left alone.

    `unfit` is why the Arrow kernel cannot write this table at all, if it cannot; Iceberg's own engine then does.
    """
    strategy, columns = choose_strategy(view, policy)
    empty = Plan(
        job=Job.COMPACT,
        table=view.ref,
        made_at=now,
        bounds=Bounds(
            view.head(policy.text("rewrite_branch")),
            policy.text("rewrite_branch"),
            policy.int("rewrite_max_bytes"),
        ),
        policy_hash=policy.hash(),
        reason="",
        strategy=strategy,
        columns=columns,
        target_bytes=policy.int("rewrite_target_bytes"),
    )
    if not policy.bool("rewrite_enabled"):
        return replace(empty, reason=f"switched off: {policy.explain('rewrite_enabled')}")
    if files is None:
        return replace(empty, reason="the table has no snapshot yet")
    default = _default_engine(policy, strategy, unfit)
    candidates, spared = _candidates(files, policy)
    groups: list[RewriteGroup] = []
    for partition_id, members in groupby(candidates, key=lambda each: each.partition):
        partition = files.partitions[partition_id]
        planned, left = _plan_partition(view, partition, list(members), policy, default, now)
        groups.extend(planned)
        spared.extend(left)
    kept, deferred = _within_run_limit(groups, policy)
    spared.extend(("file", group.files, group.bytes, _limit_reason(policy)) for group in deferred)
    return replace(
        empty,
        actions=tuple(replace(group, number=number) for number, group in enumerate(kept)),
        spared=count_spared(spared),
        reason=_summary(kept, policy),
        cut_short=_limit_reason(policy) if deferred else "",
    )


def check(view: TableView, policy: Policy) -> None:
    """What the policy names must be in the table: a branch, a spec, columns. Told before anything is read."""
    branches = [ref.name for ref in view.refs if ref.kind == "branch"] or ["main"]
    if policy.text("rewrite_branch") not in (*branches, "main"):
        _not_there(view, "rewrite_branch", policy.text("rewrite_branch"), "branches", branches)
    if _output_spec(view, policy) not in [spec.id for spec in view.specs]:
        known = [str(spec.id) for spec in view.specs]
        _not_there(view, "rewrite_output_spec_id", str(_output_spec(view, policy)), "partition specs", known)
    columns = [field["name"] for field in json.loads(view.schema_json)["fields"]]
    for key in ("rewrite_zorder_columns", "rewrite_sort_columns"):
        for name in policy.columns(key):
            if name.split()[0] not in columns:
                _not_there(view, key, name.split()[0], "columns", columns)


def _not_there(view: TableView, key: str, found: str, what: str, known: Sequence[str]) -> NoReturn:
    raise PolicyError(key=key, reason=f"found {found!r}; {what} of {view.ref}: {', '.join(known)}")


def choose_strategy(view: TableView, policy: Policy) -> tuple[str, tuple[str, ...]]:
    """The strategy in force and its columns; `auto` follows the policy's columns, then the table's sort order."""
    strategy = policy.text("rewrite_strategy")
    zorder, sort = policy.columns("rewrite_zorder_columns"), policy.columns("rewrite_sort_columns")
    has_order = any(order.id == view.current_sort_order_id and order.fields for order in view.sort_orders)
    if strategy == "auto":
        strategy = "zorder" if zorder else "sort" if sort or has_order else "binpack"
    return strategy, {"zorder": zorder, "sort": sort}.get(strategy, ())


def _default_engine(policy: Policy, strategy: str, unfit: str | None) -> tuple[str, str]:
    if policy.text("rewrite_engine") == "iceberg":
        return "iceberg", policy.explain("rewrite_engine")
    if strategy != "binpack":
        return "iceberg", f"strategy {strategy} is done by Iceberg's own writer"
    if unfit:
        return "iceberg", unfit
    return "arrow", ""


def _candidates(files: FileSet, policy: Policy) -> tuple[list[_Candidate], list[SparedRow]]:
    """Files worth a look, ordered by partition and age; counts of those that are not, decided on whole columns."""
    table = files.files
    small = policy.int(_small_key(policy))
    carries = pc.greater(pc.add(table["position_deletes"], table["equality_deletes"]), 0)
    is_small = pc.less(table["bytes"], small)
    is_large = pc.greater(table["bytes"], policy.int("rewrite_max_bytes"))
    empty = pc.and_not(pc.equal(table["records"], 0), carries)
    # A file of one row cannot be split, and one of none has nothing to move.
    is_large = pc.and_(is_large, pc.greater(table["records"], 1))
    wanted = pc.and_not(pc.and_not(pc.or_(is_small, is_large), carries), empty)
    spared = [
        _spare(table, empty, "has no rows"),
        _spare(table, carries, "carries deletes, which compact does not apply"),
        _spare(table, pc.invert(pc.or_(pc.or_(wanted, carries), empty)), _right_sized(policy)),
    ]
    chosen = table.filter(wanted).select(_COLUMNS)
    # Oldest first: rows of one time stay together, so the outputs' min and max stay tight.
    chosen = chosen.sort_by(
        [("partition", "ascending"), ("sequence_number", "ascending"), ("path", "ascending")]
    )
    columns = [chosen[name].to_pylist() for name in _COLUMNS]
    return [_Candidate(*row) for row in zip(*columns, strict=True)], spared


def _spare(table: pa.Table, mask: pa.ChunkedArray, reason: str) -> SparedRow:
    count = pc.sum(mask).as_py() or 0
    return ("file", count, pc.sum(table["bytes"].filter(mask)).as_py() or 0, reason)


def _right_sized(policy: Policy) -> str:
    return f"large enough: {policy.explain(_small_key(policy))}"


def _small_key(policy: Policy) -> str:
    """A target below the small size bounds what small means: outputs of this run must not be candidates of the next."""
    return min("rewrite_small_bytes", "rewrite_target_bytes", key=policy.int)


def _plan_partition(
    view: TableView,
    partition: Partition,
    members: list[_Candidate],
    policy: Policy,
    default: tuple[str, str],
    now: datetime,
) -> tuple[list[RewriteGroup], list[SparedRow]]:
    open_reason = sealed(view, partition, policy, now)
    if open_reason:
        return [], [_spare_all(members, open_reason)]
    target, largest = policy.int("rewrite_target_bytes"), policy.int("rewrite_max_bytes")
    oversize = [each for each in members if each.bytes > largest]
    small = [each for each in members if each.bytes <= largest]
    small, spared = _enough(small, policy)
    merged, lone = _merge(small, target)
    if lone:
        spared.append(_spare_all(lone, "alone in its output: rewriting it would change nothing"))
    bins = [piece for each in oversize for piece in _split(each, target)] + merged
    alone = {each.path for each in lone}
    chosen = oversize + [each for each in small if each.path not in alone]
    engine = _engine(view, partition, chosen, policy, default)
    groups = [
        RewriteGroup(
            number=0,
            partition_id=partition.id,
            partition=partition.path,
            spec_id=partition.spec_id,
            output_spec_id=_output_spec(view, policy),
            bins=tuple(unit),
            reason=_why(unit, policy),
            engine=engine[0],
            engine_reason=engine[1],
        )
        for unit in _units(bins, _unit_bound(policy))
    ]
    return groups, spared


def _enough(small: list[_Candidate], policy: Policy) -> tuple[list[_Candidate], list[SparedRow]]:
    """The small files if there are enough new ones; settled ones join in but never start a rewrite."""
    target = policy.int("rewrite_target_bytes")
    fresh = [each for each in small if not settled(each.path, target)]
    if len(fresh) < policy.int("rewrite_min_input_files"):
        reason = f"too few small files in the partition: {policy.explain('rewrite_min_input_files')}"
        resting = [each for each in small if settled(each.path, target)]
        return [], [_spare_all(fresh, reason), _spare_all(resting, "already compacted to this target")]
    if outputs_for(sum(each.bytes for each in small), target) >= len(small):
        return [], [
            _spare_all(small, f"merging would not make fewer files: {policy.explain('rewrite_target_bytes')}")
        ]
    return small, []


def _spare_all(members: Iterable[_Candidate], reason: str) -> SparedRow:
    sizes = [each.bytes for each in members]
    return ("file", len(sizes), sum(sizes), reason)


def outputs_for(total_bytes: int, target_bytes: int) -> int:
    return max(1, -(-total_bytes // target_bytes))


def _merge(small: list[_Candidate], target: int) -> tuple[list[Bin], list[_Candidate]]:
    """ceil(total / target) bins of nearly equal size, in order; files that would sit alone in one are left out."""
    total = sum(each.bytes for each in small)
    count = outputs_for(total, target)
    filled: list[list[_Candidate]] = [[] for _ in range(count)]
    seen = 0
    for each in small:
        # A file goes where its middle falls, so bins are even and no small tail is left over.
        middle = seen + each.bytes / 2
        filled[min(int(middle * count / max(total, 1)), count - 1)].append(each)
        seen += each.bytes
    bins = [Bin(tuple(each.whole() for each in members)) for members in filled if len(members) > 1]
    return bins, [members[0] for members in filled if len(members) == 1]


def _split(each: _Candidate, target: int) -> Iterator[Bin]:
    """An oversize file as equal runs of rows, one output each."""
    pieces = min(outputs_for(each.bytes, target), max(each.records, 1))
    for index in range(pieces):
        start, end = each.records * index // pieces, each.records * (index + 1) // pieces
        yield Bin((each.rows(start, end),))


def _unit_bound(policy: Policy) -> int:
    per_run = policy.maybe_int("rewrite_max_bytes_per_run")
    group = policy.int("rewrite_max_group_bytes")
    return group if per_run is None else min(group, per_run)


def _units(bins: list[Bin], bound: int) -> Iterator[list[Bin]]:
    """Bins cut into units of work and commit; pieces of one split file stay together, as it leaves the table once."""
    unit: list[Bin] = []
    size = 0
    for bin_ in bins:
        same_file = unit and unit[-1].sources[-1].path == bin_.sources[0].path
        if unit and size + bin_.bytes > bound and not same_file:
            yield unit
            unit, size = [], 0
        unit.append(bin_)
        size += bin_.bytes
    if unit:
        yield unit


def _output_spec(view: TableView, policy: Policy) -> int:
    wanted = policy["rewrite_output_spec_id"]
    return view.current_spec_id if wanted == "current" else policy.int("rewrite_output_spec_id")


def _engine(
    view: TableView, partition: Partition, chosen: list[_Candidate], policy: Policy, default: tuple[str, str]
) -> tuple[str, str]:
    if default[0] == "iceberg":
        return default
    formats = sorted({each.format for each in chosen if each.format != "parquet"})
    if formats:
        return "iceberg", f"the partition has {', '.join(formats)} files"
    if any(each.encrypted for each in chosen):
        return "iceberg", "the files are encrypted"
    stores = sorted({_scheme(each.path) for each in chosen} - KERNEL_STORES)
    if stores:
        return "iceberg", f"the files are on {', '.join(stores)}"
    if _output_spec(view, policy) != partition.spec_id:
        return "iceberg", f"rows move from partition spec {partition.spec_id} to {_output_spec(view, policy)}"
    return default


def _scheme(path: str) -> str:
    head, colon, _ = path.partition(":")
    return head.lower() if colon and "/" not in head else "file"


def _why(unit: list[Bin], policy: Policy) -> str:
    if all(not source.whole for bin_ in unit for source in bin_.sources):
        return f"too large: {policy.explain('rewrite_max_bytes')}"
    return f"small files: under {policy.explain(_small_key(policy))}"


def _within_run_limit(
    groups: list[RewriteGroup], policy: Policy
) -> tuple[list[RewriteGroup], list[RewriteGroup]]:
    """Groups until the run's input limit is reached; the first always fits, so every run makes progress."""
    limit = policy.maybe_int("rewrite_max_bytes_per_run")
    if limit is None:
        return groups, []
    taken = 0
    for index, group in enumerate(groups):
        taken += group.bytes
        if index and taken > limit:
            return groups[:index], groups[index:]
    return groups, []


def _limit_reason(policy: Policy) -> str:
    return f"left for the next run: {policy.explain('rewrite_max_bytes_per_run')}"


def _summary(groups: list[RewriteGroup], policy: Policy) -> str:
    if not groups:
        return "nothing is worth rewriting"
    partitions = len({(group.spec_id, group.partition) for group in groups})
    files = sum(group.files for group in groups)
    outputs = sum(len(group.bins) for group in groups)
    return f"{files} files in {partitions} partition{'s' if partitions != 1 else ''} become {outputs}"
