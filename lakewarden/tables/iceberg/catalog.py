"""The Iceberg catalogs of a Spark session: lists catalogs and tables, and loads a table without a cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from lakewarden.errors import LakewardenError, NoSuchTable, Outage, Unreachable
from lakewarden.model.location import normal
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.errors import no_warehouse
from lakewarden.tables.jvm import JavaError, bridge, file_columns, is_java, java_reason, with_timeouts
from lakewarden.tables.places import NO_HOMES, Places

_PREFIX = "spark.sql.catalog."
_IMPLEMENTATION = "org.apache.iceberg.spark.SparkCatalog"
_HADOOP = "org.apache.iceberg.hadoop.HadoopCatalog"
_HERE = Path(__file__).parent
_BETWEEN = "\x01"
# The catalog classes that users configure. Iceberg registers other classes temporarily, for one procedure.
_OF_PEOPLE = (_IMPLEMENTATION, "org.apache.iceberg.spark.SparkSessionCatalog")
# Spark creates this catalog when a DataFrame is read by path. It has the same class but contains no tables.
_BY_PATH = "default_iceberg"


def spark_settings(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """The session settings of one configured catalog. Its cache is off: every plan reads the newest metadata."""
    settings = {_PREFIX + name: _IMPLEMENTATION, f"{_PREFIX}{name}.cache-enabled": "false"}
    settings.update({f"{_PREFIX}{name}.{key}": value for key, value in with_timeouts(properties).items()})
    return settings


def session_catalogs(spark: Any) -> list[str]:
    """The Iceberg catalogs that are configured on an existing session."""
    # One call for all settings: pyspark asks the JVM for each setting, 25 ms each.
    written = str(spark._jsparkSession.conf().getAll().mkString(_BETWEEN))
    settings = dict(each.split(" -> ", 1) for each in written.split(_BETWEEN) if " -> " in each)
    return sorted(
        key.removeprefix(_PREFIX)
        for key, value in settings.items()
        if key.startswith(_PREFIX)
        and "." not in key.removeprefix(_PREFIX)
        and key.removeprefix(_PREFIX) != _BY_PATH
        and value in _OF_PEOPLE
    )


class IcebergCatalogs:
    """The Iceberg catalogs of one session, accessed through the Java bridge."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        # Decides which folders belong to a table.
        self.places: Callable[[TableView], Places] = lambda _: NO_HOMES
        self.bridge = bridge(
            spark, _HERE / "IcebergBridge.java", "lakewarden.IcebergBridge", beside=file_columns(spark)
        )
        self.deletes = bridge(
            spark, _HERE / "IcebergDeletes.java", "lakewarden.IcebergDeletes", beside=self.bridge
        )

    @cached_property
    def history(self) -> Any:
        """The Java helper for past snapshots. Compiled on first use, because most commands do not need it."""
        source = _HERE / "IcebergHistory.java"
        return bridge(self.spark, source, "lakewarden.IcebergHistory", beside=self.bridge)

    @cached_property
    def watching(self) -> Any:
        return bridge(self.spark, _HERE / "IcebergWatch.java", "lakewarden.IcebergWatch", beside=self.bridge)

    @cached_property
    def expiry(self) -> Any:
        source = _HERE / "IcebergExpiry.java"
        return bridge(self.spark, source, "lakewarden.IcebergExpiry", beside=self.bridge)

    @cached_property
    def cold(self) -> Any:
        return bridge(self.spark, _HERE / "IcebergCold.java", "lakewarden.IcebergCold", beside=self.bridge)

    @cached_property
    def partitions(self) -> Any:
        source = _HERE / "IcebergPartitions.java"
        return bridge(self.spark, source, "lakewarden.IcebergPartitions", beside=self.bridge)

    @cached_property
    def refs(self) -> Any:
        return bridge(self.spark, _HERE / "IcebergRefs.java", "lakewarden.IcebergRefs", beside=self.bridge)

    @cached_property
    def adoption(self) -> Any:
        source = _HERE / "IcebergAdoption.java"
        return bridge(self.spark, source, "lakewarden.IcebergAdoption", beside=self.bridge)

    def tables(self, catalog: str) -> list[TableRef]:
        try:
            warehouse = self._setting(catalog, "warehouse")
            rows = json.loads(self.bridge.tables(self.spark._jsparkSession, catalog, warehouse))
        except JavaError as error:
            self._refuse_missing_folder(catalog, error)
            raise catalog_error(error, f"catalog {catalog}") from error
        return sorted({TableRef(catalog, tuple(row[:-1]), row[-1]) for row in rows})

    def load(self, table: TableRef) -> Any:
        """The library's table object, newly loaded from the catalog. Do not keep it: it does not follow later commits."""
        try:
            return self.sought(table)
        except NoSuchTable as error:
            self._refuse_missing_folder(table.catalog, error)
            raise

    def sought(self, table: TableRef) -> Any:
        """Like `load`, for callers that create a missing table: a missing warehouse folder is then no error."""
        try:
            catalog = self.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
                self.spark._jsparkSession, table.catalog
            )
            return self.bridge.load(catalog, json.dumps([*table.namespace, table.name]))
        except JavaError as error:
            if is_java(
                error, "NoSuchTableException", "NoSuchNamespaceException", "NoSuchIcebergTableException"
            ):
                other = is_java(error, "NoSuchIcebergTableException")
                reason = "is not an Iceberg table" if other else "has no such table"
                raise NoSuchTable(
                    table=table,
                    reason=f"catalog {table.catalog} {reason}" if not other else f"it {reason}",
                    other_format=other,
                ) from error
            raise catalog_error(error, f"catalog {table.catalog}") from error

    def _refuse_missing_folder(self, catalog: str, error: BaseException) -> None:
        """Raises if the warehouse folder of a Hadoop catalog is missing: then all its tables seem missing. Not for object stores."""
        warehouse = self._setting(catalog, "warehouse")
        of_folders = (
            self._setting(catalog, "type") == "hadoop" or self._setting(catalog, "catalog-impl") == _HADOOP
        )
        if not of_folders or not warehouse:
            return
        path = self.spark._jvm.org.apache.hadoop.fs.Path(warehouse)
        try:
            store = path.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())
            away = store.getUri().getScheme() == "file" and not store.exists(path)
        except JavaError:
            return  # the store does not answer either: the catalog's own error is reported
        if away:
            raise no_warehouse(catalog, normal(warehouse)) from error

    def _setting(self, catalog: str, name: str) -> str:
        return str(self.spark.conf.get(f"{_PREFIX}{catalog}.{name}", "") or "")


def catalog_error(error: BaseException, what: str) -> LakewardenError:
    """The error for a Java exception that came from a catalog, with a message for users."""
    if is_java(error, "NotFoundException", "FileNotFoundException"):
        return LakewardenError(
            reason=f"read {what}: {java_reason(error)}",
            hint="nothing was changed; `lakewarden fsck TABLE` shows which snapshots need the missing files, and how to repair it",
        )
    return Unreachable(what=what, reason=java_reason(error), kind=Outage.CATALOG)
