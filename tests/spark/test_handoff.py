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
from lakewarden.model import RunState
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
    reaped = lab.lw.run("reap", table, policy)
    assert (
        reaped.state is RunState.DONE
        and reaped.counters["files_erased"] > 0
        and not reaped.counters["files_held"]
    )
    assert at(lab, table, head) == rows[head]

    of_lake = {key: value for key, value in policy.items() if key != "delete_grace_hours"}
    with lakewarden(lab.spark, f"sqlite:///{tmp_path}/state.db", of_lake) as told:
        found = told.where(table, snapshot_id=next(each for each in rows if each != head))
        assert (found.tier, str(found.table)) == ("cold", f"{cold}.db.events")
        assert told.where(table, snapshot_id=head).tier == "live"
        cost = told.cost(table)
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


def test_a_damaged_or_missing_copy_keeps_the_live_file(lab: Lab, cold: str, tmp_path: Path) -> None:
    table = lab.messy(files=3, days=1)
    policy = {**KEEP, "handoff_catalog": cold}
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    lab.lw.run("handoff", table, policy)
    lab.lw.run("expire", table, policy)
    for path in lab.warehouse.rglob("*"):
        os.utime(path, (0, 0))
    copies = sorted((tmp_path / "cold").rglob("*.parquet"))
    content = bytearray(copies[0].read_bytes())
    content[len(content) // 2] ^= 1
    whole, gone = copies[0].read_bytes(), copies[1].read_bytes()
    copies[0].write_bytes(content)
    copies[1].unlink()
    run = lab.lw.run("reap", table, policy)
    assert run.counters["files_held"] == 2 and run.counters["files_erased"] > 0
    assert "is not what was copied" in run.reason and "cannot be read" in run.reason
    live = {path.name for path in lab.warehouse.rglob("*.parquet")}
    assert {copies[0].name, copies[1].name} <= live
    copies[0].write_bytes(whole)
    copies[1].write_bytes(gone)
    assert lab.lw.run("reap", table, policy).counters["files_erased"] == 2


def test_a_cold_table_is_read_only(lab: Lab, cold: str) -> None:
    table = lab.messy(files=3, days=1)
    lab.lw.run("handoff", table, {**KEEP, "handoff_catalog": cold})
    frozen = f"{cold}.db.events"
    for job in ("compact", "expire", "rewrite-manifests", "sweep"):
        with pytest.raises(Refused, match="read only"):
            lab.lw.run(job, frozen)
    assert lab.lw.run("reap", frozen).state is RunState.NOTHING_TO_DO, "only what its own retention doomed"
    with pytest.raises(Refused, match="read only"):
        lab.lw.tag(frozen, "x", forever=True)


def test_another_table_of_that_name_is_not_taken_over(lab: Lab, cold: str) -> None:
    table = lab.messy(files=3, days=1)
    lab.sql(f"create namespace {cold}.db")
    lab.sql(f"create table {cold}.db.events (id int) using iceberg")
    with pytest.raises(Refused, match="it is a table of its own"):
        lab.lw.run("handoff", table, {**KEEP, "handoff_catalog": cold})
