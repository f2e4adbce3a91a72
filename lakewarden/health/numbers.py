"""Computes a table's numbers from what was read of it. Pure: never asks the table, the store or the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.health.table_details import PARTITIONS, PartitionLine, short
from lakewarden.jobs.fsck.manifests import check_log_bound
from lakewarden.lineage.summary import told_number
from lakewarden.lineage.validate import LIBRARY, validate
from lakewarden.lineage.writing import requirements
from lakewarden.model.files import FileSet, Manifest
from lakewarden.model.table import Snapshot, TableView
from lakewarden.policy.origin import Layer
from lakewarden.policy.resolve import Policy
from lakewarden.state.health import Numbers

_LINEAGE = ("lineage_required_keys", "lineage_allowed_operations", "lineage_overwrite_operators")
_WEEK = timedelta(days=7)
# The operations of maintenance commits, as opposed to those of the table's writers.
_REWRITES = ("replace", "compact", "analyze")


@dataclass(frozen=True, slots=True)
class FileNumbers:
    """The current snapshot's files, and the partitions that need work most."""

    files: int = 0
    delete_files: int = 0
    bytes: int = 0
    records: int = 0
    small_files: int = 0
    small_bytes: int = 0
    deleted_rows: int = 0
    compactable: int = 0  # partitions with enough small files for a compaction
    struck: int = 0  # data files with as many delete files as the policy tolerates
    partitions: tuple[PartitionLine, ...] = ()
    partitions_total: int = 0


def count_files(found: FileSet | None, policy: Policy) -> FileNumbers:
    """By partition; the partitions with the most small files and deletes are named."""
    if found is None or not found.files.num_rows:
        return FileNumbers()
    table = _told(found, policy.int("rewrite_small_bytes"))
    lines = _partitions(found, table)
    deletes = {each.path: each for each in found.deletes}
    return FileNumbers(
        files=table.num_rows,
        delete_files=len(deletes),
        bytes=_sum(table["bytes"]) + sum(each.bytes for each in deletes.values()),
        records=_sum(table["records"]),
        small_files=_sum(table["small"]),
        small_bytes=_sum(table["small_bytes"]),
        deleted_rows=sum(max(0, each.records) for each in found.deletes),
        compactable=sum(each.small_files >= policy.int("rewrite_min_input_files") for each in lines),
        struck=_sum(
            pc.greater_equal(table["strikes"], policy.int("delete_compaction_min_deletes")).cast("int64")
        ),
        partitions=tuple(sorted(lines, key=_need, reverse=True)[:PARTITIONS]),
        partitions_total=len(lines),
    )


def _told(files: FileSet, small: int) -> pa.Table:
    bytes_ = files.files["bytes"]
    is_small = pc.less(bytes_, small).cast("int64")
    strikes = pc.list_value_length(files.files["deletes"]).cast("int64")
    return pa.table(
        {
            "partition": files.files["partition"],
            "bytes": bytes_,
            "records": files.files["records"],
            "small": is_small,
            "small_bytes": pc.multiply(is_small, bytes_),
            "strikes": pc.fill_null(strikes, 0),
        }
    )


def _partitions(files: FileSet, table: pa.Table) -> list[PartitionLine]:
    """The path that people use for a partition: files of several specs or buckets may share a path."""
    sums = [(name, "sum") for name in ("bytes", "records", "small", "strikes")]
    rows = table.group_by("partition").aggregate([*sums, ("partition", "count")]).to_pylist()
    paths = {each.id: _path(each.path) for each in files.partitions}
    added: dict[str, list[int]] = {}
    names = ("partition_count", "small_sum", "strikes_sum", "bytes_sum", "records_sum")
    for row in rows:
        of = added.setdefault(paths[row["partition"]], [0] * len(names))
        for place, name in enumerate(names):
            of[place] += row[name]
    return [PartitionLine(short(path), *counts) for path, counts in added.items()]


def _path(path: str) -> str:
    """Without the bucket: Paimon's places are buckets of partitions."""
    parts = [each for each in path.split("/") if each and not each.startswith("bucket-")]
    return "/".join(parts)


def _need(line: PartitionLine) -> tuple[int, int]:
    return line.small_files + line.delete_files, line.files


def _sum(column: pa.ChunkedArray | pa.Array) -> int:
    return int(pc.sum(column).as_py() or 0)


def of_table(
    view: TableView, files: FileNumbers, manifests: Sequence[Manifest], overdue: int, policy: Policy, now: datetime
) -> Numbers:  # fmt: skip
    """The numbers from the table's metadata; the caller adds those from the state database."""
    growth = _growth(view.snapshots, now)
    return Numbers(
        files=files.files,
        delete_files=files.delete_files,
        bytes=files.bytes,
        records=view.counters.records or files.records,
        snapshots=len(view.snapshots),
        manifests=len(manifests),
        manifest_bytes=sum(each.bytes for each in manifests),
        metadata_files=len(view.metadata_log) + 1,
        small_files=files.small_files,
        small_bytes=files.small_bytes,
        delete_ratio=_ratio(files),
        deleted_rows=files.deleted_rows,
        overdue_snapshots=overdue,
        lineage_gaps=gaps(view, policy),
        lineage_asked=any(policy.origin(key).layer is not Layer.DEFAULT for key in _LINEAGE),
        log_unbounded=any(check_log_bound(view)),
        added_files_per_day=growth["added-data-files"],
        added_bytes_per_day=growth["added-files-size"],
        commits_per_day=growth["commits"],
    )


def _ratio(files: FileNumbers) -> float:
    """Delete files per data file, or the share of deleted rows, whichever is worse."""
    by_files = files.delete_files / files.files if files.files else 0.0
    by_rows = files.deleted_rows / files.records if files.records else 0.0
    return round(max(by_files, by_rows), 4)


def gaps(view: TableView, policy: Policy) -> int:
    """The number of live snapshots whose summary breaks a rule of the policy."""
    asked = requirements(policy)
    return sum(bool(validate({**each.summary, LIBRARY: each.operation}, asked)) for each in view.snapshots)


def _growth(snapshots: Sequence[Snapshot], now: datetime) -> Mapping[str, float]:
    """Average growth per day by writers over the last week, or since the oldest remaining snapshot."""
    names = ("added-data-files", "added-files-size")
    oldest = min((each.committed_at for each in snapshots), default=now)
    since = max(oldest, now - _WEEK)
    days = max((now - since).total_seconds() / 86400, 1 / 24)
    recent = [each for each in snapshots if each.committed_at >= since and each.operation not in _REWRITES]
    sums = {name: sum(told_number(each.summary, name) for each in recent) for name in names}
    return {
        **{name: round(total / days, 3) for name, total in sums.items()},
        "commits": round(len(recent) / days, 3),
    }
