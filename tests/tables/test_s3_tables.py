"""A table on S3, maintained like any other: Spark writes through Iceberg's S3FileIO, the kernels through pyarrow, deletions through botocore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.jobs.history import PREFIX
from lakewarden.model.run import RunState
from lakewarden.rewrite.read.store import Store
from lakewarden.storage.objects import Objects
from tests.support.lab import Lab, lakewarden
from tests.support.s3 import S3, Bucket
from tests.support.spark import add_catalog

pytestmark = pytest.mark.services


def catalog_properties(bucket: Bucket, folder: Path) -> dict[str, str]:
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "jdbc.schema-version": "V1",
        "clients": "1",
        "warehouse": f"{bucket.url}/wh",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        **bucket.server.io(),
    }


@pytest.fixture
def lab(spark: SparkSession, s3_bucket: Bucket, tmp_path: Path) -> Iterator[Lab]:
    catalog = add_catalog(spark, catalog_properties(s3_bucket, tmp_path))
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, catalog, tmp_path / "no-local-warehouse", lw)


def in_store(bucket: Bucket) -> set[str]:
    batches = Objects(bucket.server.io()).list(f"{bucket.url}/wh")
    return {path for batch in batches for path in batch["path"].to_pylist()}


@pytest.mark.main
def test_compacts(lab: Lab, s3_bucket: Bucket) -> None:
    table = lab.messy(files=8, days=2)
    before = lab.rows(table)
    assert len(lab.data_files(table)) == 16
    run = lab.lw.run("compact", table)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["files_added"] == 2
    assert lab.rows(table) == before
    after = lab.data_files(table)
    assert len(after) == 2 and all(path.startswith(f"{s3_bucket.url}/wh/") for path in after)
    assert set(after) <= in_store(s3_bucket)


def test_details_of_its_history_are_kept_beside_it(lab: Lab, s3_bucket: Bucket) -> None:
    config = lab.lw.config
    lab.lw.config = config.model_copy(
        update={"lineage": config.lineage.model_copy(update={"history": "table"})}
    )
    table = lab.messy(files=4, rows=5, days=1)
    before = {each.id: each.summary for each in lab.lw.view(table).snapshots}
    for kept in (2, 1):  # the second fold takes the first one's detail in, and its file away
        policy = {"snapshot_retention_hours": 0, "snapshot_min_retained": kept}
        lab.lw.run("expire", table, policy)
        assert lab.lw.run("compact-history", table, policy).state is RunState.DONE
    found = lab.lw.history.of(table, limit=None)
    assert {each.snapshot.id: each.snapshot.summary for each in found.entries} == before
    assert found.counts == {"live": 1, "archived": 0, "folded": 3}
    assert [path for path in in_store(s3_bucket) if PREFIX in path] == [each.path for each in found.details]


def test_odd_partition_values(lab: Lab, s3_bucket: Bucket) -> None:
    """Iceberg encodes them in its folder names, and every library on the way takes the name as it is."""
    values = ["a b", "a%20b", "x+y", "ü日本", "a/b", "#?&=;", "'quoted'", "100%", "dots..", "~*(x)"]
    table = lab.create("id bigint, p string", "p")
    for start in range(8):
        rows = ", ".join(
            f"({start * 100 + number}, '{value.replace(chr(39), chr(92) + chr(39))}')"
            for number, value in enumerate(values)
        )
        lab.sql(f"insert into {table} values {rows}")
    before = lab.rows(table)
    run = lab.lw.run("compact", table)
    assert run.state is RunState.DONE, run.reason
    assert lab.rows(table) == before
    after = lab.data_files(table)
    assert len(after) == len(values)
    assert set(after) <= in_store(s3_bucket), "the listing spells every file as the table does"
    assert all(Objects(s3_bucket.server.io()).stat(after))


def test_outputs_of_a_lost_commit_are_erased(lab: Lab, s3_bucket: Bucket) -> None:
    table = lab.messy(files=8, days=1)
    written: list[set[str]] = []

    def someone_deletes() -> None:
        written.append(in_store(s3_bucket))
        lab.sql(f"delete from {table} where id >= 0")

    before = in_store(s3_bucket)
    with lab.before_commit(someone_deletes):
        run = lab.lw.run("compact", table)
    assert run.state is not RunState.DONE
    outputs = {path for path in written[0] - before if path.endswith(".parquet")}
    assert outputs
    assert not outputs & in_store(s3_bucket)


def test_delete_files_are_worked_off(lab: Lab, s3_bucket: Bucket) -> None:
    table = lab.messy(files=4, days=1, **{"format-version": "2", "write.delete.mode": "merge-on-read"})
    lab.sql(f"delete from {table} where id % 10 = 3")
    before = lab.rows(table)
    run = lab.lw.run("compact-deletes", table)
    assert run.state is RunState.DONE, run.reason
    assert lab.rows(table) == before
    assert lab.sql(f"select count(*) from {table}.delete_files")[0][0] == 0


def test_a_location_pyarrow_cannot_spell_is_left_to_iceberg(
    spark: SparkSession, exact_s3: S3, tmp_path: Path
) -> None:
    """S3 and Iceberg take `//` in a key, pyarrow does not: Iceberg's own engine compacts such a table."""
    bucket = exact_s3.bucket()
    catalog = add_catalog(
        spark, {**catalog_properties(bucket, tmp_path), "warehouse": f"{bucket.url}//wh//x"}
    )
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(spark, catalog, tmp_path, lw)
        table = lab.messy(files=8, days=1)
        files, before = lab.data_files(table), lab.rows(table)
        assert all("//wh//x/" in path for path in files)
        assert all(Objects(exact_s3.io()).stat(files))
        run = lw.run("compact", table)
        assert run.state is RunState.DONE, run.reason
        assert len(lab.data_files(table)) < len(files)
        assert all("//wh//x/" in path for path in lab.data_files(table))
        assert lab.rows(table) == before
        assert all(Objects(exact_s3.io()).stat(files)), "what was replaced stays for its grace"


def test_what_a_kernel_takes_back_leaves_nothing(s3_bucket: Bucket) -> None:
    """pyarrow marks the folder of a file it deletes with an empty object, which nobody would ever remove."""
    store = Store(s3_bucket.server.io())
    path = f"{s3_bucket.url}/wh/db/t/data/p=a%20b/x+y.parquet"
    with store.create(path) as stream:
        stream.write(b"half")
    assert in_store(s3_bucket) == {path}
    assert store.under(path[:-9]) == [path]
    store.remove(path)
    store.remove(path)
    assert in_store(s3_bucket) == set()
