"""Views, file sets and policies made from a few words, for the pure tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from lakewarden.model.files import FileSet, Partition
from lakewarden.model.table import (
    Counters,
    PartitionField,
    PartitionSpec,
    Ref,
    SortField,
    SortOrder,
    TableRef,
    TableView,
)
from lakewarden.policy.resolve import Layers, Policy, resolve

TABLE = TableRef("lake", ("db",), "events")
NOW = datetime(2024, 3, 15, 12, tzinfo=UTC)
MB = 1 << 20


def view(
    *, sorted_by: Sequence[str] = (), transform: str = "day", properties: Mapping[str, str] | None = None
) -> TableView:
    order = SortOrder(1, tuple(SortField(1, "identity", "asc", "nulls-first") for _ in sorted_by))
    return TableView(
        ref=TABLE,
        format="iceberg",
        format_version=2,
        uuid="u",
        location="/wh/db/events",
        metadata_location="/wh/db/events/metadata/v1.json",
        current_snapshot_id=1,
        snapshots=(),
        refs=(Ref("main", "branch", 1),),
        schema_id=0,
        schema_json="{}",
        specs=(PartitionSpec(0, (PartitionField(1, 1000, "day", transform),)), PartitionSpec(1, ())),
        current_spec_id=0,
        sort_orders=(order,) if sorted_by else (SortOrder(0, ()),),
        current_sort_order_id=1 if sorted_by else 0,
        properties=properties or {},
        counters=Counters(),
    )


def policy(**call: object) -> Policy:
    return resolve(TABLE, Layers(call=call))


def file(size: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "partition": partition,
        "path": "",
        "format": "parquet",
        "bytes": size,
        "records": max(size // 100, 1),
        "sequence_number": 0,
        "commit_number": more.get("sequence_number", 0),
        "first_row_id": None,
        "position_deletes": 0,
        "equality_deletes": 0,
        "encrypted": False,
        "row_groups": 1,
        "sort_order_id": None,
        "deletes": [],
        **more,
    }


SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("path", pa.string()),
        ("format", pa.string()),
        ("bytes", pa.int64()),
        ("records", pa.int64()),
        ("sequence_number", pa.int64()),
        ("commit_number", pa.int64()),
        ("first_row_id", pa.int64()),
        ("position_deletes", pa.int32()),
        ("equality_deletes", pa.int32()),
        ("encrypted", pa.bool_()),
        ("row_groups", pa.int32()),
        ("sort_order_id", pa.int32()),
        ("deletes", pa.list_(pa.int32())),
    ]
)


def files(rows: Sequence[dict[str, Any]], spec_id: int = 0) -> FileSet:
    named = [{**row, "path": row["path"] or f"/wh/f{number:06d}.parquet"} for number, row in enumerate(rows)]
    count = max((row["partition"] for row in rows), default=-1) + 1
    partitions = tuple(Partition(n, spec_id, f"day={n}", (n,) if spec_id == 0 else ()) for n in range(count))
    return FileSet(1, partitions, pa.Table.from_pylist(named, schema=SCHEMA))
