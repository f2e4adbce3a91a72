"""Where a case is measured: one session with a catalog in a folder, and a Lakewarden with a journal of its own."""

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
    """The tables in the folder may stay from run to run; the journal is always a new one."""

    spark: Any
    folder: Path
    scale: Scale
    say: Say

    @contextmanager
    def warden(self, config: Mapping[str, Any]) -> Iterator[Lakewarden]:
        with tempfile.TemporaryDirectory(prefix="state-", dir=self.folder) as state:
            settings = {"state": {"url": f"sqlite:///{state}/state.db"}, **config}
            with Lakewarden(settings, spark=self.spark, environ={}) as warden:
                _ = warden.state  # made once for a lake, not once for a run: 0.12 s
                yield warden

    @property
    def cores(self) -> int:
        return int(self.spark.sparkContext.defaultParallelism)


def add_catalog(spark: Any, folder: Path) -> None:
    """An Iceberg catalog in a SQLite file: it commits as a shared one does, and needs no server."""
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
