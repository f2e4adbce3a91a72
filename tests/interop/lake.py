"""Lakewarden on the tables of a case, and Spark as the judge of their rows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from lakewarden import Lakewarden
from lakewarden.model.location import local_path, split_url
from lakewarden.model.run import Run, RunState
from tests.support.spark import add_catalog, remove_catalog

# Every file is a candidate, every snapshot that nothing holds expires, and what is in the trash is deleted at once.
EAGER: Mapping[str, object] = {
    "rewrite_min_input_files": 2,
    "delete_compaction_min_deletes": 1,
    "manifest_rewrite_min_manifests": 2,
    "snapshot_retention_hours": 0,
    "snapshot_min_retained": 1,
    "delete_grace_hours": 0,
    "orphan_grace_hours": 24,
}
PASS = ("compact-deletes", "compact", "rewrite-manifests", "expire", "purge", "sweep", "purge")
DELETING = ("expire", "purge", "sweep", "purge")
FINE = (RunState.DONE, RunState.NOTHING_TO_DO)
# Beside a writer that commits every second a run may lose the race, whole or in part. It may not do more than that.
FINE_BESIDE = (*FINE, RunState.LOST_RACE, RunState.PARTIAL)
_TWO_DAYS = 2 * 86400


@dataclass
class Lake:
    """A Lakewarden with a state of its own, and how often each job ended in which state."""

    spark: SparkSession
    lw: Lakewarden
    catalog: str
    counts: dict[str, int] = field(default_factory=dict)

    def run(self, job: str, table: str, beside: bool = False, **policy: object) -> Run:
        """One job, at its most eager; an ending that may not happen raises with the reason."""
        run = self.lw.run(job, table, {**EAGER, **policy})
        if run.state is RunState.DONE:
            self.counts[job] = self.counts.get(job, 0) + 1
        fine = FINE_BESIDE if beside else FINE
        assert run.state in fine, f"{job} on {table} ended {run.state.value}: {run.reason}"
        return run

    def maintain(self, table: str, beside: bool = False) -> None:
        for job in PASS:
            self.run(job, table, beside)

    def digest(self, table: str) -> tuple[Any, ...]:
        """Count and checksum over all columns, in any order of rows."""
        (row,) = self.spark.sql(
            f"select count(*), sum(cast(xxhash64(*) as decimal(38, 0))) from {table}"
        ).collect()
        return tuple(row)

    def row(self, query: str) -> tuple[Any, ...]:
        (row,) = self.spark.sql(query).collect()
        return tuple(row)

    def plant_orphan(self, table: str, folder: Path) -> Path:
        return plant_orphan(self.lw.view(table).location, folder)

    def commit_nothing(self, table: str) -> None:
        """A snapshot of another writer that adds no file."""
        found = self.spark._jvm.org.apache.iceberg.spark.Spark3Util
        found.loadIcebergTable(self.spark._jsparkSession, table).newFastAppend().commit()

    @property
    def done(self) -> str:
        """What was really done, as the report prints it."""
        return ", ".join(f"{job} {count}" for job, count in self.counts.items())


@contextmanager
def lake(
    spark: SparkSession, folder: Path, properties: Mapping[str, str], name: str | None = None
) -> Iterator[Lake]:
    """On one Iceberg catalog of the session, which forgets it afterwards."""
    catalog = add_catalog(spark, properties, name)
    try:
        with Lakewarden({"state": _state(folder)}, spark=spark, environ={}) as lw:
            yield Lake(spark, lw, catalog)
    finally:
        remove_catalog(spark, catalog)


@contextmanager
def paimon_lake(spark: SparkSession, folder: Path, properties: Mapping[str, str]) -> Iterator[Lake]:
    catalogs = {"paimon": {"format": "paimon", **properties}}
    config = {"state": _state(folder), "catalogs": catalogs}
    with Lakewarden(config, spark=spark, environ={}) as lw:
        yield Lake(spark, lw, "paimon")


def _state(folder: Path) -> dict[str, str]:
    return {"url": f"sqlite:///{folder}/lakewarden.db"}


def plant_orphan(location: str, folder: Path) -> Path:
    """A file among the data of the table at this location that no table names, old enough to be swept.

    On S3 too: the server of the tests keeps its objects in files, below the folder of the case.
    """
    disk = local_path(location)
    if disk is None:
        _, bucket, key = split_url(location)
        disk = str(next(folder.rglob(bucket)) / key)
    # Named as Iceberg's writers name files: it is older than the table, and sweep leaves strange files of before alone.
    orphan = Path(disk) / "data" / f"00000-0-{uuid4()}-00001.parquet"
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"no table names this file")
    old = time.time() - _TWO_DAYS
    os.utime(orphan, (old, old))
    return orphan
