"""An Iceberg table's partitions, added up from its files, with the time of their last change."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from lakewarden.model.files import DeleteFile, KeyKind, LivePartition, Partition
from lakewarden.model.table import PartitionField, PartitionSpec, Snapshot, TableView
from lakewarden.tables.iceberg.partitions import live_partitions
from tests.support.tables import NOW, file, files, view


def commit(number: int, days_ago: float, sequence: int) -> Snapshot:
    return Snapshot(number, None, sequence, NOW - timedelta(days=days_ago), "append", {})


def found(
    view_: TableView, *rows: dict[str, object], deletes: tuple[DeleteFile, ...] = ()
) -> list[LivePartition]:
    return live_partitions(view_, replace(files(list(rows)), deletes=deletes))


def days_ago(each: LivePartition) -> float | None:
    return None if each.changed_at is None else (NOW - each.changed_at) / timedelta(days=1)


def test_files_are_added_up_by_partition() -> None:
    rows = [file(1_000, 0), file(2_000, 0), file(500, 1)]
    at = replace(view(), snapshots=(commit(1, 3, 1),))
    one, two = found(at, *(row | {"sequence_number": 1} for row in rows))
    assert (one.files, one.rows, one.bytes, one.path) == (2, 30, 3_000, "day=0")
    assert (two.files, two.rows, two.bytes, two.path) == (1, 5, 500, "day=1")
    assert one.keys[0].kind is KeyKind.DAY


def test_the_newest_commit_counts_and_an_expired_one_as_the_next() -> None:
    at = replace(view(), snapshots=(commit(1, 9, 4), commit(2, 5, 6), commit(3, 1, 8)))
    rows = [
        file(1, 0, sequence_number=4),
        file(1, 0, sequence_number=6),
        file(1, 1, sequence_number=4),
        file(1, 2, sequence_number=5),
        file(1, 3, sequence_number=2),
        file(1, 4, sequence_number=99),
    ]
    assert [days_ago(each) for each in found(at, *rows)] == [5, 9, 5, 9, None]


def test_a_delete_is_a_change() -> None:
    at = replace(view(), snapshots=(commit(1, 9, 1), commit(2, 5, 2), commit(3, 1, 3)))
    deletes = tuple(
        DeleteFile(f"d{number}", "position", f"/d{number}", "parquet", 1, 1, number) for number in (2, 3)
    )
    rows = [
        file(1, 0, sequence_number=1, deletes=[0]),
        file(1, 1, sequence_number=1),
        file(1, 2, sequence_number=1, deletes=[1, 0]),
    ]
    assert [days_ago(each) for each in found(at, *rows, deletes=deletes)] == [5, 9, 1]


def test_commits_without_numbers_may_be_any_of_them() -> None:
    first = replace(view(), snapshots=(commit(1, 9, 0), commit(2, 5, 0)))
    upgraded = replace(first, snapshots=(*first.snapshots, commit(3, 1, 1)))
    assert [days_ago(each) for each in found(first, file(1))] == [5]
    assert [days_ago(each) for each in found(upgraded, file(1))] == [5]
    rest = replace(first, snapshots=(commit(3, 1, 1),))
    assert [days_ago(each) for each in found(rest, file(1))] == [1]


def test_what_each_column_is() -> None:
    columns = {"d": "date", "ts": "timestamp", "tn": "timestamptz_ns", "s": "string", "n": "int"}
    fields = [
        {"id": place, "name": name, "type": type_} for place, (name, type_) in enumerate(columns.items())
    ]
    told = [(0, "identity"), (1, "identity"), (2, "identity"), (3, "identity"), (4, "identity"), (1, "hour"), (4, "bucket[4]"), (0, "void")]  # fmt: skip
    spec = PartitionSpec(
        0, tuple(PartitionField(source, 1000 + n, f"f{n}", how) for n, (source, how) in enumerate(told))
    )
    values = (19_700, 5, 7_000, "x", 3, 400_000, 2, None)
    at = replace(
        view(), specs=(spec,), schema_json=json.dumps({"fields": fields}), snapshots=(commit(1, 1, 0),)
    )
    set_ = replace(files([file(1)]), partitions=(Partition(0, 0, "p", values),))
    (one,) = live_partitions(at, set_)
    assert [(key.column, str(key.kind), key.value) for key in one.keys] == [
        ("d", "day", 19_700),
        ("ts", "moment", 5),
        ("tn", "moment", 7),
        ("s", "text", "x"),
        ("n", "number", 3),
        ("ts", "hour", 400_000),
        ("n", "number", 2),
    ]
