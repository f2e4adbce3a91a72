"""Which files of a partition are ordered anew, and what the plan expects of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lakewarden.errors import PolicyError
from lakewarden.jobs.compact.cluster import clustering, expected_shares
from lakewarden.jobs.compact.plan import check, plan
from lakewarden.model.plan import Plan
from lakewarden.model.table import Snapshot, SortField, SortOrder, TableView
from tests.support.tables import MB, NOW, file, files, policy, view

ZORDER: dict[str, Any] = {"rewrite_zorder_columns": ["a", "b"]}


def table(**more: Any) -> TableView:
    columns = [{"id": n, "name": name, "type": "int"} for n, name in enumerate("abc", 1)]
    return replace(view(), schema_json=json.dumps({"fields": columns}), **more)


def named(n: int, **call: Any) -> str:
    tag = clustering(table(), policy(**call)).tag
    return f"/wh/lakewarden-r-00000-{n:05d}-t134217728-c{tag}-0.parquet"


def planned(rows: list[dict[str, Any]], shares: dict[str, float] | None = None, **call: object) -> Plan:
    found = {0: shares if shares is not None else {"a": 1.0, "b": 1.0}}
    return plan(table(), files(rows), policy(**{**ZORDER, **call}), None, NOW, found)


def skipped(made: Plan) -> dict[str, int]:
    return {each.reason: each.count for each in made.skipped}


def test_a_partition_is_ordered_as_one_whole() -> None:
    made = planned([file(200 * MB) for _ in range(4)] + [file(1 * MB) for _ in range(8)])
    (group,) = made.groups()
    assert (group.files, len(group.bins), group.outputs, group.ordered) == (12, 1, 8, True)
    assert group.share_before == {"a": 1.0, "b": 1.0}
    assert group.share_after == pytest.approx({"a": 8**-0.5, "b": 8**-0.5})


def test_files_in_order_are_left_alone_while_little_has_come() -> None:
    ordered = [file(128 * MB, path=named(n, **ZORDER)) for n in range(8)]
    assert skipped(planned(ordered)) == {"already ordered by zorder on a, b": 8}
    some = planned(ordered + [file(5 * MB) for _ in range(8)])
    assert some.groups()[0].files == 8
    many = planned(ordered + [file(64 * MB) for _ in range(8)])
    assert many.groups()[0].files == 16


def test_too_few_new_files_wait() -> None:
    made = planned([file(1 * MB) for _ in range(7)])
    assert made.empty
    assert "too few new files" in next(iter(skipped(made)))


def test_files_of_another_order_are_ordered_anew() -> None:
    other = {"rewrite_zorder_columns": ["a", "c"]}
    made = planned([file(128 * MB, path=named(n, **other)) for n in range(8)])
    assert made.groups()[0].files == 8


def test_what_is_well_clustered_and_well_sized_is_declined() -> None:
    rows = [file(120 * MB) for _ in range(16)]
    assert planned(rows, {"a": 0.26, "b": 0.26}).empty
    assert not planned(rows, {"a": 0.9, "b": 0.26}).empty


def test_outputs_of_iceberg_s_own_writer_are_known_by_their_commit() -> None:
    tag = clustering(table(), policy(**ZORDER)).tag
    commit = Snapshot(5, 4, 5, NOW, "replace", {"lineage.settled": f"t134217728-c{tag}"})
    rows = [file(128 * MB, sequence_number=5) for _ in range(8)]
    made = plan(table(snapshots=(commit,)), files(rows), policy(**ZORDER), None, NOW, {0: {}})
    assert skipped(made) == {"already ordered by zorder on a, b": 8}


def test_auto_takes_zorder_then_sort_then_packs() -> None:
    order = SortOrder(3, (SortField(2, "bucket[4]", "desc", "nulls-last"),))
    sorted_table = table(sort_orders=(order,), current_sort_order_id=3)
    assert clustering(sorted_table, policy(**ZORDER)).strategy == "zorder"
    own = clustering(sorted_table, policy())
    assert (own.strategy, own.names, own.sort_order_id) == ("sort", ("b",), 3)
    assert own.ordering is not None
    (key,) = own.ordering.keys
    assert (key.transform, key.descending, key.nulls_first) == ("bucket[4]", True, False)
    assert clustering(table(), policy()).strategy == "binpack"


def test_sort_columns_that_are_an_order_of_the_table_get_its_id() -> None:
    order = SortOrder(
        7, (SortField(1, "identity", "asc", "nulls-first"), SortField(2, "identity", "desc", "nulls-last"))
    )
    known = table(sort_orders=(order,))
    assert clustering(known, policy(rewrite_sort_columns="a, b desc")).sort_order_id == 7
    assert clustering(known, policy(rewrite_sort_columns="a, b desc nulls first")).sort_order_id == 0


def test_a_strategy_without_columns_is_refused() -> None:
    with pytest.raises(PolicyError, match="rewrite_sort_columns"):
        check(table(), policy(rewrite_strategy="sort"))
    with pytest.raises(PolicyError, match="rewrite_zorder_columns"):
        check(table(), policy(rewrite_strategy="zorder"))


def test_expectations() -> None:
    chosen = clustering(table(), policy(**ZORDER))
    assert expected_shares(chosen, 16) == {"a": 0.25, "b": 0.25}
    assert expected_shares(clustering(table(), policy(rewrite_sort_columns="b, a")), 10) == {"b": 0.1}


def test_the_plan_says_what_reading_costs() -> None:
    made = planned([file(1 * MB, row_groups=2) for _ in range(20)])
    assert made.cost_before is not None
    assert made.cost_after is not None
    assert made.cost_before.to_dict() == {
        "files": 20,
        "row_groups": 40,
        "delete_files": 0,
        "bytes": 20 * MB,
        "point_query_files": 20.0,
    }
    assert (made.cost_after.files, made.cost_after.row_groups, made.cost_after.point_files) == (1, 1, 1.0)
