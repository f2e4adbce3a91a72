"""Which buckets of a table with primary keys are merged, and why the others are not: the planner alone, on small values."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.errors import PolicyError
from lakewarden.jobs.compact.buckets import check, plan
from lakewarden.model.files import Bucket
from lakewarden.model.plan import Plan
from lakewarden.model.table import Counters, Snapshot, TableRef, TableView
from lakewarden.policy.resolve import Layers, Policy, resolve
from lakewarden.tables.interface import Buckets

NOW = datetime(2026, 11, 16, tzinfo=UTC)
TABLE = TableRef("pm", ("db",), "orders")
MB = 1 << 20


def view() -> TableView:
    head = Snapshot(7, 6, 7, NOW, "append", {})
    return TableView(
        TABLE, "paimon", 1, "u", "/t", "/t/snapshot/snapshot-7", 7, (head,), (), 0, "{}", (), 0, (), 0, {},
        Counters(), keyed=True,
    )  # fmt: skip


def policy(**call: object) -> Policy:
    return resolve(TABLE, Layers(call=call))


def bucket(
    runs: int, size: int = 10 * MB, number: int = 0, partition: str = "dt=1", settled: int = 0, fresh: int = 0
) -> Bucket:
    return Bucket("AAAA", partition, number, runs, size, 100, runs, fresh, settled)


def planned(*buckets: Bucket, hidden: bool = False, unfit: str = "", **call: object) -> Plan:
    return plan(view(), Buckets(buckets, hidden, unfit), policy(**call), NOW)


def test_buckets_with_many_runs_are_merged_and_the_others_say_why_not() -> None:
    made = planned(bucket(8), bucket(7, number=1), bucket(1, number=2))
    (merge,) = made.merges()
    assert [each.number for each in merge.buckets] == [0]
    assert merge.reason == "many sorted runs: rewrite_min_input_files=8 (default)"
    assert {each.reason: each.count for each in made.skipped} == {
        "few sorted runs: rewrite_min_input_files=8 (default)": 1,
        "one sorted run: nothing to merge": 1,
    }


@pytest.mark.parametrize(
    ("size", "settled", "asked", "full"),
    [
        (10, 9, "auto", True),  # small: the whole bucket is one output
        (1000, 700, "auto", True),  # three tenths are new
        (1000, 800, "auto", False),
        (1000, 990, "full", True),
        (10, 0, "minor", False),
    ],
)
def test_how_far_a_bucket_is_merged(size: int, settled: int, asked: str, full: bool) -> None:
    (merge,) = planned(bucket(9, size * MB, settled=settled * MB), rewrite_merge=asked).merges()
    assert merge.full is full


def test_rows_that_readers_do_not_see_are_merged_at_once() -> None:
    assert planned(bucket(2, fresh=1)).empty
    (merge,) = planned(bucket(2, fresh=1), bucket(1, number=1), hidden=True).merges()
    assert [each.number for each in merge.buckets] == [0]
    assert "only once they are merged" in merge.reason


def test_a_partition_is_a_commit_and_large_ones_are_several() -> None:
    buckets = [bucket(9, 60 * MB, number, f"dt={number // 4}") for number in range(8)]
    assert [len(each.buckets) for each in planned(*buckets).merges()] == [4, 4]
    bounded = planned(*buckets, rewrite_max_group_bytes=130 * MB).merges()
    assert [(each.number, each.partition, len(each.buckets)) for each in bounded] == [
        (0, "dt=0", 2),
        (1, "dt=0", 2),
        (2, "dt=1", 2),
        (3, "dt=1", 2),
    ]


def test_the_limit_of_a_run_leaves_the_rest_for_the_next() -> None:
    buckets = [bucket(9, 60 * MB, partition=f"dt={number}") for number in range(4)]
    made = planned(*buckets, rewrite_max_bytes_per_run=130 * MB)
    assert len(made.merges()) == 2
    assert "left for the next run" in made.cut_short
    assert [(each.count, each.bytes) for each in made.skipped] == [(2, 120 * MB)]


def test_what_cannot_be_merged_is_skipped_with_its_reason() -> None:
    assert planned(bucket(9, number=-2)).skipped[0].reason.startswith("its rows have no bucket yet")
    assert planned(bucket(9), unfit="no").skipped[0].reason == "no"
    assert (
        "rewrite_sealed_after_hours=6" in planned(bucket(9), rewrite_sealed_after_hours=6).skipped[0].reason
    )
    assert "switched off" in planned(bucket(9), rewrite_enabled=False).reason
    assert plan(view(), None, policy(), NOW).reason == "the table has no snapshot yet"


@pytest.mark.parametrize(
    ("key", "value"),
    [("rewrite_where", "dt = '1'"), ("rewrite_branch", "side"), ("rewrite_strategy", "sort")],
)
def test_what_such_a_table_cannot_do_is_told(key: str, value: str) -> None:
    check(view(), policy())
    with pytest.raises(PolicyError, match=key):
        check(view(), policy(**{key: value}))


@given(
    runs=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3), st.integers(0, 3)), max_size=30),
    least=st.integers(1, 12),
    hidden=st.booleans(),
)
def test_every_bucket_is_planned_or_skipped_once(
    runs: list[tuple[int, int, int]], least: int, hidden: bool
) -> None:
    buckets = [
        bucket(each, number=number, partition=f"dt={part}", fresh=min(fresh, each))
        for number, (each, part, fresh) in enumerate(runs)
    ]
    made = planned(*buckets, hidden=hidden, rewrite_min_input_files=least)
    taken = [each.number for merge in made.merges() for each in merge.buckets]
    assert len(taken) == len(set(taken))
    assert len(taken) + sum(each.count for each in made.skipped) == len(buckets)
    # A bucket of one run that was merged before is never touched again.
    assert all(each.runs > 1 or each.fresh for merge in made.merges() for each in merge.buckets)
