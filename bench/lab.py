"""The environment of a case: one Spark session with a catalog in a folder, and a Lakewarden with its own
journal."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scale import Scale
from bench.telemetry import CATALOG
from lakewarden import Lakewarden

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Lab:
    """Tables in the folder may be kept from run to run; the journal is always new."""

    spark: Any
    folder: Path
    scale: Scale
    say: Say

    @contextmanager
    def warden(self, config: Mapping[str, Any]) -> Iterator[Lakewarden]:
        with tempfile.TemporaryDirectory(prefix="state-", dir=self.folder) as state:
            settings = {"state": {"url": f"sqlite:///{state}/state.db"}, **config}
            with Lakewarden(settings, spark=self.spark, environ={}) as warden:
                _ = warden.state  # created once per lake, not per run: 0.12 s
                yield warden

    @property
    def cores(self) -> int:
        return int(self.spark.sparkContext.defaultParallelism)


def add_catalog(spark: Any, folder: Path) -> None:
    """An Iceberg catalog in a SQLite file: it commits like a shared catalog, but needs no server."""
    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True, exist_ok=True)
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        ".warehouse": str(warehouse),
        ".jdbc.schema-version": "V1",
        ".clients": "1",
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{CATALOG}{key}", value)
