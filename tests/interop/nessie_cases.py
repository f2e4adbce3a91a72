"""Nessie owns the deletion of files: rewrites work on its tables, and every job that deletes is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from lakewarden.errors import LakewardenError
from lakewarden.model.run import RunState
from tests.interop import parts
from tests.interop.lake import EAGER, Lake, lake
from tests.interop.process import QUICK_JAVA, Server
from tests.interop.readers_cases import COLUMNS, write
from tests.interop.report import Report
from tests.support.ports import answers, free_port


@contextmanager
def nessie(folder: Path) -> Iterator[str]:
    """The address of its Iceberg REST API; the tables are in a folder."""
    (jar,) = parts.artifacts(parts.NESSIE)
    port = free_port()
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.port": free_port(),
        "quarkus.management.host": "127.0.0.1",
        "nessie.version.store.type": "IN_MEMORY",
    }
    options = [f"-D{key}={value}" for key, value in settings.items()]
    java = str(parts.java_25() / "bin" / "java")
    server = Server("nessie", [java, "-Xmx768m", *QUICK_JAVA, *options, "-jar", str(jar)], folder)
    try:
        server.start(lambda: answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()


def refused(beside: Lake, job: str, table: str) -> None:
    """By an error or by the run's state; either way the reason says that garbage collection is not ours."""
    try:
        run = beside.lw.run(job, table, EAGER)
    except LakewardenError as error:
        said = f"{error} {error.hint}"
    else:
        assert run.state is RunState.REFUSED, f"{job} ended {run.state.value}: {run.reason}"
        said = str(run.reason)
    assert "gc.enabled" in said or "GC" in said, (
        f"{job} was refused without naming garbage collection: {said}"
    )
    assert "Nessie" in said, f"{job} was refused without naming Nessie: {said}"


def made_by_another_client(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """A namespace with an empty table, by a client of its own: ours has looked at the catalog before."""
    jvm = spark._jvm
    other = jvm.org.apache.iceberg.nessie.NessieCatalog()
    other.setConf(spark._jsparkSession.sessionState().newHadoopConf())
    other.initialize("other", dict(properties))
    name = jvm.org.apache.iceberg.catalog.TableIdentifier.parse("later.made")
    other.createNamespace(name.namespace())
    field = jvm.org.apache.iceberg.types.Types.NestedField.optional(
        1, "id", jvm.org.apache.iceberg.types.Types.LongType.get()
    )
    other.createTable(name, jvm.org.apache.iceberg.Schema([field]))
    other.close()


def run(report: Report, spark: SparkSession, folder: Path) -> None:
    with report.case("nessie", "compact, then every deleting job refused", "file:///") as result:
        folder.mkdir(parents=True)
        with nessie(folder / "server") as address:
            properties = {
                "catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
                "uri": f"{address}/api/v2",
                "ref": "main",
                "warehouse": f"file://{folder}/wh",
            }
            with lake(spark, folder, properties) as beside:
                table = f"{beside.catalog}.db.events"
                spark.sql(f"create namespace {beside.catalog}.db")
                spark.sql(
                    f"create table {table} ({COLUMNS}) using iceberg partitioned by (day) "
                    "tblproperties ('write.delete.mode' = 'merge-on-read')"
                )
                write(spark, table, 0)
                before = beside.digest(table)
                compacted = beside.run("compact", table)
                assert compacted.state is RunState.DONE, compacted.reason
                assert beside.digest(table) == before, "Spark sees other rows after compact"
                write(spark, table, 1)
                before = beside.digest(table)
                ordered = beside.run("compact", table, rewrite_strategy="sort", rewrite_sort_columns=["name"])
                assert ordered.state is RunState.DONE, ordered.reason
                assert beside.digest(table) == before, "Spark sees other rows after sort"
                made_by_another_client(spark, properties)
                assert f"{beside.catalog}.later.made" in [str(each) for each in beside.lw.tables()]
                assert beside.run("compact", f"{beside.catalog}.later.made").state is RunState.NOTHING_TO_DO
                for job in ("expire", "sweep", "purge"):
                    refused(beside, job, table)
                assert beside.digest(table) == before
                result.text = (
                    "compact and sort equal; expire, sweep, purge refused; a later namespace is found"
                )
