"""Hand-off: what expires stays readable in another catalog, when the live files are gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lakewarden import clock
from lakewarden.errors import Refused
from lakewarden.model.run import RunState
from tests.support.hourly import Hourly, digest
from tests.support.lab import Lab, lakewarden
from tests.support.spark import add_catalog, remove_catalog

KEEP: dict[str, object] = {
    "snapshot_retention_hours": 0,
    "snapshot_min_retained": 1,
    "delete_grace_hours": 0,
    "handoff_enabled": True,
}


@pytest.fixture
def cold(lab: Lab, tmp_path: Path) -> Iterator[str]:
    name = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(tmp_path / "cold")})
    yield name
    remove_catalog(lab.spark, name)


def busy(lab: Lab, version: int) -> str:
    """Appends, deletes of rows that leave delete files, a compaction."""
    table = lab.create(
        **{
            "format-version": str(version),
            "write.delete.mode": "merge-on-read",
            "write.update.mode": "merge-on-read",
        }
    )
    lab.append(table, 3)
    lab.sql(f"delete from {table} where id % 7 = 0")
    lab.sql(f"update {table} set s = 'changed' where id % 11 = 0")
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    lab.append(table, 1, start=5_000)
    lab.sql(f"delete from {table} where id = 5001")
    return table


def at(lab: Lab, table: str, snapshot: int) -> list[Any]:
    return lab.rows(table, f"version as of {snapshot}")


@pytest.mark.main
@pytest.mark.parametrize("version", [2, 3])
def test_every_snapshot_reads_the_same_when_the_live_files_are_gone(
    lab: Lab, cold: str, version: int, tmp_path: Path
) -> None:
    table = busy(lab, version)
    policy = {**KEEP, "handoff_catalog": cold}
    rows = {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}
    head = lab.lw.view(table).current_snapshot_id
    waiting = lab.lw.run("expire", table, policy)
    assert waiting.state is RunState.NOTHING_TO_DO, "expire waits for the hand-off"

    run = lab.lw.run("handoff", table, policy)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["snapshots_handed_off"] == len(rows) - 1
    again = lab.lw.run("handoff", table, policy)
    assert again.state is RunState.NOTHING_TO_DO
    assert lab.lw.run("expire", table, policy).state is RunState.DONE
    for path in lab.warehouse.rglob("*"):
        os.utime(path, (0, 0))
    purged = lab.lw.run("purge", table, policy)
    assert (
        purged.state is RunState.DONE
        and purged.counters["files_erased"] > 0
        and not purged.counters["files_held"]
    )
    assert at(lab, table, head) == rows[head]

    of_lake = {key: value for key, value in policy.items() if key != "delete_grace_hours"}
    with lakewarden(lab.spark, f"sqlite:///{tmp_path}/state.db", of_lake) as told:
        found = told.tiers.where(table, snapshot_id=next(each for each in rows if each != head))
        assert (found.tier, str(found.table)) == ("cold", f"{cold}.db.events")
        assert told.tiers.where(table, snapshot_id=head).tier == "live"
        cost = told.tiers.cost(table)
        assert [each.tier for each in cost.tiers] == ["live", "cold"] and cost.snapshots == 0
        assert all(each.bytes > 0 for each in cost.tiers)

    shutil.move(lab.warehouse, tmp_path / "away")
    frozen = table.replace(lab.catalog, cold)
    for id_, expected in rows.items():
        if id_ != head:
            assert at(lab, frozen, id_) == expected, id_


def cold_snapshots(lab: Lab, cold: str) -> set[int]:
    return {row.snapshot_id for row in lab.sql(f"select snapshot_id from {cold}.db.events.snapshots")}


def test_three_hand_offs_add_up_and_none_copies_twice(lab: Lab, cold: str) -> None:
    table = lab.create()
    policy = {**KEEP, "handoff_catalog": cold}
    rows: dict[int, list[Any]] = {}
    for turn in range(3):
        lab.append(table, 3, start=1_000 * turn)
        if turn == 1:
            lab.sql(f"alter table {table} rename column s to name")
            lab.sql(f"alter table {table} create tag `month-end`")
        rows |= {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}
        before = cold_snapshots(lab, cold) if turn else set()
        run = lab.lw.run("handoff", table, policy)
        assert run.state is RunState.DONE, run.reason
        # Three commits made six data files, three manifests and three lists since; what an earlier one copied is not again.
        assert run.counters["files_copied"] <= 12, run.counters
        assert cold_snapshots(lab, cold) > before
        assert lab.lw.run("handoff", table, policy).state is RunState.NOTHING_TO_DO
        assert lab.lw.run("expire", table, policy).state is RunState.DONE
    handed = cold_snapshots(lab, cold)
    held = {each.snapshot_id for each in lab.lw.view(table).refs}
    assert handed == set(rows) - held, "tags and the head stay where they are"
    for id_ in handed:
        assert at(lab, f"{cold}.db.events", id_) == rows[id_]


def test_time_travel_by_time_and_by_tag(lab: Lab, cold: str) -> None:
    table = lab.create()
    policy = {**KEEP, "handoff_catalog": cold}
    lab.append(table, 2)
    first = lab.snapshots(table)[0].snapshot_id
    lab.sql(f"alter table {table} create tag `old` as of version {first} retain 1 days")
    rows = {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}
    second = lab.snapshots(table)[1].snapshot_id
    lab.append(table, 1, start=900)
    history = {row.snapshot_id: row.made_current_at for row in lab.sql(f"select * from {table}.history")}
    later = clock.now() + timedelta(days=2)
    with patch.object(clock, "now", lambda: later):
        assert lab.lw.run("handoff", table, policy).state is RunState.DONE
        assert lab.lw.run("expire", table, policy).state is RunState.DONE
    frozen = f"{cold}.db.events"
    assert lab.rows(frozen, "version as of 'old'") == rows[first]
    for id_ in (first, second):
        assert lab.rows(frozen, f"timestamp as of '{history[id_]}'") == rows[id_]


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swapped(path: Path) -> None:
    """Another whole file of the table under this name."""
    path.write_bytes(next(each for each in sorted(path.parent.iterdir()) if each != path).read_bytes())


def trashed(lab: Lab, table: str, kind: str) -> list[Path]:
    found = lab.lw.trash(table, limit=100).files
    return [Path(each.path.removeprefix("file:")) for each in found if each.kind == kind]


@pytest.mark.main
def test_a_harmed_copy_keeps_its_live_file_and_is_made_again(lab: Lab, cold: str, tmp_path: Path) -> None:
    table = lab.messy(files=5, days=1, **{"write.delete.mode": "merge-on-read"})
    for id_ in (7, 8):  # the second one's delete file replaces the first one's
        lab.sql(f"delete from {table} where id = {id_}")
    policy = {**KEEP, "handoff_catalog": cold}
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    rows = {row.snapshot_id: at(lab, table, row.snapshot_id) for row in lab.snapshots(table)}
    lab.lw.run("handoff", table, policy)
    lab.lw.run("expire", table, policy)
    for path in lab.warehouse.rglob("*"):
        os.utime(path, (0, 0))
    files = [*trashed(lab, table, "data"), *trashed(lab, table, "position-deletes")]
    copies = [tmp_path / "cold" / each.relative_to(lab.warehouse) for each in files]
    whole = [each.read_bytes() for each in copies]
    for harm, copy in zip((flipped, cut_short, swapped, Path.unlink, flipped), copies, strict=True):
        harm(copy)
    run = lab.lw.run("purge", table, policy)
    assert run.counters["files_held"] == 5 and run.counters["files_erased"] > 0
    assert str(tmp_path / "cold") in run.reason and "made again" in run.reason
    assert all(each.exists() for each in files) and [each.read_bytes() for each in copies] == whole
    assert lab.lw.run("purge", table, policy).counters["files_erased"] == 5
    for id_ in cold_snapshots(lab, cold):
        assert at(lab, f"{cold}.db.events", id_) == rows[id_]


def test_a_harmed_manifest_of_the_cold_table_stops_the_deleting(lab: Lab, cold: str, tmp_path: Path) -> None:
    table = lab.messy(files=2, days=1)
    policy = {**KEEP, "handoff_catalog": cold}
    lab.lw.run("handoff", table, policy)
    lab.lw.run("expire", table, policy)
    for path in lab.warehouse.rglob("*"):
        os.utime(path, (0, 0))
    (live,) = trashed(lab, table, "manifest-list")
    copy = tmp_path / "cold" / live.relative_to(lab.warehouse)
    whole = copy.read_bytes()
    for harm in (flipped, cut_short, Path.unlink):
        harm(copy)
        try:
            assert lab.lw.run("purge", table, policy).counters["files_held"] == 1
        except Refused as error:  # it is among the tables that are asked whether they need the file
            assert f"{cold}.db.events cannot be read" in str(error)
        assert live.exists()
        copy.write_bytes(whole)
    assert lab.lw.run("purge", table, policy).counters["files_erased"] == 1


@pytest.mark.main
def test_a_cold_table_is_read_only(lab: Lab, cold: str) -> None:
    table = lab.messy(files=3, days=1)
    lab.lw.run("handoff", table, {**KEEP, "handoff_catalog": cold})
    frozen = f"{cold}.db.events"
    for job in ("compact", "expire", "rewrite-manifests", "sweep"):
        with pytest.raises(Refused, match="read only"):
            lab.lw.run(job, frozen)
    assert lab.lw.run("purge", frozen).state is RunState.NOTHING_TO_DO, "only what its own retention trashed"
    with pytest.raises(Refused, match="read only"):
        lab.lw.holds.tag(frozen, "x", forever=True)


def test_another_table_of_that_name_is_not_taken_over(lab: Lab, cold: str) -> None:
    table = lab.messy(files=3, days=1)
    lab.sql(f"create namespace {cold}.db")
    lab.sql(f"create table {cold}.db.events (id int) using iceberg")
    with pytest.raises(Refused, match="it is an independent table"):
        lab.lw.run("handoff", table, {**KEEP, "handoff_catalog": cold})


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_days_of_hourly_commits_handed_off_in_three_goes(
    lab: Lab, cold: str, version: int, tmp_path: Path
) -> None:
    lab.sql(f"create namespace {lab.catalog}.db")
    hourly = Hourly(lab.spark, lab.table(), version)
    hourly.create()
    policy = {**KEEP, "snapshot_retention_hours": 24, "handoff_catalog": cold}
    frozen, handed = f"{cold}.db.events", set[int]()
    # Iceberg's own clock is the machine's, and no commit may be older than the one before.
    days = [clock.now() - timedelta(days=2 - turn, minutes=10) for turn in range(3)]
    for turn, day in enumerate(days):
        hourly.write(24, day)
        with patch.object(clock, "now", lambda: day + timedelta(minutes=5)):  # noqa: B023
            run = lab.lw.run("handoff", hourly.table, policy)
            if turn == 0:
                assert run.state is RunState.NOTHING_TO_DO, "all are inside the window"
                continue
            assert run.counters["snapshots_handed_off"] == 24, run.reason
            again = lab.lw.run("handoff", hourly.table, policy)
            assert again.state is RunState.NOTHING_TO_DO and not again.counters.get("files_copied")
            assert cold_snapshots(lab, cold) > handed
            handed = cold_snapshots(lab, cold)
            assert lab.lw.run("expire", hourly.table, policy).state is RunState.DONE
            for path in lab.warehouse.rglob("*"):
                os.utime(path, (0, 0))
            purged = lab.lw.run("purge", hourly.table, policy)
            assert purged.counters["files_erased"] and not purged.counters["files_held"], purged.reason
    live = {row.snapshot_id for row in lab.snapshots(hourly.table)}
    assert handed == set(hourly.told) - live and len(handed) == 48
    reads = hourly.writer()
    assert {id_: reads.digest(hourly.java(), id_) for id_ in live} == {id_: hourly.told[id_] for id_ in live}
    lab.warehouse.rename(tmp_path / "away")
    java = hourly.java(frozen)
    for id_ in handed:
        assert reads.digest(java, id_) == hourly.told[id_], id_
    for id_ in list(handed)[::12]:
        assert digest(at(lab, frozen, id_)) == hourly.told[id_], "Spark reads the same"
