"""Paimon tables on S3: Paimon's library reaches them by its own S3, the kernels by pyarrow, listing and deleting by botocore."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from lakewarden import clock
from lakewarden.errors import Unreachable
from lakewarden.jobs.verify.result import VerifyResult
from lakewarden.model.run import Run, RunState
from lakewarden.model.table import TableRef
from lakewarden.spark.jars import ensure_jars
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from tests.support.paimon import lakewarden
from tests.support.paimon_s3 import BucketLab, bucket_lab, s3_properties
from tests.support.ports import free_port
from tests.support.s3 import Bucket
from tests.support.witness import later

pytestmark = pytest.mark.services

PACK = {"rewrite_min_input_files": 2}
FOLD = {"manifest_rewrite_min_manifests": 2}
EXPIRE = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
AT_ONCE = {"delete_grace_hours": 0}
ANY = {"orphan_max_percent": 100}
ODD = ["a b%20c", "ü/x+y#?&=;"]
TODAY = f"{clock.now():%Y-%m-%d}"


@pytest.fixture
def lab(spark: SparkSession, s3_bucket: Bucket, tmp_path: Path) -> Iterator[BucketLab]:
    with bucket_lab(spark, s3_bucket, tmp_path) as made:
        yield made


def done(lab: BucketLab, job: str, table: str, policy: dict[str, object]) -> Run:
    """The run, after which Paimon's own reader finds the rows it found before."""
    rows = lab.rows(table)
    run = lab.lw.run(job, table, policy)
    assert run.state is RunState.DONE, run.reason
    assert lab.rows(table) == rows
    return run


def hints(paths: set[str]) -> set[str]:
    return {path for path in paths if not path.endswith(("EARLIEST", "LATEST"))}


def purge(lab: BucketLab, table: str) -> None:
    """Exactly what is in the trash goes."""
    before, trashed = lab.objects(), lab.trash(table)
    run = done(lab, "purge", table, AT_ONCE)
    assert run.counters["files_erased"] == len(trashed) > 0
    gone = {f"{lab.place(table)}/{name}" for name in trashed}
    assert lab.objects() == {path: told for path, told in before.items() if path not in gone}


def expire_and_purge(lab: BucketLab, table: str) -> None:
    """The same objects are left as by Paimon's own expiry, here of a copy."""
    with lab.twin(table) as (twin, place):
        assert lab.maker.ownExpire(twin, 1) > 0
        expected = lab.below(place)
    planned = lab.lw.plan("expire", table, EXPIRE).trash
    done(lab, "expire", table, EXPIRE)
    assert {each.path.removeprefix(f"{lab.place(table)}/") for each in planned} == lab.trash(table)
    purge(lab, table)
    assert hints(lab.on_disk(table)) == hints(expected)


@pytest.mark.main
def test_an_append_table_is_packed_and_tidied(lab: BucketLab) -> None:
    table = lab.create()
    for number in range(4):
        lab.maker.write(lab.load(table), number * 10, 10, ODD[number % 2], False)
    untouched = lab.objects()
    plan = lab.lw.plan("compact", table, PACK)
    assert len(plan.actions) == 2
    assert lab.objects() == untouched

    run = done(lab, "compact", table, PACK)
    assert (run.counters["files_compacted"], run.counters["files_added"]) == (4, 2)
    assert {each["name"].rpartition(".")[2] for each in lab.files(table)} == {"parquet"}
    found = lab.lw.verify(table, run.snapshot_ids[0])
    assert found.state is VerifyResult.PROVEN, found.reason
    done(lab, "rewrite-manifests", table, FOLD)
    expire_and_purge(lab, table)
    assert lab.lw.run("sweep", table, ANY).state is RunState.NOTHING_TO_DO
    checkup = lab.lw.fsck(table)
    assert checkup.healthy, checkup.findings


def test_buckets_with_primary_keys_are_merged(lab: BucketLab) -> None:
    """By Paimon's engine in Spark's tasks, which reach the bucket with the properties the driver's table has."""
    table = lab.create("orders", keyed=True, **{"write-only": "true"})
    lab.append(table, 2, days=1)
    lab.delete(table, 0, 5)
    run = done(lab, "compact", table, PACK)
    assert (run.counters["buckets_merged"], run.counters["files_added"]) == (2, 2)
    done(lab, "rewrite-manifests", table, FOLD)
    expire_and_purge(lab, table)


def test_orphans_tags_and_pins(lab: BucketLab) -> None:
    table = lab.create()
    lab.append(table, 4, days=2)
    lab.lw.holds.tag(table, "then", snapshot_id=2, forever=True)
    then = lab.rows(table, tag="then")
    assert then == lab.rows(table, 2)
    number = "11111111-1111-1111-1111-111111111111"
    orphans = {
        f"dt=2024-01-01/bucket-0/data-{number}-0.parquet",
        f"dt=a b%2Fc/bucket-0/data-{number}-0.parquet",
        f"manifest/manifest-{number}-0",
        f"manifest/manifest-list-{number}-0",
    }
    for name in orphans | {"dt=2024-01-01/notes.txt", "snapshot/.snapshot-9.1234.tmp"}:
        lab.put(table, name)
    assert lab.lw.run("sweep", table, ANY).state is RunState.NOTHING_TO_DO, "the store says that they are new"
    with later(days=8):
        done(lab, "sweep", table, ANY)
        assert lab.trash(table) == orphans
        assert lab.lw.restore(table, f"{lab.place(table)}/manifest/manifest-{number}-0").files == 1
        purge(lab, table)
        assert lab.lw.run("sweep", table, ANY).state is RunState.NOTHING_TO_DO, "what was restored stays"

    with lab.lw.pin(table, snapshot_id=3, holder="report"):
        assert done(lab, "expire", table, EXPIRE).counters["snapshots_expired"] == 2
        purge(lab, table)
        assert [each.id for each in lab.lw.view(table).snapshots] == [3, 4]
    assert lab.rows(table, tag="then") == then
    lab.lw.holds.untag(table, "then")  # leaves a mark of the empty folder, which is no tag
    assert [each.name for each in lab.lw.view(table).refs] == ["main"]


def test_partitions_whose_time_is_over(lab: BucketLab) -> None:
    table = lab.create()
    for number, day in enumerate(("2024-01-01", "2024-02-01", TODAY)):
        lab.maker.write(lab.load(table), number * 10, 10, day, False)
    rows = lab.rows(table)
    policy = {"partition_expiry_enabled": True, "partition_ttl_hours": "30d"}
    run = lab.lw.run("expire-partitions", table, policy)
    assert run.counters["partitions_dropped"] == 2, run.reason
    assert lab.rows(table) == [row for row in rows if row.endswith(TODAY)]
    expire_and_purge(lab, table)
    assert not [name for name in lab.on_disk(table) if name.startswith("dt=2024")]


# ------------------------------------------------------------ what cannot be reached


@pytest.mark.parametrize(
    ("wrong", "reason", "advice"),
    [
        (
            {"warehouse": "s3://no-such-bucket/wh"},
            "bucket does not exist. (S3 says 404)",
            "address and credentials",
        ),
        ({"s3.secret-key": "not-the-secret"}, "Forbidden (S3 says 403)", "address and credentials"),
        ({"s3.endpoint.region": "eu-north-1"}, "Bad Request (S3 says 400)", "set s3.endpoint.region"),
        ({"s3.endpoint": f"http://127.0.0.1:{free_port()}"}, "Connection refused", "check that it is up"),
        ({"warehouse": "s3a://lake/wh"}, "S3AFileSystem not found", "set warehouse to s3://lake/wh"),
        ({"warehouse": "oss://lake/wh"}, "scheme 'oss'", "paimon-oss: add it to `jars` under [spark]"),
    ],
    ids=["no such bucket", "wrong secret", "wrong region", "nobody there", "s3a", "no jar"],
)
def test_what_is_wrong_is_named(
    lab: BucketLab, tmp_path: Path, wrong: dict[str, str], reason: str, advice: str
) -> None:
    if not lab.bucket.server.checks_credentials:
        pytest.skip("moto checks no credentials")
    table = lab.create()
    before = lab.objects()
    properties = {**s3_properties(lab.bucket), "warehouse": f"{lab.bucket.url}/wh", **wrong}
    with lakewarden(lab.spark, tmp_path, **properties) as lw, pytest.raises(Unreachable) as error:
        lw.run("compact", table)
    message = error.value.message
    assert message.startswith(f"cannot reach catalog pm ({properties['warehouse']}")
    assert reason in message and advice in error.value.hint
    assert "not-the-secret" not in message
    assert lab.objects() == before


@pytest.mark.nightly  # everybody waits for the store
def test_a_store_that_dies_at_the_commit(spark: SparkSession, s3_bucket: Bucket, tmp_path: Path) -> None:
    """Nobody can say whether it happened, so nothing is removed; the next run finds out and goes on."""
    if not s3_bucket.server.checks_credentials:
        pytest.skip("moto forgets its objects")
    with bucket_lab(spark, s3_bucket, tmp_path, **{"s3.retry.num-retries": "0"}) as lab:
        table = lab.create(**{"commit.max-retries": "0"})
        lab.append(table, 2, days=1)
        rows, before = lab.rows(table), lab.on_disk(table)
        real = PaimonCatalogs.committing

        @contextmanager
        def dying(self: PaimonCatalogs, ref: TableRef) -> Iterator[Any]:
            with real(self, ref) as loaded:
                s3_bucket.server.kill()
                yield loaded

        try:
            with patch.object(PaimonCatalogs, "committing", dying):
                run = lab.lw.run("compact", table, PACK)
        finally:
            s3_bucket.server.start()
        assert run.state is RunState.UNKNOWN, run.reason
        outputs = lab.on_disk(table) - before
        assert [name for name in outputs if name.endswith(".parquet")]
        assert lab.rows(table) == rows
        done(lab, "compact", table, PACK)
        expire_and_purge(lab, table)
        with later(days=8):
            lab.lw.run("sweep", table, ANY)
            assert lab.trash(table) <= outputs


@pytest.mark.nightly  # a session of its own
def test_a_session_without_the_jar(lab: BucketLab, tmp_path: Path) -> None:
    jars = ensure_jars(["base", "paimon"])
    told = {"format": "paimon", "warehouse": f"{lab.bucket.url}/wh", **s3_properties(lab.bucket)}
    lines = "".join(f'"{key}" = "{value}"\n' for key, value in told.items())
    config = tmp_path / "lakewarden.toml"
    config.write_text(
        f'[spark]\njars = {[str(each) for each in jars]}\nmaster = "local[1]"\n[catalogs.pm]\n{lines}'
    )
    call = [sys.executable, "-m", "lakewarden.cli", "--config", str(config), "show", "pm.db.events"]
    said = subprocess.run(call, capture_output=True, text=True, check=False)
    told_plainly = " ".join(said.stderr.split())
    assert said.returncode == 2, said.stderr
    assert f"reach catalog pm ({lab.bucket.url}/wh" in told_plainly
    assert "paimon-s3: add it to `jars` under [spark]" in told_plainly


def test_properties_paimon_wants_are_asked_for(lab: BucketLab, tmp_path: Path) -> None:
    """Without them its library says that it has no way to S3 at all."""
    properties = {"warehouse": f"{lab.bucket.url}/wh", "s3.endpoint": lab.bucket.server.endpoint}
    with lakewarden(lab.spark, tmp_path, **properties) as lw, pytest.raises(Unreachable) as error:
        lw.tables("pm")
    assert "set s3.access-key and s3.secret-key" in error.value.hint
