"""Deleting on S3, from end to end: exactly the objects that nobody needs go, whatever their keys are and however they are spelled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from lakewarden import Lakewarden, clock
from lakewarden.errors import LakewardenError, Refused, Unreachable
from lakewarden.model.location import normal
from lakewarden.model.run import Run, RunState
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import FileState
from lakewarden.storage.generation_file import WITNESS
from lakewarden.storage.objects import Objects
from tests.support.faults import proxy
from tests.support.lab import Lab, lakewarden, told_to_tables
from tests.support.s3 import S3, Bucket
from tests.support.spark import add_catalog
from tests.tables.test_s3_tables import catalog_properties

pytestmark = pytest.mark.services

EXPIRE = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
AT_ONCE = {"delete_grace_hours": 0}
ANY = {"orphan_max_percent": 100}
# What people and tools have called files; all of it is part of the key.
ODD = [
    "a b.parquet",
    "a%20b.parquet",
    "a+b.parquet",
    "100%.parquet",
    "ünï-日本.parquet",
    "k=v/k2=a b/x.parquet",
    "#?&;'(x)~*.parquet",
    "deep/er/00000-0-x.parquet",
]


@dataclass
class S3Lab(Lab):
    """A lab whose warehouse is a bucket."""

    bucket: Bucket

    def objects(self, bucket: Bucket | None = None) -> dict[str, tuple[int, str]]:
        """Every object by its path in normal form, with its size and etag."""
        where = bucket or self.bucket
        found = [row for batch in Objects(where.server.io()).list(where.url) for row in batch.to_pylist()]
        mine = [row for row in found if not row["path"].endswith(WITNESS)]
        return {normal(row["path"]): (row["size"], row["stamp"]) for row in mine}

    def needed(self, table: str) -> set[str]:
        """Every file of the table, as Iceberg's own metadata tables tell."""
        asked = {
            "file_path": "all_files",
            "path": "all_manifests",
            "manifest_list": "snapshots",
            "file": "metadata_log_entries",
        }
        return {
            normal(row[0])
            for column, part in asked.items()
            for row in self.sql(f"select distinct {column} from {table}.{part}")
        }

    def key(self, path: str) -> str:
        return path.partition("://")[2].partition("/")[2]

    def purge(self, table: str, **policy: object) -> Run:
        return self.lw.run("purge", table, {**AT_ONCE, **policy})

    def sweep(self, table: str, **policy: object) -> Run:
        return self.lw.run("sweep", table, {**ANY, **policy})


@pytest.fixture
def lab(spark: SparkSession, s3_bucket: Bucket, tmp_path: Path) -> Iterator[S3Lab]:
    with new_lab(spark, s3_bucket, tmp_path) as made:
        yield made


@contextmanager
def new_lab(
    spark: SparkSession, bucket: Bucket, folder: Path, name: str | None = None, **properties: str
) -> Iterator[S3Lab]:
    """In a session of its own: every catalog of a session is asked before anything is deleted."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {**catalog_properties(bucket, folder), **properties}, name)
    # Spark loads a catalog with the settings of whichever session is active; asked in SQL, that is this one.
    alone.sql(f"show namespaces in {catalog}").collect()
    with lakewarden(alone, f"sqlite:///{folder}/state.db") as lw:
        yield S3Lab(alone, catalog, folder / "no-local-warehouse", lw, bucket)


@contextmanager
def later(**ago: float) -> Iterator[None]:
    """As if this much time had passed: what lies in the store was written long ago."""
    real, ahead = clock.now, timedelta(**ago)
    with patch("lakewarden.clock.now", lambda: real() + ahead):
        yield


def expired(lab: S3Lab, **properties: str) -> str:
    """A table whose first files only an expired snapshot needed."""
    table = lab.messy(files=2, days=2, **properties)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    run = lab.lw.run("expire", table, EXPIRE)
    assert run.state is RunState.DONE, run.reason
    return table


def refused(lab: S3Lab, job: str, table: str, *words: str) -> None:
    before = lab.objects()
    with pytest.raises(Refused) as error:
        lab.lw.run(job, table, {**ANY, **AT_ONCE})
    assert error.value.exit_code == 12
    for each in words:
        assert each in f"{error.value.message} {error.value.hint}", each
    assert lab.objects() == before


# ------------------------------------------------------------ the way it goes


@pytest.mark.main
def test_compact_expire_purge(lab: S3Lab) -> None:
    """A tag and a pin keep their snapshots readable; every other object that no snapshot needs goes, and nothing else."""
    table = lab.messy(files=8, days=2)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.sql(f"alter table {table} create tag audit as of version {ids[1]}")
    lab.lw.pin(table, snapshot_id=ids[4], holder="report", ttl="2h")
    assert lab.lw.run("compact", table).state is RunState.DONE
    rows = {
        each: lab.rows(table, each) for each in ("", f"version as of {ids[1]}", f"version as of {ids[4]}")
    }

    planned = {normal(each.path) for each in lab.lw.plan("expire", table, EXPIRE).trash}
    run = lab.lw.run("expire", table, EXPIRE)
    assert run.counters["snapshots_expired"] == 7, run.reason
    before = lab.objects()
    unneeded = set(before) - lab.needed(table)
    assert len([each for each in unneeded if each.endswith(".parquet")]) == 6
    assert lab.trash(table) == planned == unneeded
    plan = lab.lw.plan("purge", table, AT_ONCE)
    assert sum(each.to_dict()["files"] for each in plan.actions) == len(unneeded)
    assert lab.lw.run("purge", table).state is RunState.NOTHING_TO_DO, "the grace is not over"
    assert lab.objects() == before

    run = lab.purge(table)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["files_erased"] == len(unneeded)
    assert run.counters["bytes_erased"] == sum(before[path][0] for path in unneeded)
    assert lab.objects() == {path: each for path, each in before.items() if path not in unneeded}
    assert {each: lab.rows(table, each) for each in rows} == rows
    receipts = lab.lw.receipts(table, 1000)
    assert sorted(normal(each.path) for each in receipts) == sorted(unneeded)
    assert {each.run_id for each in receipts} == {run.id}
    found = lab.lw.fsck(table)
    assert found.healthy, found.findings

    again = lab.purge(table)
    assert again.state is RunState.NOTHING_TO_DO
    assert len(lab.lw.receipts(table, 1000)) == len(unneeded)


@pytest.mark.main
def test_sweep_finds_orphans_whatever_they_are_called(lab: S3Lab) -> None:
    """Partition values as odd as the orphans beside them; the young and what a writer holds stay."""
    table = lab.create("id bigint, s string", "s")
    for number, value in enumerate(["a b", "a%20b", "ü/x", "p+q=r", "#?&", "100%"]):
        lab.sql(f"insert into {table} values ({number}, '{value}')")
    rows, home = lab.rows(table), lab.key(lab.lw.view(table).location)
    live = set(lab.objects())
    odd = {f"{home}/data/{name}" for name in ODD} | {f"{home}/metadata/{ODD[1]}.avro"}
    for key in odd | {f"{home}/data/busy/{name}" for name in ODD}:
        lab.bucket.put(key)
    orphans = {normal(f"{lab.bucket.url}/{key}") for key in odd}

    assert lab.sweep(table).state is RunState.NOTHING_TO_DO, "the store says that they are new"
    with later(days=8):
        lab.lw.holds.heartbeat(table, "flink", prefixes=[f"{lab.bucket.url}/{home}/data/busy/"])
        run = lab.sweep(table)
        assert run.state is RunState.DONE, run.reason
        assert lab.trash(table) == orphans
        assert run.counters["skipped_active"] == len(ODD)
        kept = f"{lab.bucket.url}/{home}/data/{ODD[2]}"
        assert lab.lw.restore(table, kept).files == 1
        orphans.discard(normal(kept))
        before = lab.objects()
        run = lab.purge(table)
        assert run.counters["files_erased"] == len(orphans), run.reason
        assert lab.objects() == {path: each for path, each in before.items() if path not in orphans}
        assert live < set(lab.objects())
        assert lab.sweep(table).state is RunState.NOTHING_TO_DO, "what was restored is left alone"
        assert lab.purge(table).state is RunState.NOTHING_TO_DO
    assert lab.rows(table) == rows
    assert {normal(each.path) for each in lab.lw.receipts(table, 1000)} == orphans


def test_an_orphan_that_was_written_again_stays(lab: S3Lab) -> None:
    """The same name and the same size, another etag."""
    table = lab.messy(files=2, days=1)
    home = lab.key(lab.lw.view(table).location)
    lab.bucket.put(f"{home}/data/again.parquet", b"one")
    lab.bucket.put(f"{home}/data/same.parquet", b"one")
    with later(days=8):
        assert lab.sweep(table).counters["files_trashed"] == 2
        lab.bucket.put(f"{home}/data/again.parquet", b"two")
        lab.bucket.put(f"{home}/data/same.parquet", b"one")
        run = lab.purge(table)
    assert (run.counters["files_erased"], run.counters["files_kept"]) == (1, 1)
    assert normal(f"{lab.bucket.url}/{home}/data/again.parquet") in lab.objects()
    (kept,) = TrashedFiles(lab.lw.state).list(table, (FileState.KEPT,))
    assert kept.note == "changed since it was trashed: written again"


# ------------------------------------------------------------ s3 and s3a name the same object (iceberg#4652)


def add_file(lab: S3Lab, table: str, path: str, size: int) -> None:
    jvm = lab.spark._jvm
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lab.spark._jsparkSession, table)
    file = (
        jvm.org.apache.iceberg.DataFiles.builder(loaded.spec())
        .withPath(path)
        .withFormat("parquet")
        .withFileSizeInBytes(size)
        .withRecordCount(1)
        .build()
    )
    loaded.newAppend().appendFile(file).commit()


def test_files_the_metadata_spells_s3a(lab: S3Lab) -> None:
    table = lab.create(partition="")
    lab.append(table, 2, days=1)
    path = lab.data_files(table)[0]
    body = Objects(lab.bucket.server.io()).read(path)
    copy = path.replace(".parquet", "-copy.parquet")
    lab.bucket.put(lab.key(copy), body)
    add_file(lab, table, copy.replace("s3://", "s3a://"), len(body))
    rows, live = lab.rows(table), set(lab.objects())
    assert normal(copy) in live
    lab.bucket.put(lab.key(copy).replace("copy", "orphan"))
    orphan = normal(copy.replace("copy", "orphan"))
    with later(days=8):
        assert lab.sweep(table).counters["files_trashed"] == 1
        assert lab.trash(table) == {orphan}
        assert lab.purge(table).counters["files_erased"] == 1
    assert set(lab.objects()) == live
    assert lab.rows(table) == rows
    assert lab.lw.fsck(table).healthy

    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    lab.lw.run("expire", table, EXPIRE)
    assert normal(copy) in lab.trash(table)
    lab.purge(table)
    assert normal(copy) not in lab.objects(), "deleted by the name the metadata has for it"
    assert set(lab.objects()) == lab.needed(table)


def test_a_location_that_changed_its_spelling(lab: S3Lab) -> None:
    """Written as s3a, listed as s3; and the other way round."""
    place = f"{lab.bucket.name}/wh/moved"
    lab.sql(f"create namespace {lab.catalog}.db")
    table = lab.table()
    lab.sql(f"create table {table} (id bigint, s string, d date) using iceberg location 's3a://{place}'")
    lab.append(table, 2, days=1)
    lab.sql(f"alter table {table} set location 's3://{place}'")
    lab.append(table, 1, days=1, start=10_000)
    assert {path.partition(":")[0] for path in lab.data_files(table)} == {"s3", "s3a"}
    lab.bucket.put("wh/moved/data/orphan.parquet")
    rows, live = lab.rows(table), set(lab.objects())
    orphan = normal(f"s3://{place}/data/orphan.parquet")
    with later(days=8):
        for spelling in ("s3", "s3a"):
            lab.sql(f"alter table {table} set location '{spelling}://{place}'")
            plan = lab.lw.plan("sweep", table, ANY)
            assert [normal(each.path) for each in plan.trash] == [orphan]
        lab.sweep(table)
        assert lab.purge(table).counters["files_erased"] == 1
    assert live - set(lab.objects()) == {orphan}
    assert lab.rows(table) == rows


def test_a_file_another_table_names_in_the_other_spelling_is_kept(lab: S3Lab) -> None:
    table = expired(lab)
    again = next(each for each in lab.lw.trash(table, 1000).files if each.kind == "data")
    other = f"{lab.catalog}.db.other"
    lab.sql(f"create table {other} (id bigint, s string, d date) using iceberg")
    add_file(lab, other, again.path.replace("s3://", "s3a://"), again.size or 0)
    run = lab.purge(table)
    assert run.counters["files_kept"] == 1
    assert normal(again.path) in lab.objects()
    assert lab.rows(other)


# ------------------------------------------------------------ what is refused, objects untouched


@pytest.mark.parametrize("job", ["sweep", "purge"])
def test_metadata_of_a_table_no_catalog_knows(lab: S3Lab, job: str) -> None:
    table = expired(lab)
    view = lab.lw.view(table)
    own = Objects(lab.bucket.server.io()).read(view.metadata_location)
    foreign = own.replace(view.uuid.encode(), b"11111111-2222-3333-4444-555555555555")
    lab.bucket.put(f"{lab.key(view.location)}/metadata/00009-x.metadata.json", foreign)
    refused(lab, job, table, "00009-x.metadata.json", "11111111-2222", view.uuid)


@pytest.mark.parametrize("job", ["sweep", "purge"])
@pytest.mark.parametrize("where", ["s3://{}/data/inner", "s3a://{}/data/inner", "s3a://{}", "s3n://{}/.."])
def test_two_tables_in_one_prefix(lab: S3Lab, job: str, where: str) -> None:
    table = expired(lab)
    location = lab.lw.view(table).location
    place = where.format(location.removeprefix("s3://"))
    if place.endswith("/.."):
        place = place.removesuffix("/..").rpartition("/")[0]
    inner = f"{lab.catalog}.db.inner"
    lab.sql(f"create table {inner} (id bigint) using iceberg location '{place}'")
    refused(lab, job, table, inner, table, place)


def test_a_table_in_two_buckets(lab: S3Lab, tmp_path: Path) -> None:
    """A second bucket may be another name of the first one, as an access point is. The operator says which."""
    table = lab.messy(files=2, days=1)
    old, new = lab.bucket, lab.bucket.server.bucket()
    lab.sql(f"alter table {table} set location '{new.url}/moved'")
    lab.append(table, 1, days=1, start=10_000)
    new.put("moved/data/orphan.parquet")
    before = lab.objects(old) | lab.objects(new)
    with later(days=8), pytest.raises(Refused) as found:
        lab.sweep(table)
    assert old.url in found.value.message and new.url in found.value.message
    assert f"{new.url} != {old.url}" in found.value.hint
    rows = lab.rows(table)
    paths = {"aliases": [f"{new.url} != {old.url}"]}
    config = {"state": {"url": f"sqlite:///{tmp_path}/state.db"}, "paths": paths}
    with Lakewarden(config, spark=lab.spark, environ={}) as lw, later(days=8):
        assert lw.run("sweep", table, ANY).counters["files_trashed"] == 1
        assert lw.run("purge", table, AT_ONCE).counters["files_erased"] == 1
    gone = set(before) - set(lab.objects(old) | lab.objects(new))
    assert gone == {normal(f"{new.url}/moved/data/orphan.parquet")}
    assert lab.rows(table) == rows


# ------------------------------------------------------------ a store in trouble


def states(lab: S3Lab, table: str) -> set[str]:
    return {str(each.state) for each in TrashedFiles(lab.lw.state).list(table, tuple(FileState), 1000)}


@pytest.mark.parametrize("job", ["sweep", "purge"])
def test_credentials_that_ran_out(lab: S3Lab, job: str) -> None:
    """As a catalog hands them out: the table was read with the last ones, and these are no good."""
    _needs_a_server_that_checks(lab)
    table = expired(lab)
    before = lab.objects()
    with told_to_tables({"s3.secret-access-key": "worn-out"}), pytest.raises(Unreachable) as error:
        lab.lw.run(job, table, {**ANY, **AT_ONCE})
    assert f"bucket {lab.bucket.name}: SignatureDoesNotMatch" in error.value.message
    assert "worn-out" not in f"{error.value.message} {error.value.hint}"
    assert lab.objects() == before
    assert states(lab, table) == {"trashed"}
    assert lab.purge(table).state is RunState.DONE, "with the right ones it goes on"


@pytest.mark.nightly
def test_wrong_credentials(lab: S3Lab, tmp_path: Path) -> None:
    """Slow because Iceberg asks for the metadata twenty times."""
    _needs_a_server_that_checks(lab)
    table = expired(lab)
    before, snapshots = lab.objects(), lab.snapshots(table)
    wrong = {"s3.secret-access-key": "not-the-secret"}
    with new_lab(lab.spark, lab.bucket, tmp_path, lab.catalog, **wrong) as outsider:
        with pytest.raises(LakewardenError) as error:
            outsider.lw.run("purge", table, AT_ONCE)
        assert "signature" in error.value.message.lower(), error.value.message
        assert "not-the-secret" not in f"{error.value.message} {error.value.hint}"
    assert lab.objects() == before
    assert lab.snapshots(table) == snapshots
    assert states(lab, table) == {"trashed"}


def _needs_a_server_that_checks(lab: S3Lab) -> None:
    if not lab.bucket.server.checks_credentials:
        pytest.skip("moto checks no credentials")


def test_a_bucket_that_is_gone_is_not_taken_for_files_that_are_gone(lab: S3Lab) -> None:
    """It may be back tomorrow, with everything in it."""
    other = lab.bucket.server.bucket()
    table = expired(lab, **{"write.data.path": f"{other.url}/data"})
    lab.lw.set_policy(table, {"own_places": [f"{other.url}/data"]})
    assert [each for each in lab.trash(table) if other.name in each]
    before, theirs = lab.objects(), lab.objects(other)
    for path in theirs:
        other.client.delete_object(Bucket=other.name, Key=path.partition(f"/{other.name}/")[2])
    other.client.delete_bucket(Bucket=other.name)
    with pytest.raises(Unreachable, match=other.name):
        lab.purge(table)
    assert lab.lw.runs(table)[0].state is RunState.FAILED
    assert states(lab, table) == {"trashed"}
    assert lab.objects() == before
    assert lab.lw.receipts(table) == ()


def test_a_busy_store_is_asked_again(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    bucket = s3.bucket()
    # Requests go side by side, so one of them may meet every third number several times in a row.
    patient = {"s3.retry.num-retries": "8"}
    with (
        proxy(s3.port) as faults,
        new_lab(spark, bucket, tmp_path, **{**s3.io(faults.endpoint), **patient}) as lab,
    ):
        table = expired(lab)
        marked = lab.trash(table)
        faults.busy_every = 3
        run = lab.purge(table)
        assert run.counters["files_erased"] == len(marked), run.reason
        assert not marked & set(lab.objects())


def test_an_object_the_store_will_not_delete_stays_trashed(
    spark: SparkSession, s3: S3, tmp_path: Path
) -> None:
    bucket = s3.bucket()
    with proxy(s3.port) as faults, new_lab(spark, bucket, tmp_path, **s3.io(faults.endpoint)) as lab:
        table = expired(lab)
        marked = lab.lw.trash(table, 1000).files
        stuck = marked[0].path
        faults.refuse_keys = {lab.key(stuck)}
        run = lab.purge(table)
        assert run.state is RunState.PARTIAL
        assert stuck in run.reason and "InternalError: try again" in run.reason
        assert lab.trash(table) == {normal(stuck)}
        assert len(lab.lw.receipts(table, 1000)) == len(marked) - 1
        faults.refuse_keys = set()
        assert lab.purge(table).state is RunState.DONE
        receipts: list[Any] = [each.path for each in lab.lw.receipts(table, 1000)]
        assert sorted(receipts) == sorted(each.path for each in marked), "each has one"
