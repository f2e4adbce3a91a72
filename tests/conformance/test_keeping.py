"""What a table needs stays, what nobody needs goes, and which is which does not depend on the format."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lakewarden.errors import LakewardenError, Refused
from lakewarden.model.run import RunState
from tests.conformance.lakes import DAYS, Lake

pytestmark = pytest.mark.main

SOME = {"orphan_max_percent": 90}


def test_everything_a_busy_table_has_is_needed(lake: Lake) -> None:
    lake.busy()
    lake.lw.holds.tag(lake.table, "then", snapshot_id=lake.view().snapshots[3].id, forever=True)
    lake.branch("side", "then")
    lake.age()
    plan = lake.lw.plan("sweep", lake.table)
    assert plan.empty, [each.path for each in plan.trash]


def test_strays_are_trashed_and_young_or_unknown_ones_are_not(lake: Lake) -> None:
    lake.busy()
    lake.age()
    left = {lake.put(name) for name in lake.stray_names()}
    young = {
        lake.put(name.replace("left", "new").replace("1111-0", "2222-0"), 3_600)
        for name in lake.stray_names()
    }
    unknown = {lake.put("README.md"), lake.put("elsewhere/of-somebody.txt")}
    before = lake.contents()
    run = lake.do("sweep", **SOME)
    assert lake.trash() == left
    assert lake.contents() == before, "a sweep deletes nothing"
    assert run.counters["skipped_young"] == len(young)
    assert lake.run("sweep", **SOME).state is RunState.NOTHING_TO_DO
    lake.purge()
    assert set(before) - set(lake.contents()) == left
    assert unknown <= set(lake.contents())


def test_a_missing_manifest_stops_everything_that_deletes_and_is_named(lake: Lake) -> None:
    lake.busy()
    lake.age()
    lost = lake.manifest()
    lost.rename(lost.with_name("aside"))
    for job, policy in (
        ("sweep", SOME),
        ("expire", {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}),
    ):
        with pytest.raises(LakewardenError, match=lost.name):
            lake.run(job, **policy)
    assert not lake.trash()


def test_expire_drops_snapshots_now_and_purge_their_files_later(lake: Lake) -> None:
    lake.busy()
    rows, before, head, count = lake.rows(), lake.files(), lake.head(), len(lake.view().snapshots)
    plan = lake.lw.plan("expire", lake.table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    assert lake.files() == before and not plan.empty
    run = lake.expire()
    assert run.counters["snapshots_expired"] == count - 1
    assert [each.id for each in lake.view().snapshots] == [head]
    trashed = lake.trash()
    assert trashed and trashed <= lake.files()
    assert lake.run("purge").state is not RunState.DONE, "their grace is not over"
    lake.purge()
    assert not trashed & lake.files()
    assert lake.rows() == rows
    lake.age()
    assert lake.lw.plan("sweep", lake.table).empty, "nothing is left over"
    assert {each.path for each in lake.lw.receipts(lake.table, 1_000)}, "each has a receipt"


def test_what_goes_is_what_the_formats_own_tool_takes(lake: Lake) -> None:
    lake.busy()
    rows = lake.rows()
    lake.expire()
    lake.purge()
    left = lake.files()
    lake.expire_elsewhere()
    assert lake.rows() == rows
    assert {each for each in left if not each.startswith("metadata/")} == {
        each for each in lake.files() if not each.startswith("metadata/")
    }


def test_pins_tags_and_branches_keep_their_rows(lake: Lake) -> None:
    lake.busy()
    ids = [each.id for each in lake.view().snapshots]
    lake.lw.holds.tag(lake.table, "release", snapshot_id=ids[1], forever=True)
    lake.lw.holds.tag(lake.table, "base", snapshot_id=ids[2], forever=True)
    lake.branch("side", "base")
    lake.lw.pin(lake.table, ids[5], holder="report", ttl=timedelta(hours=2))
    seen = {
        "release": lake.rows(ids[1]),
        "side": lake.rows(ids[2]),
        "pinned": lake.rows(ids[5]),
        "now": lake.rows(),
    }
    lake.expire()
    lake.purge()
    lake.lw.holds.untag(lake.table, "base")
    lake.append(1, first=9_000)
    lake.drop_day(DAYS[0])
    lake.run("expire", snapshot_retention_hours=0, snapshot_min_retained=1)
    lake.run("purge", delete_grace_hours=0)
    assert lake.rows(ref="release") == seen["release"]
    assert lake.rows(ref="side") == seen["side"]
    assert lake.rows(ids[5]) == seen["pinned"]


def test_a_restored_file_stays_for_good(lake: Lake) -> None:
    lake.busy()
    lake.expire()
    kept = min(lake.trash())
    lake.lw.restore(lake.table, path=str(lake.folder / kept))
    lake.purge()
    lake.age()
    lake.run("sweep", **SOME)
    lake.run("purge", delete_grace_hours=0)
    assert (lake.folder / kept).exists()


def test_an_expiry_elsewhere_during_a_sweep_loses_nothing(lake: Lake) -> None:
    lake.busy()
    rows = lake.rows()
    lake.age()
    left = lake.put(lake.stray_names()[0])
    with lake.just_before((lake.implementation, "reached"), lake.expire_elsewhere):
        try:
            lake.run("sweep", **SOME)
        except Refused:
            assert not lake.trash()
    before = set(lake.contents())
    lake.run("purge", delete_grace_hours=0)
    assert before - set(lake.contents()) <= {left}
    assert lake.rows() == rows


def test_a_snapshot_that_is_tagged_after_the_plan_is_kept(lake: Lake) -> None:
    lake.busy()
    first = lake.view().snapshots[0].id
    rows = lake.rows(first)
    with lake.just_before(lake.committing("expire"), lambda: lake.tag_elsewhere("late", first)):
        lake.run("expire", snapshot_retention_hours=0, snapshot_min_retained=1)
    lake.run("purge", delete_grace_hours=0)
    assert lake.rows(ref="late") == rows
