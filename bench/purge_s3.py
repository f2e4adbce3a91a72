"""Purging very many objects on S3: how fast, how evenly under a rate limit, and whether receipts are complete
after kill -9.

The objects are data files of a real table whose snapshots expired. The S3 server stores objects as plain
files, so the benchmark creates them as files: one request each would take longer than everything that is
measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.findings import Check, Found, Turn
from bench.history import COLUMNS, history_writer, java_table
from bench.lab import Lab
from bench.meter import measure
from bench.report import line
from bench.telemetry import Totals
from lakewarden import Lakewarden
from lakewarden.model.location import normal
from lakewarden.model.run import Run, RunState
from lakewarden.state.trash import TrashedFiles
from lakewarden.storage.generation_file import WITNESS
from lakewarden.storage.objects import Objects
from tests.support.ports import wait_until
from tests.support.s3 import Bucket, s3_server

LIMIT = 500
CATALOG = "bench_s3"
NOW = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
AT_ONCE = {"delete_grace_hours": 0}
_FILES_PER_COMMIT = 2_500
_WITHIN = 0.05
_SIZE = 64  # bytes of each object, as in the history's metadata


@dataclass(frozen=True, slots=True)
class Site:
    """A catalog whose tables are in a bucket, in a Spark session without other catalogs, and the state
    database."""

    spark: Any
    bucket: Bucket
    folder: Path

    @property
    def properties(self) -> dict[str, str]:
        return {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{self.folder}/catalog.db",
            "jdbc.schema-version": "V1",
            "clients": "1",
            "warehouse": f"{self.bucket.url}/wh",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            **self.bucket.server.io(),
        }

    def config(self, deletes_per_s: float | None = None) -> dict[str, Any]:
        limit = {} if deletes_per_s is None else {"budgets": {"deletes_per_s": deletes_per_s}}
        return {"state": {"url": f"sqlite:///{self.folder}/state.db"}, **limit}

    def warden(self, deletes_per_s: float | None = None) -> Lakewarden:
        return Lakewarden(self.config(deletes_per_s), spark=self.spark, environ={})

    def objects(self) -> set[str]:
        """Every object in the bucket, normalized, except the files that Lakewarden writes beside the
        metadata."""
        batches = Objects(self.bucket.server.io()).list(self.bucket.url)
        paths = (path for batch in batches for path in batch["path"].to_pylist())
        return {normal(path) for path in paths if not path.endswith(WITNESS)}


@dataclass(frozen=True, slots=True)
class TrashedTable:
    """A table with this many trashed objects, and the objects that must be left after the purge."""

    site: Site
    name: str
    trashed: frozenset[str]
    kept: frozenset[str]
    rows: tuple[Any, ...]

    def check(self, warden: Lakewarden) -> None:
        """Every trashed object is deleted and has one receipt; all others are unchanged."""
        told = [normal(each.path) for each in warden.receipts(self.name, 10 * len(self.trashed))]
        if len(told) != len(set(told)) or set(told) != self.trashed:
            raise RuntimeError(f"{len(self.trashed)} objects were trashed and have {len(told)} receipts")
        left = self.site.objects()
        if left != self.kept:
            odd = sorted(left ^ self.kept)
            raise RuntimeError(f"{len(odd)} objects exist or are missing unexpectedly: {odd[:3]}")
        if rows_of(self.site.spark, self.name) != self.rows:
            raise RuntimeError(f"the rows of {self.name} changed")


@contextmanager
def site(spark: Any, bucket: Bucket) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="lakewarden-purge-s3-") as folder:
        made = Site(spark.newSession(), bucket, Path(folder))
        conf = made.spark.conf
        conf.set(f"spark.sql.catalog.{CATALOG}", "org.apache.iceberg.spark.SparkCatalog")
        for key, value in {**made.properties, "cache-enabled": "false"}.items():
            conf.set(f"spark.sql.catalog.{CATALOG}.{key}", value)
        made.spark.sql(f"create namespace {CATALOG}.db")
        yield made


def trashed_table(where: Site, objects: int) -> TrashedTable:
    """Append files by the thousand, replace them by one file, and expire the earlier snapshots."""
    name, spark = f"{CATALOG}.db.events", where.spark
    columns = ", ".join(f"c{number} bigint" for number in range(COLUMNS - 1))
    spark.sql(
        f"create table {name} (day date, {columns}) using iceberg partitioned by (day) "
        "tblproperties ('commit.manifest-merge.enabled'='false')"
    )
    table = java_table(spark, name)
    data = f"{table.location()}/data"
    commits = max(4, objects // _FILES_PER_COMMIT)
    history_writer(spark).append(table, data, commits, objects // commits, COLUMNS, 0, True)
    paths = [row[0] for row in spark.sql(f"select file_path from {name}.files").collect()]
    put(where.bucket, paths)
    spark.sql(f"delete from {name}")
    values = ", ".join(["1"] * (COLUMNS - 1))
    spark.sql(f"insert into {name} values (date'2024-02-01', {values})")
    with where.warden() as warden:
        _done(warden.run("expire", name, NOW))
        files = warden.trash(name, 10 * objects).files
    trashed = frozenset(normal(each.path) for each in files)
    if not {normal(path) for path in paths} <= trashed:
        raise RuntimeError("not every object of the expired snapshots is in the trash")
    return TrashedTable(where, name, trashed, frozenset(where.objects() - trashed), rows_of(spark, name))


def put(bucket: Bucket, paths: list[str]) -> None:
    """Write the objects as files on the server's own disk, if it stores objects as files."""
    keys = [path.removeprefix(f"{bucket.url}/") for path in paths]
    if bucket.server.kind != "versitygw":
        for key in keys:
            bucket.put(key, bytes(_SIZE))
        return
    home = bucket.server.folder / "objects" / bucket.name
    for folder in {key.rpartition("/")[0] for key in keys}:
        (home / folder).mkdir(parents=True, exist_ok=True)
    for key in keys:
        (home / key).write_bytes(bytes(_SIZE))


def rows_of(spark: Any, name: str) -> tuple[Any, ...]:
    return tuple(sorted((tuple(row) for row in spark.sql(f"select * from {name}").collect()), key=repr))


def _done(run: Run) -> Run:
    if run.state is not RunState.DONE:
        raise RuntimeError(f"{run.job} ended {run.state}: {run.reason}")
    return run


# ------------------------------------------------------------ the case


def purge_s3(lab: Lab) -> Found:
    with tempfile.TemporaryDirectory(prefix="lakewarden-s3-") as folder, s3_server(Path(folder)) as server:
        start = Totals(lab.scale.objects, lab.scale.objects * _SIZE, 0)
        turns, checks = [], []
        for name, limit in (("no limit", None), (f"{LIMIT} a second", LIMIT)):
            with site(lab.spark, server.bucket()) as where:
                turn, rate = _purge(lab, where, name, limit)
            goal = (None, None) if limit is None else (limit * (1 - _WITHIN), limit * (1 + _WITHIN))
            turns.append(turn)
            checks.append(Check(f"{name}: deleted", rate, *goal, unit="objects/s"))
        with site(lab.spark, server.bucket()) as where:
            turn, killed_at = _kill_and_resume(lab, where)
        turns.append(turn)
        checks.append(
            Check("deleted before kill -9; every object has one receipt", killed_at, unit="objects")
        )
        return Found(start, tuple(turns), tuple(checks))


def _purge(lab: Lab, where: Site, name: str, limit: float | None) -> tuple[Turn, float]:
    table = trashed_table(where, lab.scale.objects)
    with where.warden(limit) as warden:
        work = partial(warden.run, "purge", table.name, AT_ONCE)
        run, cost = measure(where.spark, work, lab.scale.patience)
        table.check(warden)
    turn = Turn(name, 1, cost, Totals(len(table.kept), 0, 0))
    lab.say(line(turn))
    return turn, _done(run).counters["files_erased"] / cost.wall


def _kill_and_resume(lab: Lab, where: Site) -> tuple[Turn, int]:
    """The first process is killed after it has deleted a third. Its rate is limited, so that it is still
    running then."""
    table = trashed_table(where, lab.scale.objects)
    config = where.config(deletes_per_s=max(1, lab.scale.objects // 10))
    child = start_child(where, config, table.name)
    with where.warden() as warden:
        files = TrashedFiles(warden.state)

        def gone() -> int:
            return len(table.trashed) - sum(each.live.files for each in files.batches(table.name))

        try:
            wait_until(
                lambda: child.poll() is not None or gone() >= len(table.trashed) // 3,
                "a third is deleted",
                seconds=600,
            )
        finally:
            child.kill()
        if child.wait() != -9:
            raise RuntimeError("the process ended before it was killed")
        killed_at = gone()
        _, cost = measure(where.spark, partial(_resume, where, table.name), lab.scale.patience)
        table.check(warden)
    turn = Turn("resumed", 1, cost, Totals(len(table.kept), 0, 0))
    lab.say(line(turn))
    return turn, killed_at


def _resume(where: Site, table: str) -> None:
    child = start_child(where, where.config(), table)
    if child.wait() != 0:
        raise RuntimeError(f"the second process ended with {child.returncode}")


# ------------------------------------------------------------ a process of its own


def start_child(where: Site, config: Mapping[str, Any], table: str) -> subprocess.Popen[str]:
    """A purge in another process. Its configuration goes through a pipe, because it contains credentials."""
    whole = {**config, "catalogs": {CATALOG: where.properties}, "spark": {"master": "local[2]"}}
    command = [sys.executable, "-m", "bench.purge_s3"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert child.stdin is not None
    with child.stdin as pipe:
        json.dump({"config": whole, "table": table}, pipe)
    return child


def _child() -> None:
    told = json.load(sys.stdin)
    with Lakewarden(told["config"], environ={}) as warden:
        _done(warden.run("purge", told["table"], AT_ONCE))


if __name__ == "__main__":
    _child()
