"""expire on real tables: what leaves the metadata, what is in the trash, and that nothing else is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lakewarden.errors import LakewardenError, Refused
from lakewarden.model.location import normal
from lakewarden.model.run import RunState
from lakewarden.tables.iceberg.writer import IcebergWriter
from tests.support.lab import Lab

pytestmark = pytest.mark.main

NOW = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}


def trashed_paths(lab: Lab, table: str) -> set[str]:
    return {normal(each.path) for each in lab.lw.plan("expire", table, NOW).trash}


def test_the_plan_trashes_what_only_old_snapshots_need(lab: Lab) -> None:
    table = lab.messy(files=8, days=2)
    before = lab.on_disk()
    assert lab.lw.run("compact", table).state is RunState.DONE
    compacted = lab.on_disk()
    plan = lab.lw.plan("expire", table, NOW)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    assert plan.actions[0].to_dict()["snapshot_ids"] == ids[:-1]
    live = {normal(path) for path in lab.data_files(table)}
    found = {normal(each.path) for each in plan.trash}
    old = {path for path in before if path.endswith(".parquet")}
    assert {path for path in found if path.endswith(".parquet")} == old
    assert not found & live
    assert lab.on_disk() == compacted, "a plan changes nothing"


def test_expired_snapshots_are_gone_and_every_file_is_still_there(lab: Lab) -> None:
    table = lab.messy(files=8, days=2)
    lab.lw.run("compact", table)
    rows, before = lab.rows(table), lab.on_disk()
    planned = trashed_paths(lab, table)
    run = lab.lw.run("expire", table, NOW)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["snapshots_expired"] == 9 and run.counters["files_trashed"] == len(planned)
    assert run.counters["files_trashed_unsized"] == 9, "the manifest list of each"
    assert len(lab.snapshots(table)) == 1
    assert lab.rows(table) == rows
    assert set(before) <= set(lab.on_disk()), "expire frees no bytes"
    assert lab.trash(table) == planned
    again = lab.lw.run("expire", table, NOW)
    assert again.state is RunState.NOTHING_TO_DO


def test_tags_branches_and_pins_keep_their_snapshots(lab: Lab) -> None:
    table = lab.messy(files=6, days=1)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.sql(f"alter table {table} create tag audit as of version {ids[0]}")
    lab.sql(f"alter table {table} create branch dev as of version {ids[2]}")
    with lab.lw.pin(table, snapshot_id=ids[3], holder="bi", ttl="2h"):
        plan = lab.lw.plan("expire", table, NOW)
        assert plan.actions[0].to_dict()["snapshot_ids"] == [ids[1], ids[4]]
        reasons = {each.reason.split(" until")[0] for each in plan.skipped}
        assert {"tag audit", "branch dev", "pinned by bi", "the current snapshot"} <= reasons
        run = lab.lw.run("expire", table, NOW)
        assert run.state is RunState.DONE
    assert {row.snapshot_id for row in lab.snapshots(table)} == {ids[0], ids[2], ids[3], ids[5]}
    for snapshot in (ids[0], ids[2], ids[3]):
        assert lab.rows(table, f"version as of {snapshot}")


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_ref_made_between_plan_and_commit_wins(lab: Lab, kind: str) -> None:
    table = lab.messy(files=5, days=1)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    real, done = IcebergWriter.expire, []

    def late(self: IcebergWriter, *args: Any) -> None:
        if not done:
            done.append(True)
            lab.sql(f"alter table {table} create {kind} late as of version {ids[1]}")
        real(self, *args)

    with patch.object(IcebergWriter, "expire", late):
        run = lab.lw.run("expire", table, NOW)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["snapshots_expired"] == 3
    assert {row.snapshot_id for row in lab.snapshots(table)} == {ids[1], ids[4]}
    assert lab.rows(table, f"version as of {ids[1]}")
    needed = {row.path for row in lab.sql(f"select path from {table}.all_manifests")}
    assert not lab.trash(table) & {normal(path) for path in needed}


def test_gc_enabled_false_is_refused(lab: Lab) -> None:
    table = lab.messy(files=3, days=1, **{"gc.enabled": "false"})
    with pytest.raises(Refused, match=r"gc\.enabled is false"):
        lab.lw.run("expire", table, NOW)
    assert len(lab.snapshots(table)) == 3


def test_an_unreadable_manifest_stops_everything_and_is_named(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    manifest = lab.sql(f"select path from {table}.manifests")[0].path
    local = Path(normal(manifest))
    local.write_bytes(local.read_bytes()[:100])
    with pytest.raises(LakewardenError, match=manifest.rsplit("/", 1)[-1]):
        lab.lw.run("expire", table, NOW)
    assert len(lab.snapshots(table)) == 5 and not lab.trash(table)


def test_limit_and_named_snapshots(lab: Lab) -> None:
    table = lab.messy(files=6, days=1)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    plan = lab.lw.plan("expire", table, {**NOW, "snapshot_expire_limit": 2})
    assert plan.actions[0].to_dict()["snapshot_ids"] == ids[:2] and plan.cut_short
    plan = lab.lw.plan("expire", table, {"snapshot_ids": str(ids[3])})
    assert plan.actions[0].to_dict()["snapshot_ids"] == [ids[3]]


def test_statistics_of_expired_snapshots_are_trashed_and_others_stay(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    lab.sql(f"call {lab.catalog}.system.compute_table_stats('{table}')")
    old = [path for path in lab.on_disk() if path.endswith(".stats")]
    lab.append(table, 1, start=10_000)
    lab.sql(f"call {lab.catalog}.system.compute_table_stats('{table}')")
    new = [path for path in lab.on_disk() if path.endswith(".stats") and path not in old]
    assert len(old) == len(new) == 1
    found = trashed_paths(lab, table)
    assert normal(old[0]) in found and normal(new[0]) not in found


def test_what_each_hold_costs(lab: Lab) -> None:
    """The bytes that stay only because of a hold: those of a snapshot whose files were compacted away."""
    table = lab.messy(files=6, days=1)
    lab.lw.set_policy(table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    lab.sql(f"alter table {table} create tag audit as of version {ids[2]}")
    costs = {hold.name: cost for hold, cost in lab.lw.holds.costs(table)}
    assert costs["main"] == 0
    old = lab.sql(f"select sum(file_size_in_bytes) as b from {table}.files version as of {ids[2]}")[0].b
    assert old <= costs["audit"] <= old + 100_000, costs
    lab.sql(f"alter table {table} create tag second as of version {ids[2]}")
    assert {cost for hold, cost in lab.lw.holds.costs(table)} == {0}, "either of two keeps it"


def test_a_chain_that_a_streaming_writer_needs_since_the_plan_stays(lab: Lab) -> None:
    """Main is rolled back right before the commit: a Flink job now walks from there, over what was planned to expire."""
    table = lab.create(partition="")
    loaded = lab.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        lab.spark._jsparkSession, table
    )

    def commit(checkpoint: int | None = None) -> int:
        append = loaded.newFastAppend()
        if checkpoint is not None:
            append.set("flink.job-id", "job").set("flink.operator-id", "sink")
            append.set("flink.max-committed-checkpoint-id", str(checkpoint))
        append.commit()
        return int(loaded.currentSnapshot().snapshotId())

    oldest, first, between, tagged = commit(), commit(1), commit(), commit()
    commit(2)
    loaded.manageSnapshots().createTag("known-good", tagged).commit()
    planned = lab.lw.plan("expire", table, NOW).actions[0].to_dict()["snapshot_ids"]
    assert planned == [oldest, first, between]
    real, calls = IcebergWriter.expire, []

    def rolled_back(self: IcebergWriter, *args: Any) -> None:
        if not calls:
            loaded.refresh()
            loaded.manageSnapshots().rollbackTo(tagged).commit()
        calls.append(1)
        real(self, *args)

    with patch.object(IcebergWriter, "expire", rolled_back):
        run = lab.lw.run("expire", table, NOW)
    assert run.state is RunState.DONE, run.reason
    left = {row.snapshot_id for row in lab.snapshots(table)}
    assert {first, between, tagged} <= left and oldest not in left
