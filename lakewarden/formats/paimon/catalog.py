"""Paimon catalogs: opened by their own properties, which tables they have, and a table loaded fresh."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lakewarden.errors import LakewardenError, NoSuchTable, Unreachable
from lakewarden.formats.jvm import JavaError, bridge, file_columns, is_java, java_reason
from lakewarden.model import TableRef

_HERE = Path(__file__).parent
# Paimon's names for what the stores of this project are told in Iceberg's.
_S3 = {
    "s3.endpoint": "s3.endpoint",
    "s3.access-key": "s3.access-key-id",
    "s3.secret-key": "s3.secret-access-key",
    "s3.session.token": "s3.session-token",
    "s3.path.style.access": "s3.path-style-access",
    "s3.endpoint.region": "client.region",
    "s3.region": "client.region",
}


class Catalogs:
    """The configured Paimon catalogs of one session, reached through the bridge."""

    def __init__(self, spark: Any, properties: Mapping[str, Mapping[str, str]]) -> None:
        self.spark = spark
        self.bridge = self.helper("PaimonBridge")
        self._properties = properties
        self._open: dict[str, Any] = {}

    def helper(self, name: str) -> Any:
        """One of our Java classes, compiled when it is first needed."""
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
            raise catalog_error(error, f"catalog {catalog}") from error
        return sorted(TableRef(catalog, (database,), name) for database, name in rows)

    def load(self, table: TableRef) -> Any:
        """The library's table object, fresh from the catalog. Use it at once and let it go."""
        if len(table.namespace) != 1:
            reason = (
                f"Paimon has one level of databases, {'.'.join(table.namespace)} has {len(table.namespace)}"
            )
            raise NoSuchTable(table=table, reason=reason)
        try:
            found = self.bridge.load(self._catalog(table.catalog), table.namespace[0], table.name)
        except JavaError as error:
            if is_java(error, "TableNotExistException", "DatabaseNotExistException"):
                reason = f"catalog {table.catalog} has no such table"
                raise NoSuchTable(table=table, reason=reason) from error
            raise catalog_error(error, f"catalog {table.catalog}") from error
        if found is None:
            raise NoSuchTable(table=table, reason="it has no files of its own", other_format=True)
        return found

    def io(self, catalog: str) -> dict[str, str]:
        """How files are reached from outside of Paimon's library."""
        own = self._properties[catalog]
        found = {_S3[key]: value for key, value in own.items() if key in _S3}
        return found | {key: value for key, value in own.items() if key not in _S3 and "." in key}

    def _catalog(self, name: str) -> Any:
        if name not in self._open:
            try:
                self._open[name] = self.bridge.open(json.dumps(dict(self._properties[name])))
            except JavaError as error:
                raise catalog_error(error, f"catalog {name}") from error
        return self._open[name]


def catalog_error(error: BaseException, what: str) -> LakewardenError:
    """A Java failure while talking to a catalog, in a user's words."""
    return Unreachable(what=what, reason=java_reason(error))
