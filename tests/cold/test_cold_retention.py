"""The end of cold retention: snapshots leave the cold table, their files are in the trash and purged there, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lakewarden import clock
from lakewarden.errors import PolicyError
from lakewarden.model.run import Run, RunState
from tests.cold.test_handoff import KEEP, at, cold_snapshots
from tests.support.lab import Lab, lakewarden
from tests.support.spark import add_catalog, remove_catalog

WEEK = {"cold_retention_hours": "7d"}
STAY = {"snapshot_retention_hours": "1000d"}
PURGE = {"delete_grace_hours": 0}


@pytest.fixture
def cold(lab: Lab, tmp_path: Path) -> Iterator[str]:
    name = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(tmp_path / "cold")})
    yield name
    remove_catalog(lab.spark, name)


@contextmanager
def later(days: float) -> Iterator[None]:
    then = clock.now() + timedelta(days=days)
    with patch.object(clock, "now", lambda: then):
        yield


def handed_off(lab: Lab, table: str, policy: dict[str, object]) -> Run:
    run = lab.lw.run("handoff", table, policy)
    assert run.state is RunState.DONE, run.reason
    assert lab.lw.run("expire", table, policy).state is RunState.DONE
    return run


def parquet(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.parquet")}


@pytest.mark.main
def test_what_is_past_its_retention_leaves_and_is_purged(lab: Lab, cold: str, tmp_path: Path) -> None:
    table = lab.messy(files=3, days=1)
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    policy = {**KEEP, **WEEK, "handoff_catalog": cold}
    frozen = f"{cold}.db.events"
    handed_off(lab, table, policy)
    first = cold_snapshots(lab, cold)
    live = lab.lw.view(table)
    with later(5):
        assert lab.lw.run("handoff", table, policy).state is RunState.NOTHING_TO_DO
        lab.append(table, 2, start=700)
        rows = {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}
        handed_off(lab, table, policy)
    second = cold_snapshots(lab, cold) - first
    assert first and second
    files = {path: path.read_bytes() for path in (tmp_path / "cold").rglob("*.parquet")}
    with later(8):
        plan = lab.lw.plan("handoff", table, policy)
        told = plan.to_dict()
        (action,) = [each for each in told["actions"] if each["action"] == "release-snapshots"]
        assert set(action["snapshot_ids"]) == first and action["files"] == len(told["trash"])
        kept = [each for each in told["skipped"] if "cold_retention_hours" in each["reason"]]
        assert [each["count"] for each in kept] == [len(second)]
        run = lab.lw.run("handoff", table, policy)
        assert run.state is RunState.DONE and run.counters["snapshots_released"] == len(first), run.reason
        assert run.counters["files_trashed"] == action["files"]
        assert cold_snapshots(lab, cold) == second
        assert {path: path.read_bytes() for path in files} == files, "trashed, and there"
        assert lab.lw.run("handoff", table, policy).state is RunState.NOTHING_TO_DO
        waits = lab.lw.run("purge", frozen, {"delete_grace_hours": 24})
        assert waits.state is RunState.NOTHING_TO_DO and "may go yet" in waits.reason
        trashed = [each.path for each in lab.lw.trash(frozen, 500).files]
        assert lab.lw.restore(frozen, next(path for path in trashed if path.endswith(".parquet"))).files == 1
    with later(10):
        purged = lab.lw.run("purge", frozen, PURGE)
        assert purged.state is RunState.DONE and purged.counters["files_erased"] == len(trashed) - 1, purged
        assert len(lab.lw.receipts(frozen, 500)) == len(trashed) - 1
    assert parquet(tmp_path / "cold") < {path.name for path in files}
    for id_ in second:
        assert at(lab, frozen, id_) == rows[id_]
    of_lake = {key: value for key, value in policy.items() if key != "delete_grace_hours"}
    with lakewarden(lab.spark, f"sqlite:///{tmp_path}/state.db", of_lake) as asked:
        gone = asked.tiers.where(table, snapshot_id=next(iter(first)))
        assert gone.tier == "gone" and "retention in the colder tier is over" in gone.reason
    # The live table was never touched, and what of it waits for its proof is free: nobody is promised a copy any more.
    assert lab.lw.view(table).uuid == live.uuid
    for path in lab.warehouse.rglob("*"):
        os.utime(path, (0, 0))
    with later(10):
        last = lab.lw.run("purge", table, policy)
    assert last.counters["files_erased"] and not last.counters["files_held"], last.reason
    assert not [each for each in lab.lw.fsck(frozen).findings if each.severity == "error"]


def test_a_trashed_copy_that_is_needed_again_is_taken_back(lab: Lab, cold: str, tmp_path: Path) -> None:
    table = lab.create()
    policy = {**KEEP, **WEEK, "handoff_catalog": cold}
    frozen = f"{cold}.db.events"
    lab.append(table, 1)
    lab.append(table, 1, start=100)
    rows = {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}
    handed_off(lab, table, policy)
    first = parquet(tmp_path / "cold")
    with later(8):
        run = lab.lw.run("handoff", table, {**policy, **STAY})
        assert run.counters["snapshots_released"] == 1 and run.counters["files_trashed"] >= len(first)
        assert cold_snapshots(lab, cold) == set(), "a cold table may be empty"
        # What is in the trash first is erased first: the manifest and its list go, then its data is needed again.
        lists = [each.path for each in lab.lw.trash(frozen, 99).files]
        assert len(lists) == run.counters["files_trashed"]
        lab.append(table, 1, start=200)
        rows |= {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}
        again = handed_off(lab, table, policy)
        assert again.counters["files_present"] >= len(first), "compared, and found whole"
        assert {each.path for each in lab.lw.trash(frozen, 99).files}.isdisjoint(
            path for path in lists if path.endswith(".parquet")
        )
    with later(12):
        lab.lw.run("purge", frozen, PURGE)
        for id_ in cold_snapshots(lab, cold):
            assert at(lab, frozen, id_) == rows[id_]
    assert first < parquet(tmp_path / "cold")


def test_a_copy_that_was_purged_is_made_anew(lab: Lab, cold: str, tmp_path: Path) -> None:
    table = lab.create()
    policy = {**KEEP, **WEEK, "handoff_catalog": cold}
    frozen = f"{cold}.db.events"
    lab.append(table, 2)
    handed_off(lab, table, policy)
    first = parquet(tmp_path / "cold")
    with later(8):
        lab.lw.run("handoff", table, {**policy, **STAY})
    with later(9):
        assert lab.lw.run("purge", frozen, PURGE).counters["files_erased"] >= len(first)
        assert not parquet(tmp_path / "cold")
        lab.append(table, 1, start=200)
        rows = {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}
        again = handed_off(lab, table, policy)
        assert again.counters["files_copied"] >= len(first)
        for id_ in cold_snapshots(lab, cold):
            assert at(lab, frozen, id_) == rows[id_]


def test_pins_protected_tags_and_the_live_table_keep_cold_snapshots(lab: Lab, cold: str) -> None:
    table = lab.create()
    policy: dict[str, Any] = {**KEEP, **WEEK, "handoff_catalog": cold, "protected_tags": "audit-*"}
    lab.append(table, 5)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.sql(f"alter table {table} create tag `plain` as of version {ids[1]} retain 1 days")
    frozen = f"{cold}.db.events"
    with later(2):
        run = lab.lw.run("handoff", table, policy)
        assert run.state is RunState.DONE
        assert lab.lw.run("expire", table, {**policy, "snapshot_ids": str(ids[0])}).state is RunState.DONE
    with later(10):
        stays = lab.lw.plan("handoff", table, policy)
        why = {each.reason: each.count for each in stays.skipped if each.what == "cold snapshot"}
        assert why == {"the live table still has it and would hand it off again": 3}
        assert lab.lw.run("expire", table, policy).state is RunState.DONE
        with lab.lw.pin(frozen, snapshot_id=ids[0], holder="ana", ttl="2d"):
            run = lab.lw.run("handoff", table, policy)
            assert run.state is RunState.DONE and run.counters["snapshots_released"] == 3
            assert cold_snapshots(lab, cold) == {ids[0]}
            refs = [each.name for each in lab.lw.view(frozen).refs]
            assert refs == ["main"], "a tag goes with its snapshot"
        assert lab.lw.run("handoff", table, policy).counters["snapshots_released"] == 1


def test_on_a_folder_nothing_ages_and_the_plan_says_why(lab: Lab, cold: str) -> None:
    table = lab.messy(files=3, days=1)
    policy = {**KEEP, "handoff_catalog": cold, "handoff_retention_hours": 0}
    handed_off(lab, table, policy)
    plan = lab.lw.plan("handoff", table, policy)
    assert plan.empty
    assert any("its store has no storage classes" in each.reason for each in plan.skipped)


def test_a_first_class_that_cannot_be_read_back_is_refused(lab: Lab, cold: str) -> None:
    table = lab.messy(files=3, days=1)
    with pytest.raises(PolicyError, match="cannot be read back"):
        lab.lw.plan("handoff", table, {**KEEP, "handoff_catalog": cold, "handoff_storage_class": "GLACIER"})


def test_a_pass_purges_the_colder_tier_too(lab: Lab, cold: str, tmp_path: Path) -> None:
    table = lab.create()
    lab.append(table, 2)
    off = dict.fromkeys(
        (
            "rewrite_enabled",
            "delete_compaction_enabled",
            "manifest_rewrite_enabled",
            "history_compaction_enabled",
        ),
        False,
    )
    policy = {**KEEP, **WEEK, **off, "handoff_catalog": cold, "delete_grace_hours": 24}
    with lakewarden(lab.spark, f"sqlite:///{tmp_path}/state.db", policy) as lw:
        assert {each.table for each in lw.maintain(table)} == {table}
        with later(8):
            done = {(each.job, each.table): each for each in lw.maintain(table)}
            assert done["handoff", table].counters["snapshots_released"] == 1
            assert done["purge", f"{cold}.db.events"].state is RunState.NOTHING_TO_DO, "its grace has begun"
        with later(10):
            done = {(each.job, each.table): each for each in lw.maintain(table)}
            assert done["purge", f"{cold}.db.events"].counters["files_erased"] > 0
        with later(11):
            assert {each.table for each in lw.maintain(table)} == {table}
