"""What `compact` plans: pure values in, groups and reasons out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakewarden.jobs.compact.binpack import output_name, outputs_for, settled
from lakewarden.jobs.compact.plan import plan
from lakewarden.model.plan import Plan
from tests.support.tables import MB, NOW, file, files, policy, view


def planned(rows: list[dict[str, Any]], spec_id: int = 0, unfit: str | None = None, **call: object) -> Plan:
    return plan(view(), files(rows, spec_id), policy(**call), unfit, NOW)


def skipped(made: Plan) -> dict[str, int]:
    return {each.reason: each.count for each in made.skipped}


def test_small_files_of_a_partition_become_one() -> None:
    made = planned([file(1 * MB) for _ in range(20)])
    assert [(g.files, len(g.bins)) for g in made.groups()] == [(20, 1)]
    assert made.reason == "20 files in 1 partition become 1"


def test_partitions_are_never_mixed() -> None:
    made = planned([file(1 * MB, partition=n % 3) for n in range(30)])
    assert [(g.partition, g.files, len(g.bins)) for g in made.groups()] == [
        ("day=0", 10, 1),
        ("day=1", 10, 1),
        ("day=2", 10, 1),
    ]


def test_too_few_small_files_are_left_alone() -> None:
    made = planned([file(1 * MB) for _ in range(7)])
    assert made.empty
    assert skipped(made) == {"too few small files in the partition: rewrite_min_input_files=8 (default)": 7}


def test_files_at_the_small_size_are_no_candidates() -> None:
    made = planned([file(32 * MB) for _ in range(20)] + [file(32 * MB - 1) for _ in range(8)])
    assert made.groups()[0].files == 8
    assert skipped(made) == {"large enough: rewrite_small_bytes=33554432 (default)": 20}


def test_files_that_carry_deletes_are_left_to_compact_deletes() -> None:
    rows = [file(1 * MB) for _ in range(8)] + [
        file(1 * MB, position_deletes=1),
        file(1 * MB, equality_deletes=2),
    ]
    made = planned(rows)
    assert made.groups()[0].files == 8
    assert skipped(made) == {"carries deletes, which compact does not apply": 2}


def test_a_file_over_the_maximum_is_split_by_rows_without_losing_one() -> None:
    made = planned([file(1025 * MB, records=1_000_003)])
    (group,) = made.groups()
    pieces = [source for bin_ in group.bins for source in bin_.sources]
    assert len(group.bins) == 9
    assert group.files == 1
    assert pieces[0].from_row == 0
    assert all(a.to_row == b.from_row for a, b in pairwise(pieces))
    assert pieces[-1].to_row == 1_000_003
    assert "rewrite_max_bytes" in group.reason


def test_a_file_that_cannot_be_split_or_has_no_rows_is_not_rewritten_for_ever() -> None:
    made = planned([file(1025 * MB, records=1)] + [file(1000, records=0) for _ in range(8)])
    assert made.empty
    assert sorted(skipped(made).values()) == [1, 8]


def test_outputs_of_a_run_are_settled_and_start_no_other() -> None:
    name = output_name("20240315-120000-abcdef", 0, 0, 128 * MB) + "0.parquet"
    assert settled(f"/wh/{name}", 128 * MB)
    assert settled(f"/wh/{name}", 64 * MB)
    assert not settled(f"/wh/{name}", 256 * MB), "a larger target makes them candidates again"
    made = planned([file(1 * MB, path=f"/wh/{n}/{name}") for n in range(20)])
    assert made.empty
    assert skipped(made) == {"already compacted to this target": 20}


def test_a_settled_tail_joins_the_next_rewrite() -> None:
    tail = file(1 * MB, path="/wh/" + output_name("r", 0, 0, 128 * MB) + "0.parquet")
    made = planned([tail] + [file(1 * MB) for _ in range(8)])
    assert made.groups()[0].files == 9


def test_a_target_below_the_small_size_bounds_what_small_means() -> None:
    made = planned([file(2 * MB) for _ in range(20)], rewrite_target_bytes=1 * MB)
    assert made.empty
    assert skipped(made) == {"large enough: rewrite_target_bytes=1048576 (call)": 20}


def test_rows_of_one_time_stay_together() -> None:
    rows = [file(1 * MB, sequence_number=20 - n) for n in range(20)]
    (group,) = planned(rows).groups()
    order = [source.sequence_number for bin_ in group.bins for source in bin_.sources]
    assert order == sorted(order)


def test_switched_off_says_by_what() -> None:
    made = planned([file(1 * MB) for _ in range(20)], rewrite_enabled=False)
    assert made.empty
    assert made.reason == "switched off: rewrite_enabled=false (call)"


def test_an_empty_table_plans_nothing() -> None:
    assert plan(view(), None, policy(), None, NOW).reason == "the table has no snapshot yet"


def test_a_run_limit_leaves_the_rest_for_the_next_run_and_says_so() -> None:
    rows = [file(1 * MB, partition=n % 4) for n in range(40)]
    made = planned(rows, rewrite_max_bytes_per_run=20 * MB)
    assert len(made.groups()) == 2
    assert made.cut_short.startswith("left for the next run: rewrite_max_bytes_per_run=20971520")
    assert sum(skipped(made).values()) == 20


def test_groups_are_bounded() -> None:
    made = planned([file(16 * MB) for _ in range(64)], rewrite_max_group_bytes=256 * MB)
    assert [g.bytes // MB for g in made.groups()] == [256, 256, 256, 256]


def test_other_formats_and_old_specs_go_to_icebergs_own_engine_with_the_reason() -> None:
    orc = planned([file(1 * MB, format="orc") for _ in range(8)]).groups()[0]
    assert (orc.engine, orc.engine_reason) == ("iceberg", "the partition has orc files")
    old = planned([file(1 * MB) for _ in range(8)], spec_id=1).groups()[0]
    assert (old.engine, old.engine_reason) == ("iceberg", "rows move from partition spec 1 to 0")
    kept = planned([file(1 * MB) for _ in range(8)], spec_id=1, rewrite_output_spec_id=1).groups()[0]
    assert kept.engine == "arrow"
    bloom = planned([file(1 * MB) for _ in range(8)], unfit="a bloom filter is asked for").groups()[0]
    assert (bloom.engine, bloom.engine_reason) == ("iceberg", "a bloom filter is asked for")


def test_auto_follows_the_columns_then_the_sort_order() -> None:
    rows = files([file(1 * MB) for _ in range(8)])
    assert plan(view(), rows, policy(), None, NOW).strategy == "binpack"
    assert plan(view(sorted_by=["ts"]), rows, policy(), None, NOW).strategy == "sort"
    zorder = plan(view(sorted_by=["ts"]), rows, policy(rewrite_zorder_columns=["a", "b"]), None, NOW)
    assert (zorder.strategy, zorder.columns) == ("zorder", ("a", "b"))


def test_an_open_day_waits_until_it_is_sealed() -> None:
    today = (NOW.date() - NOW.date().replace(year=1970, month=1, day=1)).days
    rows = files([file(1 * MB, partition=p) for p in (today - 2, today) for _ in range(8)])
    made = plan(view(), rows, policy(rewrite_sealed_after_hours=6), None, NOW)
    assert [g.partition for g in made.groups()] == [f"day={today - 2}"]
    assert skipped(made) == {"the partition is still open: rewrite_sealed_after_hours=6 (call)": 8}


SIZES = st.lists(st.integers(1, 300), min_size=0, max_size=60)


@settings(max_examples=200, deadline=None)
@given(SIZES, st.integers(40, 160), st.integers(1, 200), st.integers(1, 10))
def test_planned_and_skipped_are_every_file_and_counts_hold(
    sizes: list[int], target: int, small: int, least: int
) -> None:
    rows = [file(size * 1000) for size in sizes]
    call = {
        "rewrite_target_bytes": target * 1000,
        "rewrite_small_bytes": small * 1000,
        "rewrite_max_bytes": 250_000,
        "rewrite_min_input_files": least,
    }
    made = planned(rows, **call)
    assert sum(g.files for g in made.groups()) + sum(each.count for each in made.skipped) == len(rows)
    for group in made.groups():
        merged = [b for b in group.bins if all(s.whole for s in b.sources)]
        assert all(len(b.sources) > 1 for b in merged), "a lone file is never rewritten"
        total = sum(b.bytes for b in merged)
        if total:
            assert abs(len(merged) - outputs_for(total, target * 1000)) <= 1
        rows_in = {s.path: s.records for b in group.bins for s in b.sources}
        assert group.rows == sum(rows_in.values()), "every row of every source is in exactly one output"


@settings(max_examples=100, deadline=None)
@example([1, 1, 1, 2, 99, 99, 99, 99, 251], 1)
@given(SIZES, st.integers(1, 100))
def test_planning_after_applying_plans_nothing(sizes: list[int], shrink: int) -> None:
    """However well the outputs compress, a second run has nothing to do."""
    call = {"rewrite_target_bytes": 100_000, "rewrite_small_bytes": 100_000, "rewrite_max_bytes": 250_000}
    rows = [file(size * 1000, path=f"/wh/{number}.parquet") for number, size in enumerate(sizes)]
    made = planned(rows, **call)
    gone = {path for group in made.groups() for path in group.paths()}
    left = [row for row in rows if row["path"] not in gone]
    outputs = [
        file(
            max(b.bytes * shrink // 100, 1),
            path="/wh/" + output_name("r", g.number, n, 100_000) + "0.parquet",
        )
        for g in made.groups()
        for n, b in enumerate(g.bins)
    ]
    again = planned(left + outputs, **call)
    assert again.empty, again.to_dict()


def test_a_file_that_is_named_twice_is_left_by_name() -> None:
    twice = file(1 * MB, path="/wh/twice.parquet")
    made = planned([file(1 * MB) for _ in range(8)] + [twice, dict(twice)])
    assert made.groups()[0].files == 8
    assert twice["path"] not in made.groups()[0].paths()
    ((reason, count),) = skipped(made).items()
    assert (reason.split(",")[0], count) == ("named twice by the table's metadata", 2)
    assert str(twice["path"]) in reason


def test_a_spec_that_is_asked_for_moves_single_and_large_files_too() -> None:
    rows = [file(1 * MB), file(600 * MB, partition=1)]
    made = planned(rows, spec_id=1, rewrite_output_spec_id="current")
    assert [(g.files, g.output_spec_id, g.engine) for g in made.groups()] == [
        (1, 0, "iceberg"),
        (1, 0, "iceberg"),
    ]
    assert made.groups()[0].reason == "of another partition spec: rewrite_output_spec_id=current (call)"
    assert planned(rows, spec_id=1).groups() == planned(rows, rewrite_output_spec_id="current").groups() == []


def test_a_spec_that_is_asked_for_moves_files_in_order_too() -> None:
    rows = [file(1 * MB)]
    made = planned(rows, spec_id=1, rewrite_output_spec_id=0, rewrite_zorder_columns=["a", "b"])
    assert [(g.files, g.output_spec_id, g.ordered) for g in made.groups()] == [(1, 0, True)]
    kept = planned(rows, rewrite_output_spec_id=0, rewrite_zorder_columns=["a", "b"])
    assert kept.empty
