"""purge on real tables: what nobody needs goes once its grace is over; everything else stays, byte for byte."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakewarden import clock
from lakewarden.errors import LakewardenError, PolicyError, Refused
from lakewarden.jobs.purge import execute as purging
from lakewarden.model.location import local_path, normal
from lakewarden.model.run import Run, RunState, Trigger
from lakewarden.state.holds import Heartbeats, Pin, Pins
from lakewarden.state.runs import current_owner
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import FileState
from lakewarden.tables import lake_readings as neighbours
from tests.support.lab import Lab, lakewarden
from tests.support.spark import add_catalog, jdbc_warehouse

EXPIRE = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
NOW_POLICY = {"delete_grace_hours": 0}


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """In a session of its own: every catalog of a session is asked before anything is deleted, dead ones too."""
    alone = spark.newSession()
    warehouse = tmp_path / "warehouse"
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(warehouse)})
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(alone, catalog, warehouse, lw)


@pytest.fixture
def jdbc_lab(lab: Lab, tmp_path: Path) -> Lab:
    """On a catalog that renames tables and lets them choose their place; the other one is there, and empty."""
    lab.warehouse.mkdir()
    lab.sql(f"show namespaces in {lab.catalog}")
    return Lab(lab.spark, jdbc(lab.spark, tmp_path / "jdbc"), tmp_path / "jdbc" / "warehouse", lab.lw)


def jdbc(session: SparkSession, folder: Path) -> str:
    return jdbc_warehouse(session, folder).catalog


def expired(lab: Lab, **properties: str) -> str:
    """A table whose first files only an expired snapshot needed."""
    table = lab.messy(files=2, days=2, **properties)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    run = lab.lw.run("expire", table, EXPIRE)
    assert run.state is RunState.DONE, run.reason
    return table


def purge(lab: Lab, table: str, **policy: object) -> Run:
    return lab.lw.run("purge", table, {**NOW_POLICY, **policy})


def trashed(lab: Lab, table: str, kind: str = "") -> list[str]:
    """Paths on disk of what is in the trash."""
    found = lab.lw.trash(table, 1000).files
    return [str(local_path(each.path)) for each in found if not kind or each.kind == kind]


def states(lab: Lab, table: str) -> dict[str, str]:
    found = TrashedFiles(lab.lw.state).list(table, tuple(FileState), 1000)
    return {str(local_path(each.path)): str(each.state) for each in found}


def there(paths: list[str]) -> list[bool]:
    return [Path(path).exists() for path in paths]


def counters(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.counters.items() if key != "seconds" and value}


# ------------------------------------------------------------ the way it goes


@pytest.mark.main
def test_what_is_trashed_goes_after_its_grace_and_nothing_else(lab: Lab) -> None:
    table = expired(lab)
    rows, before = lab.rows(table), lab.on_disk()
    marked = trashed(lab, table)
    assert len(trashed(lab, table, "data")) == 4
    sizes = sum(before[path][0] for path in marked)

    run = lab.lw.run("purge", table)
    assert run.state is RunState.NOTHING_TO_DO
    assert "in the trash until" in run.plan["skipped"][0]["reason"]
    assert lab.on_disk() == before, "the grace is not over"

    run = purge(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert counters(run) == {"files_erased": len(marked), "bytes_erased": sizes}
    after = lab.on_disk()
    gone = set(before) - set(after)
    assert {path for path in gone if not path.endswith(".crc")} == set(marked)
    assert {path: each for path, each in before.items() if path in after} == after, "nothing else changed"
    assert lab.rows(table) == rows
    assert trashed(lab, table) == []


@pytest.mark.main
def test_every_deletion_has_one_receipt_and_the_journal_has_the_proof(lab: Lab) -> None:
    table = expired(lab)
    marked = trashed(lab, table)
    run = purge(lab, table)
    receipts = lab.lw.receipts(table, 1000)
    assert sorted(str(local_path(each.path)) for each in receipts) == sorted(marked)
    assert {each.run_id for each in receipts} == {run.id}
    assert {each.batch.cause for each in receipts} == {"expire"}
    _, steps = lab.lw.run_by_id(run.id)
    assert [step.name for step in steps] == ["erasing", "erased"]
    proof = steps[0].detail["proof"]
    view = lab.lw.view(table)
    assert proof["snapshot_ids"] == [each.id for each in view.snapshots]
    assert [each["metadata"] for each in proof["tables"]] == [view.metadata_location]
    again = purge(lab, table)
    assert again.state is RunState.NOTHING_TO_DO
    assert len(lab.lw.receipts(table, 1000)) == len(marked)


def test_a_plan_touches_nothing(lab: Lab) -> None:
    table = expired(lab)
    before = lab.on_disk()
    plan = lab.lw.plan("purge", table, NOW_POLICY)
    assert sum(action.to_dict()["files"] for action in plan.actions) == len(trashed(lab, table))
    assert lab.on_disk() == before


def test_folders_left_empty_are_removed_but_not_the_tables_own(lab: Lab) -> None:
    table = expired(lab)
    lab.sql(f"delete from {table}")
    assert lab.lw.run("expire", table, EXPIRE).state is RunState.DONE
    run = purge(lab, table)
    assert run.counters["folders_removed"] == 2
    folder = lab.warehouse / "db" / "events"
    assert sorted(each.name for each in folder.iterdir()) == ["data", "metadata"]
    assert list((folder / "data").iterdir()) == []


# ------------------------------------------------------------ what stays


@pytest.mark.main
def test_a_restored_file_stays_for_good(lab: Lab) -> None:
    table = expired(lab)
    kept, *others = trashed(lab, table, "data")
    assert lab.lw.restore(table, kept).files == 1
    purge(lab, table)
    assert there([kept]) == [True]
    assert not any(there(others))
    assert purge(lab, table).state is RunState.NOTHING_TO_DO
    assert there([kept]) == [True]


@pytest.mark.main
def test_a_file_that_another_table_names_again_is_kept(lab: Lab) -> None:
    table = expired(lab)
    again, *others = trashed(lab, table, "data")
    other = f"{lab.catalog}.db.other"
    lab.sql(f"create table {other} (id bigint, s string, d date) using iceberg")
    add_file(lab, other, again)
    run = purge(lab, table)
    assert run.counters["files_kept"] == 1
    assert there([again]) == [True]
    assert not any(there(others))
    assert states(lab, table)[again] == "kept"
    (kept,) = TrashedFiles(lab.lw.state).list(table, (FileState.KEPT,))
    assert kept.note == f"named again by {other}"
    assert len(lab.rows(other)) > 0
    lab.sql(f"drop table {other}")
    assert purge(lab, table).state is RunState.NOTHING_TO_DO, "this batch never deletes it"


def add_file(lab: Lab, table: str, path: str) -> None:
    jvm = lab.spark._jvm
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lab.spark._jsparkSession, table)
    file = (
        jvm.org.apache.iceberg.DataFiles.builder(loaded.spec())
        .withPath(path)
        .withFormat("parquet")
        .withFileSizeInBytes(Path(path).stat().st_size)
        .withRecordCount(100)
        .build()
    )
    loaded.newAppend().appendFile(file).commit()


@pytest.mark.main
def test_a_file_that_changed_since_is_kept(lab: Lab) -> None:
    table = expired(lab)
    longer, rewritten, *others = trashed(lab, table, "data")
    with Path(longer).open("ab") as file:
        file.write(b"more")
    content = Path(rewritten).read_bytes()
    Path(rewritten).unlink()
    Path(rewritten).write_bytes(content)
    run = purge(lab, table)
    assert run.counters["files_kept"] == 2
    assert there([longer, rewritten]) == [True, True]
    assert not any(there(others))
    notes = {each.path: each.note for each in TrashedFiles(lab.lw.state).list(table, (FileState.KEPT,))}
    assert all(note.startswith("changed since it was trashed") for note in notes.values())
    assert len(notes) == 2


def test_a_file_that_is_gone_already_counts_as_deleted(lab: Lab) -> None:
    table = expired(lab)
    gone, *others = trashed(lab, table, "data")
    Path(gone).unlink()
    run = purge(lab, table)
    assert run.state is RunState.DONE
    assert run.counters["files_missing"] == 1
    assert states(lab, table)[gone] == "missing"
    assert not any(there(others))


def test_what_a_writer_holds_stays_trashed_until_it_is_done(lab: Lab) -> None:
    table = expired(lab)
    view = lab.lw.view(table)
    held, *others = trashed(lab, table, "data")
    beats = Heartbeats(lab.lw.state)
    beats.beat(table, "etl", "host", (held,), timedelta(minutes=10), clock.now())
    plan = lab.lw.plan("purge", table, NOW_POLICY)
    assert [(each.count, each.reason) for each in plan.skipped] == [(1, "held by writer etl")]
    run = purge(lab, table)
    assert (run.state, run.counters["files_held"]) == (RunState.DONE, 1)
    assert "writer etl" in run.reason
    assert there([held]) == [True]
    assert not any(there(others))
    beats.stop(table, "etl")
    assert purge(lab, table).counters["files_erased"] == 1
    assert there([held]) == [False]
    assert lab.lw.view(table).uuid == view.uuid


def test_a_failing_delete_stays_trashed_and_is_tried_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = expired(lab)
    stuck, *_ = trashed(lab, table, "data")
    unlink = os.unlink

    def denied(path: str, **more: Any) -> None:
        """As a disk would answer whoever may not delete there. Tests may run as root, whom nothing is denied."""
        if path == stuck:
            raise PermissionError(13, "Permission denied", path)
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", denied)
    run = purge(lab, table)
    assert run.state is RunState.PARTIAL
    assert run.state.exit_code == 3
    assert run.counters["files_failed"] == 1
    assert stuck in run.reason and "Permission denied" in run.reason
    assert trashed(lab, table) == [stuck]
    assert lab.lw.trash(table).files[0].note == "not deleted: Permission denied"
    monkeypatch.undo()
    assert purge(lab, table).counters["files_erased"] == 1
    assert there([stuck]) == [False]


@pytest.mark.main
def test_what_a_dead_run_was_deleting_is_proven_again(lab: Lab) -> None:
    table = expired(lab)
    gone, again, *_ = trashed(lab, table, "data")
    owner = current_owner()
    lab.lw.journal.start(
        run_id="dead",
        table=table,
        job="purge",
        owner=replace(owner, pid=2**22 + 1),
        trigger=Trigger(),
        plan={},
        policy={},
        now=clock.now(),
    )
    files = TrashedFiles(lab.lw.state)
    (page,) = files.due(lab.lw.view(table).uuid, {"expire": timedelta()}, clock.now())
    every = page.column("id").to_pylist()
    files.begin_erasing(every, "dead", replace(owner, pid=2**22 + 1), clock.now())
    Path(gone).unlink()
    lab.sql(f"create table {lab.catalog}.db.other (id bigint, s string, d date) using iceberg")
    add_file(lab, f"{lab.catalog}.db.other", again)

    run = purge(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert (run.counters["files_missing"], run.counters["files_kept"]) == (0, 1)
    assert there([gone, again]) == [False, True]
    receipts = {str(local_path(each.path)): each.run_id for each in lab.lw.receipts(table, 1000)}
    assert len(receipts) == len(every) - 1 and receipts[gone] == "dead"
    dead = lab.lw.run_by_id("dead")[0]
    assert dead.state is RunState.PARTIAL and "1 file had been erased" in dead.reason


@pytest.mark.main
def test_a_file_named_again_between_two_batches_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = expired(lab)
    other = f"{lab.catalog}.db.other"
    monkeypatch.setattr(purging, "LOCAL_BATCH", 1)
    monkeypatch.setattr(neighbours, "FRESH_SECONDS", 0.0)  # the two batches are closer together than that
    real, last = purging.erase, trashed(lab, table, "data")[-1]

    def erase(*arguments: Any) -> Any:
        if not (lab.warehouse / "db" / "other").exists():
            lab.sql(f"create table {other} (id bigint, s string, d date) using iceberg")
            add_file(lab, other, last)
        return real(*arguments)

    monkeypatch.setattr(purging, "erase", erase)
    run = purge(lab, table)
    assert run.counters["files_kept"] == 1
    assert there([last]) == [True]
    _, steps = lab.lw.run_by_id(run.id)
    proofs = [step.detail["proof"] for step in steps if "proof" in step.detail]
    assert [len(proof["tables"]) for proof in proofs] == [1, 2], "the table that came meanwhile was read"


def test_a_file_restored_at_the_last_moment_stays(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = expired(lab)
    wanted = trashed(lab, table, "data")[0]
    real = purging.Purger._journal_intent

    def intent(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        assert lab.lw.restore(table, wanted).files == 1

    monkeypatch.setattr(purging.Purger, "_journal_intent", intent)
    run = purge(lab, table)
    assert run.state is RunState.DONE
    assert there([wanted]) == [True]
    assert states(lab, table)[wanted] == "restored"


def test_files_of_a_snapshot_that_is_pinned_after_all_stay(lab: Lab) -> None:
    table = expired(lab)
    before, view = lab.on_disk(), lab.lw.view(table)
    (batch_files, _), *_ = lab.lw.trash(table).batches
    lost = batch_files.batch.detail["snapshot_ids"][0]
    pin = Pin("p1", table, view.uuid, lost, "report", "", clock.now(), None)
    Pins(lab.lw.state).add(pin)
    run = purge(lab, table)
    assert run.state is RunState.NOTHING_TO_DO
    assert f"pinned by report: snapshot {lost}" in run.plan["skipped"][0]["reason"]
    assert lab.on_disk() == before
    Pins(lab.lw.state).remove("p1")
    assert purge(lab, table).state is RunState.DONE


def test_a_renamed_table_is_purged_under_its_new_name(jdbc_lab: Lab) -> None:
    table = expired(jdbc_lab)
    marked = trashed(jdbc_lab, table)
    renamed = f"{jdbc_lab.catalog}.db.renamed"
    jdbc_lab.sql(f"alter table {table} rename to db.renamed")
    run = purge(jdbc_lab, renamed)
    assert run.counters["files_erased"] == len(marked)
    assert not any(there(marked))
    assert jdbc_lab.rows(renamed)


def test_a_table_registered_in_two_catalogs(jdbc_lab: Lab, tmp_path: Path) -> None:
    """With one metadata file it is one table; once the two move apart, each may need what the other dropped."""
    table = expired(jdbc_lab)
    other = jdbc(jdbc_lab.spark, tmp_path / "second")
    jdbc_lab.sql(f"create namespace {other}.db")
    jvm = jdbc_lab.spark._jvm
    catalog = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(jdbc_lab.spark._jsparkSession, other)
    twin = jvm.org.apache.iceberg.catalog.TableIdentifier.parse("db.twin")
    catalog.registerTable(twin, jdbc_lab.lw.view(table).metadata_location)
    marked = trashed(jdbc_lab, table)
    jdbc_lab.sql(f"insert into {table} values (1, 'x', date'2024-03-01')")
    refused(jdbc_lab, table, f"{other}.db.twin", "same table")
    catalog.dropTable(twin, False)
    catalog.registerTable(twin, jdbc_lab.lw.view(table).metadata_location)
    assert purge(jdbc_lab, table).counters["files_erased"] == len(marked)


# ------------------------------------------------------------ what is refused, bytes untouched


def refused(lab: Lab, table: str, *words: str) -> None:
    before = lab.on_disk()
    with pytest.raises(Refused) as error:
        purge(lab, table)
    assert error.value.exit_code == 12
    for each in words:
        assert each in f"{error.value.message} {error.value.hint}", each
    assert lab.on_disk() == before


def test_a_table_without_garbage_collection(lab: Lab) -> None:
    table = expired(lab)
    lab.sql(f"alter table {table} set tblproperties ('gc.enabled'='false')")
    refused(lab, table, "gc.enabled")


@pytest.mark.parametrize("where", ["{table}", "{table}/data", "{table}/data/deep/er", "{table}/.."])
def test_a_location_that_is_shared(lab: Lab, tmp_path: Path, where: str) -> None:
    table = expired(lab)
    location = lab.lw.view(table).location
    other = jdbc(lab.spark, tmp_path / "other")
    lab.sql(f"create namespace {other}.db")
    place = os.path.normpath(where.format(table=location))
    lab.sql(f"create table {other}.db.intruder (id bigint) using iceberg location '{place}'")
    refused(lab, table, f"{other}.db.intruder", table, location, place, "folder of its own")


def test_metadata_of_a_table_no_catalog_knows(lab: Lab) -> None:
    table = expired(lab)
    lab.sql(f"create table {lab.catalog}.db.stranger (id bigint) using iceberg")
    stranger = lab.warehouse / "db" / "stranger"
    uuid = lab.lw.view(f"{lab.catalog}.db.stranger").uuid
    shutil.copy(
        stranger / "metadata" / "v1.metadata.json",
        lab.warehouse / "db" / "events" / "metadata" / "00001-x.metadata.json",
    )
    lab.sql(f"drop table {lab.catalog}.db.stranger")
    refused(lab, table, "00001-x.metadata.json", uuid, lab.lw.view(table).uuid)


def test_a_table_that_was_made_anew_under_the_same_name(lab: Lab) -> None:
    table = expired(lab)
    old = lab.lw.view(table).uuid
    aside = lab.warehouse / "db" / "aside"
    shutil.move(lab.warehouse / "db" / "events", aside)
    lab.messy(files=1)
    refused(lab, table, old, lab.lw.view(table).uuid, "lakewarden restore")
    lab.lw.restore(table, everything=True)
    assert purge(lab, table).state is RunState.NOTHING_TO_DO


@pytest.mark.main
def test_another_table_that_cannot_be_read(lab: Lab) -> None:
    table = expired(lab)
    other = f"{lab.catalog}.db.broken"
    lab.sql(f"create table {other} (id bigint) using iceberg")
    lab.sql(f"insert into {other} values (1)")
    (manifest_list,) = (lab.warehouse / "db" / "broken" / "metadata").glob("snap-*.avro")
    manifest_list.write_bytes(b"not avro")
    refused(lab, table, other, "cannot be read")


@pytest.mark.main
def test_a_live_manifest_that_is_gone_stops_expire_sweep_and_purge(lab: Lab) -> None:
    """Also where what it named was read before, and so is remembered."""
    table = expired(lab)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    assert not lab.lw.plan("expire", table, EXPIRE).empty
    manifest = Path(normal(lab.sql(f"select path from {table}.manifests")[0].path))
    manifest.rename(manifest.with_suffix(".away"))
    before = lab.on_disk()
    with pytest.raises(LakewardenError, match=manifest.name):
        lab.lw.run("expire", table, EXPIRE)
    with pytest.raises(LakewardenError, match=manifest.name):
        lab.lw.run("sweep", table, {"orphan_grace_hours": 24})
    refused(lab, table, manifest.name, "does not exist", "lakewarden fsck")
    assert lab.on_disk() == before
    manifest.with_suffix(".away").rename(manifest)
    assert lab.lw.run("expire", table, EXPIRE).state is RunState.DONE
    assert purge(lab, table).state is RunState.DONE


@pytest.mark.main
def test_a_grace_of_zero_that_nobody_asked_for_by_name(lab: Lab) -> None:
    table = expired(lab)
    before = lab.on_disk()
    with lakewarden(lab.spark, str(lab.lw.config.state.url), {"delete_grace_hours": 0}) as careless:
        with pytest.raises(PolicyError, match="below 1"):
            careless.run("purge", table)
        assert lab.on_disk() == before
        careless.set_policy(table, {"delete_grace_hours": 0})
        assert careless.run("purge", table).state is RunState.DONE


@pytest.mark.main
def test_hand_off_goes_first(lab: Lab) -> None:
    table = expired(lab)
    before = lab.on_disk()
    with pytest.raises(PolicyError, match="no Iceberg catalog cold is configured"):
        purge(lab, table, handoff_enabled=True, handoff_catalog="cold")
    cold = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(lab.warehouse.parent / "cold")})
    lab.sql(f"create namespace {cold}.db")  # a session of its own loads a catalog when it is first asked
    run = purge(lab, table, handoff_enabled=True, handoff_catalog=cold)
    assert run.state is RunState.NOTHING_TO_DO
    assert "is not in the colder tier" in run.plan["skipped"][0]["reason"]
    assert lab.on_disk() == before
