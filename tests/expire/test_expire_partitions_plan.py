"""Which partitions go, and why each of the others stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.errors import PolicyError, Refused
from lakewarden.jobs.partitions.plan import drops, only, plan
from lakewarden.model.files import KeyKind, LivePartition, PartitionKey
from lakewarden.model.plan import Plan
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Layers, resolve
from lakewarden.tables.interface import PartitionSet
from tests.support.tables import NOW, TABLE, policy, view

ON: dict[str, object] = {"partition_expiry_enabled": True, "partition_ttl_hours": "2d"}


def part(
    number: int, *values: Any, names: str = "dt", kind: KeyKind = KeyKind.TEXT, **more: Any
) -> LivePartition:
    keys = tuple(
        PartitionKey(
            name, name, KeyKind.NUMBER if kind is KeyKind.TEXT and isinstance(value, int) else kind, value
        )
        for name, value in zip(names.split(), values, strict=True)
    )
    path = "/".join(f"{key.name}={'null' if key.value is None else key.value}" for key in keys)
    return LivePartition(
        **{
            "id": number, "spec_id": 0, "path": path, "keys": keys, "files": 2, "rows": 10, "bytes": 100,
            "changed_at": NOW - timedelta(days=10), **more,
        }
    )  # fmt: skip


def table(*partitions: LivePartition, matching: frozenset[int] | None = None) -> PartitionSet:
    return PartitionSet(7, partitions, matching)


def days(*values: Any) -> PartitionSet:
    return table(*(part(number, value) for number, value in enumerate(values)))


def made(found: PartitionSet, at: TableView | None = None, **call: object) -> Plan:
    return plan(at or view(), found, policy(**{**ON, **call}), NOW)


def gone(plan_: Plan) -> list[str]:
    return [each.partition for each in drops(plan_)]


def kept(plan_: Plan) -> dict[str, int]:
    return {each.reason: each.count for each in plan_.skipped}


def test_a_day_expires_so_long_after_its_end() -> None:
    # Now is noon of the 15th; the 12th ended two days and twelve hours ago, the 13th only one and a half.
    plan_ = made(days("2024-03-11", "2024-03-12", "2024-03-13", "2024-03-15", "2025-01-01"))
    assert gone(plan_) == ["dt=2024-03-11", "dt=2024-03-12"]
    assert [(each.files, each.rows, each.bytes) for each in drops(plan_)] == [(2, 10, 100)] * 2
    assert {each.reason for each in drops(plan_)} == {
        "its time has been over for partition_ttl_hours=48 (call)"
    }
    assert kept(plan_) == {"its time has not been over for partition_ttl_hours=48 (call)": 3}
    assert plan_.reason == "2 of 5 partitions expire"
    assert plan_.bounds.base_snapshot_id == 7


def test_to_the_moment() -> None:
    found = days("2024-03-12", "2025-01-01")
    wanted = policy(**ON)
    over = NOW.replace(hour=0)
    assert gone(plan(view(), found, wanted, over)) == ["dt=2024-03-12"]
    assert gone(plan(view(), found, wanted, over - timedelta(microseconds=1))) == []


def test_what_cannot_be_read_stays_and_is_named() -> None:
    plan_ = made(days("2024-03-01", "notadate", None, "x", "y", "z"))
    assert gone(plan_) == ["dt=2024-03-01"]
    reasons = kept(plan_)
    text = next(each for each in reasons if "is not written as 2026-03-01" in each)
    assert reasons[text] == 4 and "dt=notadate, dt=x, dt=y and 1 more" in text
    null = next(each for each in reasons if "has no value for dt" in each)
    assert reasons[null] == 1 and "dt=null" in null


def test_formatter_and_pattern() -> None:
    plan_ = made(days("20240301", "20240315"), partition_time_formatter="yyyyMMdd")
    assert gone(plan_) == ["dt=20240301"]
    spread = table(part(0, 2024, 2, 29, names="year month day"), part(1, 2024, 3, 15, names="year month day"))
    assert gone(made(spread, partition_time_pattern="$year-$month-$day")) == ["year=2024/month=2/day=29"]
    assert gone(made(spread, partition_time_pattern="$year-$month-01")) == ["year=2024/month=2/day=29"]
    assert gone(made(spread, partition_time_pattern="$year-01-01")) == []


def test_the_time_column_is_the_first_whose_type_tells_it() -> None:
    typed = PartitionKey("day", "ts", KeyKind.DAY, 19_700)
    by_type = replace(part(0, "eu", names="region"), keys=(part(0, "eu", names="region").keys[0], typed))
    young = replace(by_type, id=1, keys=(by_type.keys[0], replace(typed, value=20_000)))
    assert [each.partition_id for each in drops(made(table(by_type, young)))] == [0]
    assert [each.partition_id for each in drops(made(table(by_type, young), partition_time_column="ts"))] == [
        0
    ]
    with pytest.raises(PolicyError, match=r"dt \(call\) is not a partition column; they are region, ts, day"):
        made(table(by_type), partition_time_column="dt")


def test_the_first_column_counts_where_no_type_tells() -> None:
    found = table(
        part(0, "eu", "2024-03-01", names="region dt"), part(1, "us", "2024-03-15", names="region dt")
    )
    assert gone(made(found)) == []
    assert gone(made(found, partition_time_column="dt")) == ["region=eu/dt=2024-03-01"]
    assert gone(made(found, partition_time_pattern="$dt")) == ["region=eu/dt=2024-03-01"]


def test_files_of_older_specs_without_the_column_are_skipped() -> None:
    current = replace(part(0, 19_700, names="ts_day", kind=KeyKind.DAY), spec_id=2)
    by_month = replace(part(1, 640, names="ts_month", kind=KeyKind.MONTH), spec_id=1)
    same_column = replace(by_month, keys=(replace(by_month.keys[0], column="ts_day"),))
    other = replace(part(2, "eu", names="region"), spec_id=0)
    none = replace(part(3, names=""), path="")
    at = replace(view(), current_spec_id=2)
    plan_ = made(table(current, same_column, other, none), at)
    assert sorted(gone(plan_)) == ["ts_day=19700", "ts_month=640"]
    assert any("partition spec 0, which has no ts_day" in reason for reason in kept(plan_))
    assert kept(plan_)["written before the table was partitioned"] == 1


def test_update_time_counts_from_the_last_change() -> None:
    found = table(
        part(0, "x", changed_at=NOW - timedelta(days=2)),
        part(1, "y", changed_at=NOW - timedelta(days=2) + timedelta(seconds=1)),
        part(2, "z", changed_at=None),
    )
    plan_ = made(found, partition_expiry_strategy="update-time")
    assert gone(plan_) == ["dt=x"]
    assert drops(plan_)[0].reason == "unchanged for partition_ttl_hours=48 (call)"
    assert kept(plan_) == {
        "changed within partition_ttl_hours=48 (call)": 1,
        "its last change is unknown": 1,
    }


def test_by_list_whatever_the_age() -> None:
    found = table(
        part(0, "2024-03-15", 1, names="dt h"),
        part(1, "2024-03-15", 2, names="dt h"),
        part(2, None, 1, names="dt h"),
    )
    off = {"partition_expiry_enabled": False, "partition_ttl_hours": None}
    assert gone(made(found, **off, partition_list="dt=2024-03-15/h=2")) == ["dt=2024-03-15/h=2"]
    assert len(gone(made(found, **off, partition_list=["dt=2024-03-15"]))) == 2
    assert gone(made(found, **off, partition_list="h=1, dt=null", partition_drop_all=True)) == [
        "dt=2024-03-15/h=1",
        "dt=null/h=1",
    ]
    nothing = made(found, **off, partition_list="dt=1999-01-01")
    assert nothing.empty and nothing.reason == "no partition of the list exists"
    for wrong in ("2024-03-15", "day=2024-03-15"):
        with pytest.raises(PolicyError, match="write a partition as dt=2024-03-15/h=1"):
            made(found, **off, partition_list=wrong)
    with pytest.raises(PolicyError, match="cannot be combined"):
        made(found, **off, partition_list="h=1", partition_where="h = 1")


def test_by_filter() -> None:
    found = replace(days("2024-03-14", "2024-03-15"), matching=frozenset({1}))
    plan_ = made(found, partition_where="dt = '2024-03-15'")
    assert gone(plan_) == ["dt=2024-03-15"]
    assert drops(plan_)[0].reason == "matches partition_where=dt = '2024-03-15' (call)"


def test_a_table_is_never_emptied_unless_asked() -> None:
    with pytest.raises(Refused, match="all 2 partitions would expire") as caught:
        made(days("2024-03-01", "2024-03-02"))
    assert caught.value.exit_code == 12
    with pytest.raises(Refused, match="its only partition"):
        made(days("2024-03-01"), partition_list="dt=2024-03-01")
    with pytest.raises(Refused):
        made(days("2024-03-01", "2024-03-02"), partition_expire_limit=1)
    assert len(gone(made(days("2024-03-01", "2024-03-02"), partition_drop_all=True))) == 2


def test_the_oldest_go_first_where_a_run_is_limited() -> None:
    plan_ = made(days("2024-03-03", "2024-03-01", "2024-03-15", "2024-03-02"), partition_expire_limit=2)
    assert gone(plan_) == ["dt=2024-03-01", "dt=2024-03-02"]
    assert plan_.cut_short == "1 more would expire: partition_expire_limit=2 (call)"
    assert kept(plan_)["left for the next run: partition_expire_limit=2 (call)"] == 1


def test_nothing_to_plan() -> None:
    assert (
        plan(view(), None, policy(), NOW).reason == "switched off: partition_expiry_enabled=false (default)"
    )
    assert made(table()).reason == "the table is empty"
    assert made(table(part(0, names=""))).reason == "the table is not partitioned"
    assert made(days("2024-03-15", "2024-03-14")).reason == "none of 2 partitions is due"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition_time_formatter", "EEE"),
        ("partition_time_pattern", "$day-$month"),
        ("partition_time_column", "x"),
    ],
)
def test_a_wrong_policy_is_told_by_its_key(key: str, value: str) -> None:
    with pytest.raises(PolicyError, match=key):
        made(days("2024-03-01", "2024-03-15"), **{key: value})


@pytest.mark.parametrize("key", ["partition_list", "partition_where", "partition_drop_all"])
def test_some_keys_are_for_one_call_only(key: str) -> None:
    with pytest.raises(PolicyError, match="for one call only"):
        resolve(TABLE, Layers(stored={key: "true"}))


def test_a_plan_made_again_names_no_new_partition() -> None:
    first, again = (
        made(days("2024-03-01", "2024-03-15")),
        made(days("2024-03-02", "2024-03-01", "2024-03-15")),
    )
    assert gone(only(again, first)) == ["dt=2024-03-01"]


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=8), st.dates().map(str)), min_size=1, unique=True),
    st.integers(1, 10_000),
)
def test_planned_and_skipped_together_are_every_partition(values: list[str | None], ttl: int) -> None:
    found = days(*values)
    plan_ = made(found, partition_ttl_hours=ttl, partition_drop_all=True)
    assert len(plan_.actions) + sum(each.count for each in plan_.skipped) == len(values)
    later = table(*(each for each in found.partitions if each.path not in gone(plan_)))
    assert not later.partitions or not made(later, partition_ttl_hours=ttl, partition_drop_all=True).actions
