"""The one real Spark session the tests share, and catalogs to put tables in."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakewarden.spark.jars import ensure_jars
from lakewarden.spark.session import abandon_session, open_session
from lakewarden.tables.jvm import bridge

# Tables of tests are tiny: a query of theirs is planned once, not again after each of its stages.
_QUICK = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"


@dataclass(frozen=True)
class Warehouse:
    """An Iceberg catalog of the shared session, in a folder of its own."""

    catalog: str
    path: Path
    properties: Mapping[str, str]

    def table(self, name: str) -> str:
        """The full name Spark knows a table by: `db.t` becomes `lake_1a2b.db.t`."""
        return f"{self.catalog}.{name}"


def shared_session() -> SparkSession:
    """Two cores, with what Iceberg, Paimon and their JDBC catalogs need, on S3 too."""
    jars = ensure_jars(["base", "jdbc", "s3", "paimon", "paimon-s3"])
    for thread in threading.enumerate():
        if thread.name == "lakewarden-spark-start":
            thread.join(120)  # a worker of an earlier test is still starting a session of its own
    if SparkContext._gateway is not None:
        abandon_session()  # a test that ran earlier in this process started a JVM without these jars
    session = open_session("local[2]", _QUICK, jars)
    files = bridge(session, Path(__file__).with_name("LocalFiles.java"), "lakewarden.tests.LocalFiles")
    files.use(session._jsc.hadoopConfiguration())
    return session


def add_catalog(spark: SparkSession, properties: Mapping[str, str], name: str | None = None) -> str:
    """Teach the session a catalog. Under a new name by default: a session never reloads one it has used."""
    catalog = name or f"lake_{secrets.token_hex(4)}"
    prefix = f"spark.sql.catalog.{catalog}"
    spark.conf.set(prefix, SPARK_CATALOG)
    for key, value in {"cache-enabled": "false", **properties}.items():
        spark.conf.set(f"{prefix}.{key}", value)
    return catalog


def catalogs_of_the_session() -> set[str]:
    """Every catalog the shared session knows; empty before it is started."""
    session = SparkSession._instantiatedSession
    if session is None or session._jsc is None:
        return set()
    # One call for all of them: pyspark's own way asks the JVM for each setting, which after every test adds up to minutes.
    written = str(session._jsparkSession.conf().getAll().keys().mkString("\n"))
    prefix = "spark.sql.catalog."
    names = (each.removeprefix(prefix) for each in written.splitlines() if each.startswith(prefix))
    return {name for name in names if "." not in name}


def remove_catalog(spark: SparkSession, catalog: str) -> None:
    """Let the session forget a catalog: jobs that ask every table would meet those of tests that are long over."""
    prefix = f"spark.sql.catalog.{catalog}"
    for key in [each for each in spark.conf.getAll if each == prefix or each.startswith(f"{prefix}.")]:
        spark.conf.unset(key)


def jdbc_warehouse(spark: SparkSession, folder: Path, name: str | None = None) -> Warehouse:
    """A catalog in a SQLite file, its tables in a folder beside it."""
    path = folder / "warehouse"
    path.mkdir(parents=True, exist_ok=True)
    properties = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "warehouse": str(path),
        "jdbc.schema-version": "V1",
        "clients": "1",
    }
    return Warehouse(add_catalog(spark, properties, name), path, properties)


def rest_catalog_properties(uri: str) -> dict[str, str]:
    return {"type": "rest", "uri": uri}
