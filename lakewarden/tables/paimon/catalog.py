"""The configured Paimon catalogs: opens them, lists their tables, and loads a table without a cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lakewarden.errors import LakewardenError, NoSuchTable
from lakewarden.model.table import TableRef
from lakewarden.tables.jvm import JavaError, bridge, file_columns, is_java
from lakewarden.tables.paimon.errors import cannot_open, refuse_missing_folder
from lakewarden.tables.paimon.io_properties import io_properties

_HERE = Path(__file__).parent


class PaimonCatalogs:
    """The configured Paimon catalogs of one session, accessed through the Java bridge."""

    def __init__(self, spark: Any, properties: Mapping[str, Mapping[str, str]]) -> None:
        self.spark = spark
        self.bridge = self.helper("PaimonBridge")
        self._properties = properties
        self._open: dict[str, Any] = {}

    def helper(self, name: str) -> Any:
        """One of Lakewarden's Java helpers, compiled on first use."""
        return bridge(
            self.spark, _HERE / f"{name}.java", f"lakewarden.{name}", beside=file_columns(self.spark)
        )

    @property
    def files(self) -> Any:
        return self.helper("PaimonFiles")

    @property
    def commit(self) -> Any:
        return self.helper("PaimonCommit")

    @property
    def adoption(self) -> Any:
        return self.helper("PaimonAdoption")

    def tables(self, catalog: str) -> list[TableRef]:
        try:
            rows = json.loads(self.bridge.tables(self._catalog(catalog)))
        except JavaError as error:
            raise self._unreachable(error, catalog) from error
        return sorted(TableRef(catalog, (database,), name) for database, name in rows)

    def load(self, table: TableRef) -> Any:
        """The library's table object, newly loaded from the catalog. Do not keep it: it does not follow later commits."""
        if len(table.namespace) != 1:
            reason = (
                f"Paimon has one level of databases, {'.'.join(table.namespace)} has {len(table.namespace)}"
            )
            raise NoSuchTable(table=table, reason=reason)
        try:
            loaded = self.bridge.load(self._catalog(table.catalog), table.namespace[0], table.name)
        except JavaError as error:
            if is_java(error, "TableNotExistException", "DatabaseNotExistException"):
                reason = f"catalog {table.catalog} has no such table"
                raise NoSuchTable(table=table, reason=reason) from error
            raise self._unreachable(error, table.catalog) from error
        if loaded is None:
            raise NoSuchTable(
                table=table, reason="it is not a table with its own data files", other_format=True
            )
        return loaded

    def names(self) -> list[str]:
        return sorted(self._properties)

    def metastore(self, catalog: str) -> str:
        return self._properties[catalog].get("metastore", "filesystem")

    @property
    def cold(self) -> Any:
        return self.helper("PaimonCold")

    def make(self, table: TableRef, schema: str) -> None:
        """Create an empty table with this schema. Does nothing if the table exists."""
        try:
            self.cold.make(self._catalog(table.catalog), table.namespace[0], table.name, schema)
        except JavaError as error:
            raise self._unreachable(error, table.catalog) from error

    @contextmanager
    def committing(self, table: TableRef) -> Iterator[Any]:
        """A table object for one commit. On exit, the connections that Paimon's lock opened are closed."""
        loaded = self.load(table)
        try:
            yield loaded
        finally:
            self.bridge.release(loaded)

    def io(self, catalog: str) -> dict[str, str]:
        """Properties to access the files without Paimon's library."""
        return io_properties(self._properties[catalog])

    def close(self) -> None:
        """Close the catalogs: JDBC catalogs have database connections. If closing fails, the JVM and its connections are gone."""
        while self._open:
            with suppress(*JavaError):
                self._open.popitem()[1].close()

    def _catalog(self, name: str) -> Any:
        # Checked each time: an open catalog does not notice that its mount is gone, and then lists no tables.
        refuse_missing_folder(name, self._properties[name])
        if name not in self._open:
            try:
                self._open[name] = self.bridge.open(json.dumps(dict(self._properties[name])))
            except JavaError as error:
                raise self._unreachable(error, name) from error
        return self._open[name]

    def _unreachable(self, error: BaseException, catalog: str) -> LakewardenError:
        return cannot_open(error, catalog, self._properties[catalog])
