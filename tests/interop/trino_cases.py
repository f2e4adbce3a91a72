"""Trino writes (inserts, deletes, merges), Lakewarden runs every job, Trino's checksums must not change."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from lakewarden.model.run import RunState
from tests.interop.jobs import through_every_job
from tests.interop.lake import lake
from tests.interop.places import BARE, EVERYWHERE, Place, place
from tests.interop.report import Limit, Report
from tests.interop.trino import Trino, trino
from tests.support.s3 import REGION

COLUMNS = {
    "id": "bigint",
    "name": "varchar",
    "amount": "double",
    "price": "decimal(18, 3)",
    "day": "date",
    "at": "timestamp(6)",
    "flag": "boolean",
    "tags": "array(varchar)",
}


def catalog_properties(where: Place) -> dict[str, str]:
    found = {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": where.uri}
    if not where.on_s3:
        return {**found, "fs.hadoop.enabled": "true"}
    return {
        **found,
        "fs.native-s3.enabled": "true",
        "s3.endpoint": where.io["s3.endpoint"],
        "s3.region": REGION,
        "s3.path-style-access": "true",
        "s3.aws-access-key": where.io["s3.access-key-id"],
        "s3.aws-secret-key": where.io["s3.secret-access-key"],
    }


def write(engine: Trino, table: str, number: int) -> None:
    """Three small files, some deleted rows, and a merge: position deletes of version 2."""
    for part in range(3):
        first = (number * 3 + part) * 200
        engine.sql(
            f"insert into {table} select n, if(n % 11 = 0, null, 'name-' || cast(n % 17 as varchar)), n * 0.25e0, "
            f"cast(n * 0.125 as decimal(18, 3)), date '2024-03-01' + (n % 3) * interval '1' day, "
            f"timestamp '2024-03-01 00:00:00.000001' + n * interval '1' minute, n % 2 = 0, "
            f"array['a', cast(n as varchar)] from unnest(sequence({first}, {first + 199})) as t(n)"
        )
    # Of the first file only: compact leaves files that carry deletes to compact-deletes.
    first = number * 600
    engine.sql(f"delete from {table} where id % 13 = {number} and id between {first} and {first + 199}")
    engine.sql(
        f"merge into {table} t using (values ({number * 600 + 5}, 'merged-{number}')) as s(id, name) on t.id = s.id "
        "when matched then update set name = s.name when not matched then insert (id, name) values (s.id, s.name)"
    )


def case(spark: SparkSession, engine: Trino, folder: Path, location: str) -> str:
    with place(location, folder) as where, lake(spark, folder, where.catalog_properties) as beside:
        engine.create_catalog(beside.catalog, catalog_properties(where))
        try:
            table = f"{beside.catalog}.db.events"
            engine.sql(f"create schema {beside.catalog}.db")
            columns = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
            try:
                engine.sql(
                    f"create table {table} ({columns}) with (format_version = 2, partitioning = array['day'])"
                )
            except RuntimeError as error:
                if location == BARE and "scheme" in str(error).lower():
                    raise Limit(f"Trino's: a location needs a scheme ({error})") from error
                raise
            names = [f'"{name}"' for name in COLUMNS]
            return through_every_job(
                beside,
                table,
                folder,
                lambda: engine.digest(table, names),
                lambda number: write(engine, table, number),
            )
        finally:
            engine.sql(f"drop catalog {beside.catalog}")


def vectors(spark: SparkSession, engine: Trino, folder: Path, location: str) -> str:
    """Version 3 with deletion vectors: Trino 476 may fail to read them, but must read what Lakewarden made of them."""
    with place(location, folder) as where, lake(spark, folder, where.catalog_properties) as beside:
        table = f"{beside.catalog}.db.v3"
        spark.sql(f"create namespace {beside.catalog}.db")
        spark.sql(
            f"create table {table} (id bigint) using iceberg "
            "tblproperties ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
        )
        spark.sql(f"insert into {table} select /*+ coalesce(1) */ id from range(100)")
        spark.sql(f"delete from {table} where id % 10 = 0")
        engine.create_catalog(beside.catalog, catalog_properties(where))
        try:
            before = _told_of_vectors(engine, table)
            run = beside.run("compact-deletes", table)
            assert run.state is RunState.DONE, f"compact-deletes had nothing to do: {run.reason}"
            after = _rows(engine, table)
        finally:
            engine.sql(f"drop catalog {beside.catalog}")
    assert after == _ROWS_LEFT, f"after compact-deletes {after}; right is {_ROWS_LEFT}"
    return f"after compact-deletes {after}; with deletion vectors {before}"


_ROWS_LEFT = "90 rows, sum 4500"


def _told_of_vectors(engine: Trino, table: str) -> str:
    """What Trino reads, or why it does not."""
    try:
        return _rows(engine, table)
    except RuntimeError as error:
        return f"an error ({error})"


def _rows(engine: Trino, table: str) -> str:
    rows, total = engine.sql(f"select count(*), sum(id) from {table}")[0]
    return f"{rows} rows, sum {total}"


def run(report: Report, spark: SparkSession, folder: Path) -> None:
    try:
        with trino(folder / "server") as engine:
            for number, location in enumerate(EVERYWHERE):
                with report.case("trino", "insert, delete, merge; every job", location) as result:
                    result.text = case(spark, engine, folder / f"lake-{number}", location)
            with report.case("trino", "version 3", EVERYWHERE[0]) as result:
                result.text = vectors(spark, engine, folder / "lake-v3", EVERYWHERE[0])
    except (RuntimeError, TimeoutError, OSError) as error:
        with report.case("trino", "starts", "-"):
            raise error
