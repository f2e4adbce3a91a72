"""The configured lake: one Spark session, and the table format of each catalog."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from lakewarden.config.schema import CatalogConfig, Config
from lakewarden.errors import NoSuchTable
from lakewarden.model.location import S3, scheme_of
from lakewarden.model.table import TableRef, TableView
from lakewarden.rewrite.metadata.bulk import MetadataFiles
from lakewarden.spark.jars import GROUPS, Group, default_cache, ensure_jars
from lakewarden.spark.session import close_session, open_session, use_in_this_thread
from lakewarden.spark.tasks import ship_kernels
from lakewarden.storage.objects import Objects
from lakewarden.tables.iceberg.catalog import session_catalogs, spark_settings
from lakewarden.tables.iceberg.format import Iceberg
from lakewarden.tables.interface import TableFormat
from lakewarden.tables.jvm import with_timeouts
from lakewarden.tables.metadata_files import ForeignMetadataCache
from lakewarden.tables.paimon.commit import Guard, unguarded
from lakewarden.tables.paimon.format import Paimon
from lakewarden.tables.paimon.io_properties import on_s3
from lakewarden.tables.places import NO_HOMES, Places

PAIMON = "paimon"


class Lake:
    def __init__(
        self,
        config: Config,
        spark: Any = None,
        guard: Guard = unguarded,
        places: Callable[[TableView], Places] = lambda _: NO_HOMES,
    ) -> None:
        """`guard` locks a table during a commit if its catalog has no lock; `places` tells which locations
        belong to a table."""
        self._config = config
        self._guard = guard
        self._given = spark is not None
        self.spark = self._adopt(spark) if spark is not None else self._open()
        cache = default_cache(os.environ).parent
        ship_kernels(self.spark, cache / "kernels")
        self._iceberg = Iceberg(self.spark, MetadataFiles(self.spark), cache / "reach", places)
        self.strays = ForeignMetadataCache()
        self.aliases = config.paths.aliases
        self.incomplete = tuple(each.name for each in config.catalogs.values() if not each.complete)
        self._paimon_catalogs = {
            each.name: with_timeouts(each.properties)
            for each in config.catalogs.values()
            if each.format == PAIMON
        }

    def close(self) -> None:
        if "_paimon" in self.__dict__:
            self._paimon.close()
        if not self._given:
            close_session(self.spark)

    def attend(self) -> None:
        """Prepare this thread for calls into Spark."""
        use_in_this_thread(self.spark)

    def catalogs(self) -> list[str]:
        """Configured catalogs, and Iceberg catalogs that the session already had."""
        return sorted({*self._config.catalogs, *session_catalogs(self.spark)})

    def format_of(self, catalog: str) -> TableFormat:
        return self._format(catalog, catalog)

    def format_for(self, table: TableRef) -> TableFormat:
        return self._format(table.catalog, table)

    def _format(self, catalog: str, asked: object) -> TableFormat:
        if catalog in self._paimon_catalogs:
            return self._paimon
        if catalog in self.catalogs():
            return self._iceberg
        known = ", ".join(self.catalogs()) or "none"
        raise NoSuchTable(
            table=asked, reason=f"no catalog {catalog} is configured; configured catalogs: {known}"
        )

    @cached_property
    def _paimon(self) -> Paimon:
        """Created on first use: a lake without Paimon never loads its classes."""
        cache = default_cache(os.environ).parent
        decoder = MetadataFiles(self.spark)
        return Paimon(self.spark, self._paimon_catalogs, decoder, Objects, cache / "reach", self._guard)

    def _open(self) -> Any:
        conf: dict[str, str] = {}
        for catalog in _iceberg(self._config):
            conf.update(spark_settings(catalog.name, catalog.properties))
        conf.update(self._config.spark.conf)
        jars = [Path(each) for each in self._config.spark.jars] or ensure_jars(jar_groups(self._config))
        return open_session(self._config.spark.master, conf, jars)

    def _adopt(self, spark: Any) -> Any:
        """Adds to a given session the configured catalogs that it does not have."""
        have = session_catalogs(spark)
        for catalog in _iceberg(self._config):
            if catalog.name not in have:
                for key, value in spark_settings(catalog.name, catalog.properties).items():
                    spark.conf.set(key, value)
        return spark


def jar_groups(config: Config) -> list[Group]:
    """The pinned jars that the configured catalogs need."""
    groups: set[Group] = {"base"}
    for catalog in config.catalogs.values():
        of_paimon, values = catalog.format == PAIMON, list(catalog.properties.values())
        if of_paimon:
            groups.add("paimon")
        if "jdbc" in values or any(value.startswith("jdbc:") for value in values):
            groups.add("jdbc")
        if of_paimon and on_s3(catalog.properties):
            groups.add("paimon-s3")
        if not of_paimon and any(scheme_of(value) in S3 or value.endswith("S3FileIO") for value in values):
            groups.add("s3")
    return [each for each in GROUPS if each in groups]


def _iceberg(config: Config) -> list[CatalogConfig]:
    return [each for each in config.catalogs.values() if each.format != PAIMON]
