"""Shared by the rewriting planners: candidates, bins of the target size, units of commit, and the engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.model.actions import Bin, RewriteGroup, Source
from lakewarden.model.files import DeleteFile, Partition
from lakewarden.model.location import S3, scheme_of
from lakewarden.model.plan import SkippedRow
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.table import TableView
from lakewarden.policy.origin import Layer
from lakewarden.policy.resolve import Policy

_COLUMNS = (
    "partition",
    "path",
    "format",
    "bytes",
    "records",
    "sequence_number",
    "commit_number",
    "first_row_id",
    "encrypted",
    "row_groups",
    "deletes",
)
_SETTLED = re.compile(r"[/-]lakewarden-[^/]*-t(\d+)-(?:c([0-9a-f]{8})-)?[^/]*$")
# The stores that the kernel can open. The format's own writer handles files elsewhere, for example on HDFS.
KERNEL_STORES = frozenset({"file", *S3, "gs", "abfs", "abfss"})


def output_name(run_id: str, group: int, index: int, target_bytes: int, clustering: str = "") -> str:
    """The name says which run wrote the file, for which target and in which order, so a later plan knows it as settled."""
    order = f"c{clustering}-" if clustering else ""
    return f"lakewarden-{run_id}-{group:05d}-{index:05d}-t{target_bytes}-{order}"


def settled(path: str, target_bytes: int, clustering: str = "") -> bool:
    """A compaction wrote the file for this target or a larger one, in this order: it needs no rewrite of its own.

    Outputs may compress so well that they are small. Without this check they would be rewritten forever.
    """
    found = _SETTLED.search(path)
    return found is not None and _reaches(found, target_bytes, clustering)


def _reaches(found: re.Match[str], target_bytes: int, clustering: str) -> bool:
    return int(found.group(1)) >= target_bytes and (not clustering or found.group(2) == clustering)


def clustering_of(path: str) -> str:
    """The order in which a compaction wrote this file; empty for none."""
    found = _SETTLED.search(path)
    return (found.group(2) or "") if found else ""


SETTLED_KEY = "lineage.settled"
_SETTLED_VALUE = re.compile(r"t(\d+)(?:-c([0-9a-f]{8}))?")


def settled_mark(target_bytes: int, clustering: str) -> str:
    """The mark in a commit's summary: files of Iceberg's own writer do not have it in their names."""
    return f"t{target_bytes}" + (f"-c{clustering}" if clustering else "")


class SettledFiles:
    """Which files are settled, by their names or by the summary of the commit that added them."""

    def __init__(self, view: TableView, target_bytes: int, clustering: str = "") -> None:
        self._target, self._clustering = target_bytes, clustering
        marks = [
            (each.sequence_number, _SETTLED_VALUE.fullmatch(each.summary.get(SETTLED_KEY, "")))
            for each in view.snapshots
        ]
        # Only Iceberg numbers files by commits, and not in format version 1: there every file and commit has 0.
        # Not by their data: outputs may keep the sequence number of their sources.
        self._commits = {
            n
            for n, found in marks
            if n and found and view.format == "iceberg" and _reaches(found, target_bytes, clustering)
        }

    def __call__(self, each: Candidate) -> bool:
        by_commit = each.commit_number in self._commits
        return by_commit or settled(each.path, self._target, self._clustering)


@dataclass(frozen=True, slots=True)
class Candidate:
    partition: int
    path: str
    format: str
    bytes: int
    records: int
    sequence_number: int
    commit_number: int
    first_row_id: int | None
    encrypted: bool
    row_groups: int
    deletes: tuple[int, ...]

    def rows(self, start: int, end: int) -> Source:
        return Source(
            self.path,
            self.bytes,
            self.records,
            start,
            end,
            self.sequence_number,
            self.first_row_id,
            self.deletes,
        )

    def whole(self) -> Source:
        return self.rows(0, self.records)


def candidates(table: pa.Table, wanted: pa.ChunkedArray) -> list[Candidate]:
    """The wanted files, by partition, oldest first: rows of one time stay together, so min and max stay tight."""
    chosen = table.filter(wanted).select(_COLUMNS)
    chosen = chosen.sort_by(
        [("partition", "ascending"), ("sequence_number", "ascending"), ("path", "ascending")]
    )
    columns = [chosen[name].to_pylist() for name in _COLUMNS]
    columns[-1] = [tuple(each or ()) for each in columns[-1]]
    return [Candidate(*row) for row in zip(*columns, strict=True)]


def carries_deletes(table: pa.Table) -> pa.ChunkedArray:
    return pc.greater(pc.add(table["position_deletes"], table["equality_deletes"]), 0)


def named_twice(table: pa.Table) -> tuple[pa.ChunkedArray, list[SkippedRow]]:
    """Files that two entries of the metadata name. They are skipped: a rewrite would write or drop their rows twice."""
    paths = table["path"]
    nothing = pa.chunked_array([pa.repeat(pa.scalar(False), table.num_rows)])
    if pc.count_distinct(paths).as_py() == table.num_rows:
        return nothing, []
    counts = pc.value_counts(paths)
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    reason = (
        f"named twice by the table's metadata, such as {min(twice.to_pylist())}: `lakewarden fsck` shows more"
    )
    mask = pc.is_in(paths, twice)
    return mask, [skip(table, mask, Reason(ReasonKind.NAMED_TWICE, reason))]


def skip(table: pa.Table, mask: pa.ChunkedArray, reason: Reason) -> SkippedRow:
    count = pc.sum(mask).as_py() or 0
    return ("file", count, pc.sum(table["bytes"].filter(mask)).as_py() or 0, reason)


def skip_all(members: Iterable[Candidate], reason: Reason) -> SkippedRow:
    sizes = [each.bytes for each in members]
    return ("file", len(sizes), sum(sizes), reason)


def runs(members: Sequence[Candidate]) -> list[list[Candidate]]:
    """Files that follow each other without a gap."""
    found: list[list[Candidate]] = []
    for each in members:
        if found and each.sequence_number == found[-1][-1].sequence_number + 1:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def outputs_for(total_bytes: int, target_bytes: int) -> int:
    return max(1, -(-total_bytes // target_bytes))


def spread(members: Sequence[Candidate], target: int) -> list[list[Candidate]]:
    """ceil(total / target) bins of nearly equal size, in order."""
    total = sum(each.bytes for each in members)
    count = outputs_for(total, target)
    filled: list[list[Candidate]] = [[] for _ in range(count)]
    seen = 0
    for each in members:
        # A file goes where its middle falls, so bins are even and no small tail is left over.
        middle = seen + each.bytes / 2
        filled[min(int(middle * count / max(total, 1)), count - 1)].append(each)
        seen += each.bytes
    return [bin_ for bin_ in filled if bin_]


def split(each: Candidate, target: int) -> Iterator[Bin]:
    """An oversize file as equal runs of rows, one output each."""
    pieces = min(outputs_for(each.bytes, target), max(each.records, 1))
    for index in range(pieces):
        start, end = each.records * index // pieces, each.records * (index + 1) // pieces
        yield Bin((each.rows(start, end),))


def unit_bound(policy: Policy) -> int:
    per_run = policy.maybe_int("rewrite_max_bytes_per_run")
    group = policy.int("rewrite_max_group_bytes")
    return group if per_run is None else min(group, per_run)


def units(bins: Iterable[Bin], bound: int) -> Iterator[list[Bin]]:
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


def output_spec(view: TableView, policy: Policy, partition: Partition) -> int:
    wanted = policy["rewrite_output_spec_id"]
    if wanted == "keep":
        return partition.spec_id
    return view.current_spec_id if wanted == "current" else policy.int("rewrite_output_spec_id")


def moves(view: TableView, policy: Policy, partition: Partition) -> bool:
    """Whether every file of the partition goes to another spec because the policy says so.

    The default moves what is rewritten anyway: a table whose spec changed is not rewritten as a whole without being asked.
    """
    asked = policy.origin("rewrite_output_spec_id").layer is not Layer.DEFAULT
    return asked and output_spec(view, policy, partition) != partition.spec_id


def engine_for(
    view: TableView,
    partition: Partition,
    chosen: Sequence[Candidate],
    deletes: Sequence[DeleteFile],
    policy: Policy,
    default: tuple[str, str],
) -> tuple[str, str]:
    """Which engine writes these files, and the reason if it is not the kernel."""
    own = view.format
    if default[0] == own:
        return default
    formats = sorted({each.format for each in chosen if each.format != "parquet"})
    if formats:
        return own, f"the partition has {', '.join(formats)} files"
    applying = [deletes[place] for place in {place for each in chosen for place in each.deletes}]
    if any(each.encrypted for each in chosen) or any(each.encrypted for each in applying):
        return own, "the files are encrypted"
    odd = sorted({each.format for each in applying} - {"parquet", "puffin", "paimon"})
    if odd:
        return own, f"the delete files are {', '.join(odd)}"
    paths = [*(each.path for each in chosen), *(each.path for each in applying)]
    stores = sorted({scheme_of(path) for path in paths} - KERNEL_STORES)
    if stores:
        return own, f"the files are on {', '.join(stores)}"
    spec = output_spec(view, policy, partition)
    if spec != partition.spec_id:
        return own, f"rows move from partition spec {partition.spec_id} to {spec}"
    return default


def within_run_limit(
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


def limit_reason(policy: Policy) -> Reason:
    told = f"left for the next run: {policy.explain('rewrite_max_bytes_per_run')}"
    return Reason(ReasonKind.LIMIT, told)
