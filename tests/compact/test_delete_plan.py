"""What `compact-deletes` plans: pure values in, groups and reasons out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakewarden.jobs.compact.deletes import plan
from lakewarden.model.actions import DropDeletes, MergeDeletes
from lakewarden.model.files import DeleteFile, FileSet
from lakewarden.model.plan import Plan
from lakewarden.model.run import Job
from tests.support.tables import MB, NOW, file, files, policy, view


def delete(kind: str = "position", records: int = 10, size: int = 1000, number: int = 0) -> DeleteFile:
    return DeleteFile(f"/d{number}", kind, f"/d{number}", "parquet", size, records, 9)


def carrying(size: int, *deletes: int, **more: Any) -> dict[str, Any]:
    return file(size, position_deletes=len(deletes), deletes=list(deletes), **more)


def lake(rows: list[dict[str, Any]], *deletes: DeleteFile) -> FileSet:
    named = tuple(replace(each, key=f"/d{n}", path=f"/d{n}") for n, each in enumerate(deletes))
    return replace(files(rows), deletes=named)


def planned(found: FileSet, dangling: tuple[str, ...] = (), **call: object) -> Plan:
    return plan(view(), found, policy(**call), None, NOW, dangling)


def skipped(made: Plan) -> dict[str, int]:
    return {each.reason: each.count for each in made.skipped}


def test_files_that_carry_a_delete_are_rewritten_and_the_others_are_not() -> None:
    made = planned(lake([carrying(MB, 0), file(MB), carrying(MB, 0)], delete()))
    (group,) = made.groups()
    assert (made.job, group.files, group.outputs, group.deletes) == (
        Job.COMPACT_DELETES,
        2,
        1,
        frozenset({0}),
    )
    assert skipped(made) == {"carries no deletes": 1}
    assert made.reason == "1 delete file applied to 2 data files"


def test_a_lone_file_is_worth_it_too() -> None:
    made = planned(lake([carrying(500 * MB, 0)], delete()))
    assert [(group.files, group.outputs) for group in made.groups()] == [(1, 1)]


def test_few_deletes_are_left_until_there_are_enough_of_them() -> None:
    rows = [carrying(MB, 0), carrying(MB, 0, 1, 2)]
    made = planned(lake(rows, *[delete(records=1)] * 3), delete_compaction_min_deletes=3)
    assert [group.files for group in made.groups()] == [1]
    reason = "few deletes: delete_compaction_min_deletes=3 (call), delete_compaction_ratio=0.3 (default)"
    assert skipped(made)[reason] == 1


def test_a_share_of_deleted_rows_is_enough() -> None:
    rows = [carrying(MB, 0, records=100), carrying(MB, 1, records=100)]
    known = (delete(records=29), delete(records=30))
    made = planned(lake(rows, *known), delete_compaction_min_deletes=5)
    assert [group.paths() for group in made.groups()] == [("/wh/f000001.parquet",)]


def test_what_an_equality_delete_strikes_is_not_guessed() -> None:
    rows = [carrying(MB, 0, records=100)]
    made = planned(lake(rows, delete("equality", records=1000)), delete_compaction_min_deletes=2)
    assert made.empty


def test_a_position_delete_for_many_files_counts_evenly() -> None:
    rows = [carrying(MB, 0, records=100) for _ in range(10)]
    assert planned(lake(rows, delete(records=299)), delete_compaction_min_deletes=2).empty
    assert not planned(lake(rows, delete(records=300)), delete_compaction_min_deletes=2).empty


def test_delete_files_that_apply_to_nothing_are_dropped() -> None:
    made = planned(lake([file(MB)]), dangling=("/x", "/y"))
    assert made.actions == (DropDeletes(("/x", "/y"), "2 delete files apply to no data file"),)
    assert not made.empty


def test_small_position_deletes_are_merged_where_data_is_not_worth_rewriting() -> None:
    rows = [carrying(500 * MB, n, records=10_000_000) for n in range(9)]
    known = [delete(records=1) for _ in range(9)]
    made = planned(lake(rows, *known), delete_compaction_min_deletes=5)
    (merge,) = made.actions
    assert isinstance(merge, MergeDeletes)
    assert merge.delete_files == 9
    vectors = [delete("vector", records=1) for _ in range(9)]
    assert planned(lake(rows, *vectors), delete_compaction_min_deletes=5).empty
    assert planned(lake(rows, *known), delete_compaction_min_deletes=5, rewrite_branch="dev").empty


def test_files_in_order_are_rewritten_one_by_one_and_stay_in_it() -> None:
    columns = {"rewrite_strategy": "zorder", "rewrite_zorder_columns": ["a", "b"]}
    from lakewarden.jobs.compact.cluster import clustering

    tag = clustering(view(), policy(**columns)).tag
    names = [f"/wh/lakewarden-r-00000-0000{n}-t134217728-c{tag}-0.parquet" for n in range(3)]
    rows = [carrying(MB, 0, path=name) for name in names] + [carrying(MB, 0), carrying(MB, 0)]
    made = planned(lake(rows, delete()), **columns)
    assert [(group.files, group.outputs, group.clustering) for group in made.groups()] == [
        (3, 3, tag),
        (2, 1, ""),
    ]
    assert not any(group.ordered for group in made.groups())


def test_switched_off_says_by_what() -> None:
    made = planned(lake([carrying(MB, 0)], delete()), delete_compaction_enabled=False)
    assert made.empty
    assert "delete_compaction_enabled=False (call)" in made.reason or "false" in made.reason


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3), st.booleans()), max_size=40))
def test_planned_and_skipped_together_are_every_file(sizes: list[tuple[int, int, bool]]) -> None:
    rows = [
        carrying(size * MB, *([0] if carries else []), partition=partition)
        for size, partition, carries in sizes
    ]
    made = planned(lake(rows, delete()))
    taken = [path for group in made.groups() for path in group.paths()]
    assert len(taken) == len(set(taken)) == sum(carries for *_, carries in sizes)
    assert len(taken) + sum(each.count for each in made.skipped) == len(rows)
