"""Spark writes, Lakewarden runs every job, and each small reader must see the same rows before and after each."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from lakewarden.model.run import RunState
from tests.interop.jobs import MUST_WORK, STEPS
from tests.interop.lake import Lake, lake
from tests.interop.places import BARE, EVERYWHERE, FILE, S3, Place, place
from tests.interop.readers import READERS, CannotRead, Reader, reader
from tests.interop.report import Limit, Report

COLUMNS = (
    "id bigint, name string, amount double, price decimal(18, 3), day date, at timestamp_ntz, flag boolean"
)
FOLDERS = {FILE: "file", BARE: "bare", S3: "s3"}
# What a reader is known to be unable to do, and why. Any other failure is red, also one before the first job.
LIMITS = {
    ("duckdb", S3, 2): "its HTTP extension is not among the packages",
    ("chdb", S3, 2): "icebergLocal reads a disk",
    ("datafusion", BARE, 2): "it opens no path without a scheme",
    (
        "chdb",
        FILE,
        3,
    ): "it reads no deletion vectors (position deletes are supported only for parquet format)",
    ("daft", FILE, 3): "it reads no deletion vectors (it takes the Puffin file for Parquet)",
}


@dataclass
class Judge:
    """One reader and what it saw: equal so far, or the first difference, or why it cannot read the table."""

    reader: Reader
    wrong: str = ""
    limit: str = ""
    before: object = None


def write(spark: SparkSession, table: str, number: int) -> None:
    """Three small files and deleted rows: position deletes, or vectors where the version has them."""
    for part in range(3):
        first = (number * 3 + part) * 200
        spark.sql(
            f"insert into {table} select id, if(id % 11 = 0, null, concat('name-', id % 17)), id * 0.25d, "
            "cast(id * 0.125 as decimal(18, 3)), date_add(date'2024-03-01', cast(id % 3 as int)), "
            "cast('2024-03-01 00:00:00.000001' as timestamp_ntz) + make_dt_interval(0, 0, cast(id as int)), id % 2 = 0 "
            f"from range({first}, {first + 200}, 1, 1)"
        )
    # Of the first file only: compact leaves files that carry deletes to compact-deletes.
    spark.sql(
        f"delete from {table} where id % 13 = {number} and id between {number * 600} and {number * 600 + 199}"
    )


def judged(spark: SparkSession, beside: Lake, where: Place, judges: list[Judge], version: int) -> None:
    table = f"{beside.catalog}.db.t{version}"
    spark.sql(f"create namespace if not exists {beside.catalog}.db")
    spark.sql(
        f"create table {table} ({COLUMNS}) using iceberg partitioned by (day) tblproperties ("
        f"'format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
    )
    orphan = beside.plant_orphan(table, where.folder)
    for number, (name, job, policy) in enumerate(STEPS):
        if job in ("compact", "compact-deletes"):
            write(spark, table, number)
        for judge in judges:
            _look(judge, where, version, name, before=True)
        spark_before = beside.digest(table)
        run = beside.run(job, table, **policy)
        assert job not in MUST_WORK or run.state is RunState.DONE, f"{name} had nothing to do: {run.reason}"
        assert beside.digest(table) == spark_before, f"Spark sees other rows after {name}"
        for judge in judges:
            _look(judge, where, version, name, before=False)
    assert not orphan.exists(), "an old orphan is still there after sweep and purge"


def _look(judge: Judge, where: Place, version: int, step: str, before: bool) -> None:
    if judge.wrong or judge.limit:
        return
    try:
        seen = judge.reader.digest(where, f"db.t{version}")
    except CannotRead as error:
        judge.wrong = f"{'before' if before else 'after'} {step}: {error}"
        return
    if before:
        judge.before = seen
    elif seen != judge.before:
        judge.wrong = f"after {step} it sees {seen}, before {judge.before}"


def run(report: Report, spark: SparkSession, folder: Path) -> None:
    for label, version in [*((each, 2) for each in EVERYWHERE), (FILE, 3)]:
        here = folder / f"{FOLDERS[label]}-v{version}"
        failed: Exception | None = None
        with ExitStack() as stack:
            judges = [Judge(stack.enter_context(reader(name, folder))) for name in READERS]
            try:
                with place(label, here) as where, lake(spark, here, where.catalog_properties) as beside:
                    for judge in judges:
                        judge.limit = LIMITS.get((judge.reader.name, label, version), "")
                    judged(spark, beside, where, judges, version)
            except Exception as error:
                failed = error
        for judge in judges:
            with report.case(judge.reader.name, f"version {version}, every job", label) as result:
                if failed is not None:
                    raise failed
                if judge.limit:
                    raise Limit(f"{judge.reader.name}'s: {judge.limit}")
                assert not judge.wrong, judge.wrong
                result.text = f"{len(STEPS)} jobs, equal after each"
