"""What reading the table costs, before a rewrite and as expected after it. From metadata alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc

from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.plan import ReadCost

Shares = Mapping[int, Mapping[str, float]]


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
