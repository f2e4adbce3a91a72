"""Rewrites: the rows are the same before and after, one commit each, and whoever came first wins."""

from __future__ import annotations

import pytest

from lakewarden.model.run import RunState
from tests.conformance.lakes import DAYS, Lake

REWRITES = ["compact", "rewrite-manifests", "expire-partitions"]
POLICY: dict[str, dict[str, object]] = {
    "compact": {"rewrite_min_input_files": 2},
    "rewrite-manifests": {"manifest_rewrite_min_manifests": 2},
    "expire-partitions": {"partition_expiry_enabled": True, "partition_ttl_hours": "30d"},
}


def left_by(job: str, rows: list[str]) -> list[str]:
    """A drop takes what is over, other rewrites nothing."""
    return [row for row in rows if job != "expire-partitions" or row.endswith(DAYS[2])]


@pytest.mark.parametrize("job", REWRITES)
def test_it_is_done_once_with_its_lineage(lake: Lake, job: str) -> None:
    lake.create()
    lake.append(6)
    rows, before, head = lake.rows(), lake.files(), lake.head()
    expected = left_by(job, rows)
    assert not lake.lw.plan(job, lake.table, POLICY[job]).empty
    assert lake.files() == before and lake.head() == head, "a plan changes nothing"

    run = lake.do(job, **POLICY[job])
    assert lake.rows() == expected
    assert lake.rows(head) == rows
    assert before <= lake.files(), "nothing is deleted"
    view = lake.view()
    ours = [each for each in view.snapshots if each.summary.get("lineage.run_id") == run.id]
    assert {each.id for each in ours} == set(run.snapshot_ids) and ours
    for each in ours:
        assert each.summary["lineage.operation"] and each.summary["input.snapshot_ids"]
        assert (
            lake.format.find_commit(
                lake.ref, {"lineage.run_id": run.id, "lineage.group": each.summary["lineage.group"]}
            )
            == each.id
        )

    again = lake.run(job, **POLICY[job])
    assert again.state is RunState.NOTHING_TO_DO and again.reason
    assert lake.view().current_snapshot_id == view.current_snapshot_id
    assert [each.id for each in lake.lw.runs(lake.table)] == [again.id, run.id]


@pytest.mark.main
def test_compaction_leaves_fewer_files_and_can_be_proven_again(lake: Lake) -> None:
    lake.create()
    lake.append(9)
    before = len(lake.format.files(lake.ref, lake.head(), None).files)
    run = lake.do("compact", **POLICY["compact"])
    after = lake.format.files(lake.ref, lake.head(), None)
    assert len(after.files) < before
    assert run.counters["files_compacted"] - run.counters["files_added"] == before - len(after.files)
    if not lake.keyed:
        for snapshot_id in run.snapshot_ids:
            assert lake.lw.verify(lake.table, snapshot_id).state == "proven"


@pytest.mark.parametrize("job", REWRITES)
def test_rows_that_come_meanwhile_stay(lake: Lake, job: str) -> None:
    lake.create()
    lake.append(6)
    rows = lake.rows()
    with lake.just_before(lake.committing(job), lambda: lake.add(5_000, 10, DAYS[0])):
        lake.run(job, **POLICY[job])
    new = sorted(f"{number} v{number} {DAYS[0]}" for number in range(5_000, 5_010))
    assert set(new) <= set(lake.rows()) <= set(new) | set(rows)
    if job != "expire-partitions":
        assert lake.rows() == sorted(rows + new)


@pytest.mark.main
@pytest.mark.parametrize("job", REWRITES)
def test_rows_that_leave_meanwhile_do_not_come_back(lake: Lake, job: str) -> None:
    lake.create()
    lake.append(6)
    rows = lake.rows()
    with lake.just_before(lake.committing(job), lambda: lake.drop_day(DAYS[0])):
        lake.run(job, **POLICY[job])
    expected = [row for row in rows if not row.endswith(DAYS[0])]
    assert set(lake.rows()) <= set(expected)
    if job != "expire-partitions":
        assert lake.rows() == expected
    lake.age()
    assert lake.lw.plan("sweep", lake.table, {"orphan_max_percent": 90}).empty, (
        "what was written in vain was removed"
    )


@pytest.mark.parametrize("job", REWRITES)
def test_a_commit_whose_answer_was_lost_is_found_again(lake: Lake, job: str) -> None:
    """It landed, and nobody was told: the next run finds it by its lineage and does not do it twice."""
    lake.create()
    lake.append(6)
    expected = left_by(job, lake.rows())
    with lake.answer_lost(lake.committing(job)):
        run = lake.run(job, **POLICY[job])
    assert run.state in (RunState.UNKNOWN, RunState.DONE, RunState.PARTIAL), run.reason
    lake.run(job, **POLICY[job])
    assert lake.lw.run_by_id(run.id)[0].state in (RunState.DONE, RunState.PARTIAL)
    assert lake.rows() == expected
    lake.age()
    assert lake.lw.plan("sweep", lake.table, {"orphan_max_percent": 90}).empty
