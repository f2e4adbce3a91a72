"""Tables of a Hive catalog: Spark writes and judges, Lakewarden runs every job."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.interop.hive import hive
from tests.interop.jobs import through_every_job
from tests.interop.lake import lake
from tests.interop.readers_cases import COLUMNS, write
from tests.interop.report import Report


def run(report: Report, spark: SparkSession, folder: Path) -> None:
    with (
        report.case("hive", "Hive catalog; every job", "file:///") as result,
        hive(folder / "hms") as metastore,
    ):
        properties = {"type": "hive", "uri": metastore.uri, "warehouse": metastore.warehouse}
        with lake(spark, folder, properties) as beside:
            table = f"{beside.catalog}.db.events"
            spark.sql(f"create namespace {beside.catalog}.db")
            spark.sql(
                f"create table {table} ({COLUMNS}) using iceberg partitioned by (day) "
                "tblproperties ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
            )
            result.text = through_every_job(
                beside,
                table,
                folder,
                lambda: beside.digest(table),
                lambda number: write(spark, table, number),
            )
