"""Hand-off of tables, catalogs and records that changed since the last one."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lakewarden import clock
from lakewarden.jobs.purge import plan as purge
from lakewarden.model.run import RunState
from lakewarden.tables.iceberg.writer import IcebergColdWriter
from tests.cold.test_handoff import KEEP, at, cold, cold_snapshots
from tests.support.lab import Lab, lakewarden
from tests.support.spark import add_catalog, remove_catalog

__all__ = ["cold"]


def rows_of(lab: Lab, table: str) -> dict[int, list[Any]]:
    return {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}


def age(lab: Lab) -> None:
    for path in lab.warehouse.rglob("*"):
        os.utime(path, (0, 0))


def test_columns_partitions_and_the_format_change_between_hand_offs(
    lab: Lab, cold: str, tmp_path: Path
) -> None:
    table = lab.create(**{"format-version": "2", "write.delete.mode": "merge-on-read"})
    policy, frozen = {**KEEP, "handoff_catalog": cold}, f"{cold}.db.events"
    lab.append(table, 2)
    lab.sql(f"delete from {table} where id = 3")
    rows, changes = (
        rows_of(lab, table),
        (
            ("rename column s to name", "add column more int", "drop partition field d"),
            (
                "set tblproperties ('format-version'='3')",
                "drop column more",
                "add partition field bucket(2, id)",
            ),
        ),
    )
    for turn, sentences in enumerate(changes):
        for sentence in sentences:
            lab.sql(f"alter table {table} {sentence}")
        lab.sql(f"delete from {table} where id = {10 + turn}")
        rows |= rows_of(lab, table)
        assert lab.lw.run("handoff", table, policy).state is RunState.DONE
        assert lab.lw.run("expire", table, policy).state is RunState.DONE
    lab.sql(f"delete from {table} where id = 30")
    head = list(rows)[-1]
    assert lab.lw.run("handoff", table, policy).state is RunState.DONE
    assert lab.lw.run("expire", table, policy).state is RunState.DONE
    age(lab)
    assert not lab.lw.run("purge", table, policy).counters["files_held"]
    assert cold_snapshots(lab, cold) == set(rows) and head in rows
    shutil.move(lab.warehouse, tmp_path / "away")
    for id_, expected in rows.items():
        assert at(lab, frozen, id_) == expected


def test_another_catalog_gets_copies_of_its_own(lab: Lab, cold: str, tmp_path: Path) -> None:
    """A record of a copy is of one cold table: counted for another, its snapshots would name files that are not there."""
    table = lab.messy(files=3, days=1)
    rows = rows_of(lab, table)
    first = lab.lw.run("handoff", table, {**KEEP, "handoff_catalog": cold})
    other = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(tmp_path / "other")})
    try:
        policy = {**KEEP, "handoff_catalog": other}
        second = lab.lw.run("handoff", table, policy)
        assert second.counters["files_copied"] == first.counters["files_copied"]
        assert lab.lw.run("expire", table, policy).state is RunState.DONE
        age(lab)
        assert not lab.lw.run("purge", table, policy).counters["files_held"]
        shutil.rmtree(tmp_path / "cold")
        shutil.move(lab.warehouse, tmp_path / "away")
        for id_ in cold_snapshots(lab, other):
            assert at(lab, f"{other}.db.events", id_) == rows[id_]
    finally:
        remove_catalog(lab.spark, other)


def test_records_that_are_lost_cost_no_copy_and_no_snapshot(lab: Lab, cold: str, tmp_path: Path) -> None:
    table = lab.create(**{"write.delete.mode": "merge-on-read"})
    lab.append(table, 2)
    lab.sql(f"delete from {table} where id = 3")
    lab.append(table, 1, start=5_000)
    policy = {**KEEP, "handoff_catalog": cold}
    rows = rows_of(lab, table)
    lab.lw.run("handoff", table, policy)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cold").rglob("*.parquet")}
    lab.sql(f"delete from {table} where id = 4")
    with lakewarden(lab.spark, f"sqlite:///{tmp_path}/anew.db") as anew:
        run = anew.run("handoff", table, policy)
        assert run.state is RunState.DONE and run.counters["files_present"] > 0, run.reason
        assert anew.run("expire", table, policy).state is RunState.DONE
        age(lab)
        purged = anew.run("purge", table, policy)
        purged_list = anew.trash(table, limit=100)
    # Data and deletes are compared with the copies that lie there; of metadata nobody knows any more what it was.
    held = [each.path for each in purged_list.files if each.state == "trashed"]
    assert len(held) == purged.counters["files_held"] and all(each.endswith(".avro") for each in held)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for id_, expected in rows.items():
        assert at(lab, f"{cold}.db.events", id_) == expected


def test_a_moment_of_a_snapshot_that_was_not_handed_off_is_refused_not_guessed(lab: Lab, cold: str) -> None:
    table = lab.create()
    lab.append(table, 3)
    first, kept, third = (row.snapshot_id for row in lab.snapshots(table))
    rows = rows_of(lab, table)
    lab.sql(f"alter table {table} create tag `keep` as of version {kept}")
    lab.sql(f"call {lab.catalog}.system.rollback_to_snapshot('db.events', {first})")
    lab.append(table, 1, start=900)
    history = lab.sql(f"select made_current_at, snapshot_id from {table}.history order by 1")
    assert [each.snapshot_id for each in history][:4] == [first, kept, third, first]
    assert lab.lw.run("handoff", table, {**KEEP, "handoff_catalog": cold}).state is RunState.DONE
    frozen = f"{cold}.db.events"
    for each in history[:4]:
        moment = f"timestamp as of '{each.made_current_at}'"
        if each.snapshot_id == kept:
            with pytest.raises(Exception, match=f"Cannot find snapshot with ID {kept}"):
                lab.rows(frozen, moment)
        else:
            assert lab.rows(frozen, moment) == rows[each.snapshot_id]
    with pytest.raises(Exception, match="Cannot find snapshot"):
        lab.rows(frozen, f"timestamp as of '{history[-1].made_current_at + timedelta(seconds=5)}'")


def test_a_snapshot_that_somebody_else_expires_meanwhile_is_a_lost_race(lab: Lab, cold: str) -> None:
    table = lab.messy(files=3, days=1)
    gone = lab.snapshots(table)[0].snapshot_id
    real = IcebergColdWriter.register

    def late(*arguments: Any) -> None:
        lab.sql(
            f"call {lab.catalog}.system.expire_snapshots(table => 'db.events', snapshot_ids => array({gone}))"
        )
        real(*arguments)

    policy = {**KEEP, "handoff_catalog": cold}
    with patch.object(IcebergColdWriter, "register", late):
        run = lab.lw.run("handoff", table, policy)
    assert run.state is RunState.LOST_RACE and f"no longer has snapshot {gone}" in run.reason
    assert cold_snapshots(lab, cold) == set()
    later = clock.now() + timedelta(hours=1)
    with patch.object(clock, "now", lambda: later):
        assert lab.lw.run("handoff", table, policy).state is RunState.DONE
    assert len(cold_snapshots(lab, cold)) == 1


def waits(lab: Lab, table: str, policy: dict[str, object]) -> bool:
    """Nothing is purged, because snapshots are not in the colder tier."""
    told = [each.reason for each in lab.lw.plan("purge", table, policy).skipped]
    run = lab.lw.run("purge", table, policy)
    return run.state is RunState.NOTHING_TO_DO and any("is not in the colder tier" in each for each in told)


def test_a_cold_table_that_was_dropped_keeps_the_live_files_and_is_made_anew(
    lab: Lab, cold: str, tmp_path: Path
) -> None:
    table = lab.messy(files=3, days=1)
    policy = {**KEEP, "handoff_catalog": cold}
    lab.lw.run("handoff", table, policy)
    lab.lw.run("expire", table, policy)
    age(lab)
    lab.sql(f"drop table {cold}.db.events")
    assert waits(lab, table, policy)
    with patch.object(
        purge, "handed_off", lambda *_: None
    ):  # as for a plan that was made before it was dropped
        assert "there is no cold table" in lab.lw.run("purge", table, policy).reason
    lab.append(table, 2, days=1, start=5_000)
    rows = rows_of(lab, table)
    assert lab.lw.run("handoff", table, policy).state is RunState.DONE
    assert waits(lab, table, policy)
    with patch.object(purge, "handed_off", lambda *_: None):
        assert f"{cold}.db.events does not have snapshot" in lab.lw.run("purge", table, policy).reason
    shutil.move(lab.warehouse, tmp_path / "away")
    assert cold_snapshots(lab, cold)
    for id_ in cold_snapshots(lab, cold):
        assert at(lab, f"{cold}.db.events", id_) == rows[id_], "records of copies that are gone do not count"
