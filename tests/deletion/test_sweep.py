"""sweep on real tables: only what nobody can need is in the trash, every other file is counted with its reason.

Each loss that another tool is known for is a test here, by the number of its issue.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from lakewarden.errors import LakewardenError, PolicyError, Refused
from lakewarden.model.location import normal
from lakewarden.model.run import RunState
from lakewarden.storage.objects import Objects
from tests.support.lab import Lab

DAY = 86_400
OLD = 10 * DAY
ANY = {"orphan_max_percent": 100}


def folder(lab: Lab, table: str) -> Path:
    return lab.warehouse / "db" / table.rsplit(".", 1)[1]


def put(path: Path, age: float = OLD, content: bytes = b"x") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    then = time.time() - age
    os.utime(path, (then, then))
    return str(path)


def trashed(lab: Lab, table: str, **policy: Any) -> set[str]:
    return {normal(each.path) for each in lab.lw.plan("sweep", table, {**ANY, **policy}).trash}


@pytest.mark.main
def test_a_hundred_files_mixed(lab: Lab) -> None:
    """Acceptance: only unreachable, old and inactive files are in the trash; orphans, young and active are told apart."""
    table = lab.messy(files=10, days=2)
    home = folder(lab, table)
    orphans = {put(home / "data" / f"d=2024-03-01/orphan-{number}.parquet") for number in range(20)}
    orphans |= {put(home / "metadata" / f"orphan-{number}-m0.avro") for number in range(5)}
    for number in range(15):
        put(home / "data" / f"young-{number}.parquet", age=DAY)
    for number in range(10):
        put(home / "data" / "in-progress" / f"part-{number}.parquet")
    for number in range(6):
        put(home / "data" / "staged" / f"load-{number}.parquet")
    for number in range(3):
        put(home / "data" / "_temporary" / f"{number}.parquet")
    put(home / "notes.txt")
    lab.lw.holds.heartbeat(table, "flink", prefixes=[f"{home}/data/in-progress/"])
    lab.lw.holds.stage_begin(table, "loader", prefixes=[f"{home}/data/staged/"])
    before = lab.on_disk()
    run = lab.lw.run("sweep", table, ANY)
    assert run.state is RunState.DONE, run.reason
    assert lab.trash(table) == orphans
    counted = {
        key: run.counters[key] for key in ("orphan_data_files", "orphan_metadata_files", "skipped_young")
    }
    assert counted == {"orphan_data_files": 20, "orphan_metadata_files": 5, "skipped_young": 15}
    assert run.counters["skipped_active"] == 10 and run.counters["skipped_staged"] == 6
    assert run.counters["skipped_foreign"] == 1
    assert run.counters["skipped_in_flight"] == 31
    assert lab.on_disk() == before, "a sweep deletes nothing"
    again = lab.lw.run("sweep", table, ANY)
    assert again.state is RunState.NOTHING_TO_DO and "no orphans" in again.reason


def test_a_restored_file_is_left_alone_by_every_later_sweep(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    orphan = put(folder(lab, table) / "data" / "orphan.parquet")
    lab.lw.run("sweep", table, ANY)
    lab.lw.restore(table, path=orphan)
    assert trashed(lab, table) == set()
    lab.lw.run("purge", table, {"delete_grace_hours": 0})
    assert Path(orphan).exists()


@pytest.mark.main
def test_everything_the_table_needs_is_known(lab: Lab) -> None:
    """amoro#1959, amoro#877: statistics and manifests of idle tables. Every kind of file there is, all of it old."""
    table = lab.create(**{"write.delete.mode": "merge-on-read", "format-version": "2"})
    lab.append(table, 4)
    lab.sql(f"delete from {table} where id % 7 = 0")
    first = lab.snapshots(table)[0].snapshot_id
    lab.sql(f"alter table {table} create tag old as of version {first}")
    lab.sql(f"alter table {table} create branch side as of version {first}")
    lab.sql(f"insert into {table}.branch_side values (-1, 'side', date'2024-03-01')")
    lab.sql(f"call {lab.catalog}.system.compute_table_stats('{table}')")
    lab.sql(f"call {lab.catalog}.system.compute_partition_stats('{table}')")
    make_old(lab)
    assert trashed(lab, table) == set()


def test_deletion_vectors_are_known(lab: Lab) -> None:
    table = lab.create(**{"write.delete.mode": "merge-on-read", "format-version": "3"})
    lab.append(table, 4)
    lab.sql(f"delete from {table} where id % 7 = 0")
    assert any(path.endswith(".puffin") for path in lab.on_disk())
    make_old(lab)
    assert trashed(lab, table) == set()


@pytest.mark.main
def test_references_are_read_after_the_listing(lab: Lab) -> None:
    """paimon#3074: a file committed between the two is named by what is read later."""
    table = lab.messy(files=4, days=1)

    with after_listing(lambda: (lab.append(table, 2, start=10_000), make_old(lab))):
        assert trashed(lab, table, orphan_grace_hours=24) == set()


def test_a_worker_that_loaded_the_table_long_ago_sees_it_as_it_is(lab: Lab) -> None:
    """iceberg#15487: the same Lakewarden, months later."""
    table = lab.messy(files=2, days=1)
    assert trashed(lab, table) == set()
    lab.append(table, 5, start=10_000)
    make_old(lab)
    assert trashed(lab, table) == set()


@pytest.mark.main
def test_an_expiry_that_races_the_sweep(lab: Lab) -> None:
    """paimon#7710: what another tool expires while we look is not taken for a reason to trash what is left."""
    table = lab.messy(files=6, days=1)
    make_old(lab)

    def race() -> None:
        lab.sql(
            f"call {lab.catalog}.system.expire_snapshots(table => '{table.split('.', 1)[1]}', "
            "older_than => current_timestamp(), retain_last => 1)"
        )

    with after_listing(race):
        live = {normal(path) for path in lab.data_files(table)}
        assert not trashed(lab, table) & live


@pytest.mark.parametrize("hours", [0, 1, 23, -5])
def test_ages_below_the_floor_are_refused(lab: Lab, hours: int) -> None:
    """paimon#4779, amoro#2925: a cut-off in the future, an age of nothing."""
    table = lab.messy(files=2, days=1)
    with pytest.raises(PolicyError, match="orphan_grace_hours"):
        lab.lw.plan("sweep", table, {"orphan_grace_hours": hours})


def test_a_file_of_the_future_is_refused(lab: Lab) -> None:
    table = lab.messy(files=2, days=1)
    put(folder(lab, table) / "data" / "x.parquet", age=-2 * DAY)
    with pytest.raises(Refused, match="modified in the future"):
        lab.lw.plan("sweep", table, ANY)


@pytest.mark.main
def test_an_empty_listing_is_refused(lab: Lab) -> None:
    table = lab.messy(files=2, days=1)
    with (
        patch.object(Objects, "list", lambda self, folder: iter(())),
        pytest.raises(Refused, match="is empty"),
    ):
        lab.lw.plan("sweep", table, ANY)


def test_a_listing_that_lacks_what_metadata_names_is_refused(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    missing = normal(lab.data_files(table)[0])
    Path(missing).unlink()
    before = lab.on_disk()
    with pytest.raises(Refused, match=Path(missing).name):
        lab.lw.run("sweep", table, ANY)
    assert lab.on_disk() == before and not lab.trash(table)
    assert lab.lw.runs(table)[0].state is RunState.REFUSED


@pytest.mark.main
def test_the_circuit_breaker(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    for number in range(40):
        put(folder(lab, table) / "data" / f"orphan-{number}.parquet")
    with pytest.raises(Refused, match="orphan_max_percent=25"):
        lab.lw.run("sweep", table)
    assert not lab.trash(table)
    assert len(trashed(lab, table)) == 40


@pytest.mark.main
def test_an_unreadable_manifest_is_refused_and_named(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    manifest = Path(normal(lab.sql(f"select path from {table}.manifests")[0].path))
    manifest.write_bytes(manifest.read_bytes()[:200])
    with pytest.raises(LakewardenError, match=manifest.name):
        lab.lw.plan("sweep", table, ANY)


def test_odd_names_are_literal(lab: Lab) -> None:
    """Percent signs, pluses, spaces, unicode: as partition values and as orphans."""
    table = lab.create(columns="id bigint, s string", partition="s")
    for number, value in enumerate(["a b", "a%20b", "ü/x", "p+q=r", "#?&", "a:b"]):
        lab.sql(f"insert into {table} values ({number}, '{value}')")
    home = folder(lab, table)
    orphans = {
        put(home / "data" / "s=a b" / "x%20y+z #ü.parquet"),
        put(home / "data" / "s=a%2520b" / "o.parquet"),
    }
    make_old(lab)
    assert trashed(lab, table) == {normal(each) for each in orphans}


def test_two_spellings_of_a_location(lab: Lab) -> None:
    """iceberg#4652: the metadata says file:///x, the listing /x."""
    table = lab.messy(files=3, days=1)
    lab.sql(f"alter table {table} set tblproperties ('write.data.path'='file://{folder(lab, table)}/data')")
    lab.append(table, 2, start=10_000)
    assert {path.startswith("file:") for path in lab.data_files(table)} == {True, False}
    make_old(lab)
    assert trashed(lab, table) == set()


def test_data_outside_the_location_is_swept_where_the_operator_says_so(lab: Lab, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    table = lab.messy(files=3, days=1, **{"write.data.path": f"file:{outside}"})
    assert all(str(outside) in path for path in lab.data_files(table))
    orphan = put(outside / "orphan.parquet")
    make_old(lab)
    for path in outside.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - OLD, time.time() - OLD))
    assert trashed(lab, table) == set(), "properties are the writer's word"
    assert trashed(lab, table, own_places=[f"file:{outside}"]) == {orphan}


def test_an_inventory_instead_of_a_listing(lab: Lab, tmp_path: Path) -> None:
    table = lab.messy(files=4, days=1)
    orphan = put(folder(lab, table) / "data" / "orphan.parquet")
    make_old(lab)
    listed = [
        (str(p), p.stat().st_size, int(p.stat().st_mtime * 1000))
        for p in lab.warehouse.rglob("*")
        if p.is_file()
    ]
    frame = lab.spark.createDataFrame(listed, "path string, size bigint, last_modified bigint")
    frame.createOrReplaceTempView("inventory_view")
    frame.coalesce(1).write.parquet(str(tmp_path / "inventory.parquet"))
    listed_folders: list[str] = []

    def listing(_: Objects, folder: str) -> Iterator[pa.RecordBatch]:
        listed_folders.append(folder)
        return iter(())

    with patch.object(Objects, "list", listing):
        assert trashed(lab, table, sweep_inventory=str(tmp_path / "inventory.parquet")) == {orphan}
        assert trashed(lab, table, sweep_inventory="inventory_view") == {orphan}
    # Other formats' folders are looked for, whatever an inventory says; this table has none.
    assert not [each for each in listed_folders if Path(each).exists()], "listed all the same"
    with pytest.raises(LakewardenError, match="no_such_view"):
        trashed(lab, table, sweep_inventory="no_such_view")


def test_an_open_run_of_ours_may_still_be_writing(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    run = lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    path = folder(lab, table) / "data" / f"00000-lakewarden-{run.id}-0-0.parquet"
    put(path)
    assert trashed(lab, table) == {str(path)}
    with patch("lakewarden.jobs.sweep.execute._open_runs", lambda deps, ref: frozenset({run.id})):
        assert trashed(lab, table) == set()


@pytest.mark.main
def test_gc_enabled_false_is_refused(lab: Lab) -> None:
    table = lab.messy(files=2, days=1, **{"gc.enabled": "false"})
    with pytest.raises(Refused, match=r"gc\.enabled"):
        lab.lw.run("sweep", table)


# ------------------------------------------------------------ location is not ownership


def refused(lab: Lab, table: str, match: str) -> None:
    """Sweep and purge say no with exit code 12, and not a byte changes."""
    before = lab.on_disk()
    with pytest.raises(Refused, match=match) as found:
        lab.lw.run("sweep", table, ANY)
    assert found.value.exit_code == 12
    assert lab.on_disk() == before


@pytest.mark.main
def test_two_tables_of_one_location(lab: Lab) -> None:
    """iceberg#17213, amoro#4292"""
    table = lab.messy(files=2, days=1)
    put(folder(lab, table) / "data" / "orphan.parquet")
    foreign = folder(lab, table) / "metadata" / "00000-foreign.metadata.json"
    own = next(folder(lab, table).glob("metadata/v1.metadata.json")).read_text("utf-8")
    foreign.write_text(own.replace(lab.lw.view(table).uuid, "11111111-2222-3333-4444-555555555555"), "utf-8")
    refused(lab, table, "11111111-2222")


def test_a_table_inside_another_ones_location(lab: Lab) -> None:
    """iceberg#12278"""
    table = lab.messy(files=2, days=1)
    inner = f"{lab.catalog}.db.events.inner"
    lab.sql(f"create namespace if not exists {lab.catalog}.db.events")
    lab.sql(f"create table {inner} (id bigint) using iceberg")
    lab.sql(f"insert into {inner} values (1)")
    make_old(lab)
    refused(lab, table, "inner")
    assert lab.rows(inner) == [(1,)]


def test_a_table_that_was_dropped_and_made_anew(lab: Lab) -> None:
    table = lab.messy(files=2, days=1)
    keep = lab.warehouse.parent / "keep"
    shutil.copytree(folder(lab, table) / "metadata", keep)
    lab.sql(f"drop table {table}")
    shutil.rmtree(folder(lab, table), ignore_errors=True)
    table = lab.messy(files=2, days=1)
    old = next(keep.glob("v1.metadata.json"))
    shutil.copy(old, folder(lab, table) / "metadata" / "00000-before.metadata.json")
    refused(lab, table, "00000-before")


def make_old(lab: Lab) -> None:
    then = time.time() - OLD
    for path in lab.warehouse.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


@contextmanager
def after_listing(do: Any) -> Iterator[None]:
    """Run `do` between the listing and the reading of references."""
    real = Objects.list
    done: list[bool] = []

    def listing(self: Objects, where: str) -> Any:
        yield from list(real(self, where))
        if not done:
            done.append(True)
            do()

    with patch.object(Objects, "list", listing):
        yield


def test_a_commit_of_nothing_is_no_damage(lab: Lab) -> None:
    """A manifest list that names no manifest is a header alone."""
    table = lab.create()
    lab.sql(f"insert into {table} select * from {table} where false")
    lab.append(table, 2)
    lab.sql(f"delete from {table} where id >= 0")
    lab.sql(f"insert into {table} select * from {table} where false")
    make_old(lab)
    assert trashed(lab, table) == set()
    assert lab.lw.run("expire", table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}).state is (
        RunState.DONE
    )


@pytest.mark.parametrize(
    ("name", "implementation"),
    [("default_iceberg", "SparkCatalog"), ("default_rewrite_catalog", "SparkRewriteTableCatalog")],
)
def test_a_catalog_that_iceberg_made_by_itself_is_nobodys(lab: Lab, name: str, implementation: str) -> None:
    """One for reads by path, one for its own rewrites: they stay in the session, and hold no tables of anyone's."""
    table = lab.messy(files=2, days=1)
    key = f"spark.sql.catalog.{name}"
    lab.spark.conf.set(key, f"org.apache.iceberg.spark.{implementation}")
    try:
        assert name not in lab.lw.lake.catalogs()
        assert trashed(lab, table) == set()
    finally:
        lab.spark.conf.unset(key)


def test_files_of_a_checkpoint_that_flink_has_not_committed_stay(lab: Lab) -> None:
    """A job was down for longer than the grace. It commits its last checkpoint after the restart: the files must be there."""
    job, operator = "0123456789abcdef0123456789abcdef", "feca28aff5a3958840bee985ee7de4d3"
    table = lab.messy(files=4)
    jvm = lab.spark._jvm
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lab.spark._jsparkSession, table)
    checkpoint = loaded.newFastAppend().set("flink.job-id", job).set("flink.operator-id", operator)
    checkpoint.set("flink.max-committed-checkpoint-id", "16").commit()
    head = loaded.currentSnapshot().snapshotId()
    lab.append(table, 1, start=500_000)
    loaded.refresh()
    pending = loaded.currentSnapshot()
    staged = next(iter(pending.addedDataFiles(loaded.io()))).copy()
    loaded.manageSnapshots().rollbackTo(head).commit()
    loaded.expireSnapshots().expireSnapshotId(pending.snapshotId()).cleanExpiredFiles(False).commit()
    name = f"{loaded.location()}/metadata/{job}-{operator}-00000-0-17-00001.avro"
    output = loaded.io().newOutputFile(name)
    writer = jvm.org.apache.iceberg.ManifestFiles.write(2, loaded.spec(), output, None)
    writer.add(staged)
    writer.close()
    then = time.time() - OLD
    for path in folder(lab, table).rglob("*"):
        os.utime(path, (then, then))
    orphan = put(folder(lab, table) / "data" / "orphan.parquet")
    found = trashed(lab, table)
    assert normal(orphan) in found
    assert normal(name) not in found
    assert normal(staged.location()) not in found, "Flink would commit a file that is gone"
