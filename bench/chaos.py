"""`python -m bench.chaos`: two workers, a writer, and everything they depend on killed in turn.

The state is in PostgreSQL, the tables are on an S3 server, the catalog is in a file. In turn the leader, its
Spark JVM, the database and the store are killed with -9; the last two are started again after a while. At the
end every row that the writer saw committed exists exactly once, no table misses a file, no run is stuck, and
a worker leads.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.findings import Check
from bench.workers import Worker, lake_folder, settings, start, tell
from lakewarden import Lakewarden, clock
from lakewarden.errors import LakewardenError
from lakewarden.jobs.fsck.findings import Severity
from lakewarden.spark.jars import ensure_jars
from lakewarden.spark.session import close_session, open_session
from lakewarden.state.database import migrate
from tests.support.ports import wait_until
from tests.support.postgres import Postgres, postgres
from tests.support.s3 import REGION, S3, s3_server
from tests.support.spark import add_catalog

_CATALOG = "lake"
_TABLES = ("a", "b")
_ROWS = 500


@dataclass
class Site:
    folder: Path
    config: Path
    database: Postgres
    store: S3
    workers: list[Worker] = field(default_factory=list)
    started: int = 0

    def staff(self) -> None:
        """Start workers until there are two."""
        self.workers = [each for each in self.workers if each.process.poll() is None]
        while len(self.workers) < 2:
            self.started += 1
            self.workers.append(start(self.config, f"worker-{self.started}"))

    def leader(self) -> Worker:
        with Lakewarden.open(self.config) as warden:
            wait_until(lambda: self._leading(warden) is not None, "one of the workers leads", 120)
            found = self._leading(warden)
        assert found is not None
        return found

    def _leading(self, warden: Lakewarden) -> Worker | None:
        lease = warden.schedule.leader()
        if lease is None or not lease.live:
            return None
        return next(
            (each for each in self.workers if each.pid == lease.pid and each.process.poll() is None), None
        )


@dataclass
class Written:
    """Batches that the writer saw committed, and batches with unknown outcome."""

    sure: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in _TABLES})
    unsure: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in _TABLES})


def kill_leader(site: Site, pause: float) -> float:
    """Seconds until another worker leads."""
    site.leader().kill()
    began = clock.monotonic()
    site.leader()
    return clock.monotonic() - began


def kill_spark(site: Site, pause: float) -> float:
    leader = site.leader()
    wait_until(lambda: leader.jvm() is not None, "the leader has a Spark", 120)
    jvm = leader.jvm()
    assert jvm is not None
    with suppress(psutil.NoSuchProcess):  # it may already have been ending
        jvm.kill()
    began = clock.monotonic()

    def back() -> bool:
        now = leader.jvm() if leader.process.poll() is None else None
        return leader.process.poll() is not None or (now is not None and now.pid != jvm.pid)

    wait_until(back, "the leader has a Spark again", 180)
    assert leader.process.poll() is None, "the worker ended with its Spark"
    return clock.monotonic() - began


def kill_database(site: Site, pause: float) -> float:
    return _kill_service(site, site.database, pause)


def kill_store(site: Site, pause: float) -> float:
    return _kill_service(site, site.store, pause)


def _kill_service(site: Site, service: Postgres | S3, pause: float) -> float:
    """Seconds from the restart of the service until a worker leads."""
    service.kill()
    clock.sleep(pause)
    began = clock.monotonic()
    service.start()
    site.leader()
    return clock.monotonic() - began


BLOWS: dict[str, Callable[[Site, float], float]] = {
    "leader": kill_leader,
    "Spark": kill_spark,
    "database": kill_database,
    "store": kill_store,
}


def chaos(rounds: int, calm: float, folder: Path) -> tuple[Check, ...]:
    with postgres() as database, s3_server(folder / "s3") as store:
        config, spark = _lake(folder, database, store)
        site, written, over = Site(folder, config, database, store), Written(), threading.Event()
        writer = threading.Thread(target=_write, args=(spark, written, over))
        back: dict[str, list[float]] = {name: [] for name in BLOWS}
        try:
            writer.start()
            site.staff()
            for number in range(rounds * len(BLOWS)):
                name = list(BLOWS)[number % len(BLOWS)]
                clock.sleep(calm)  # new work to interrupt
                back[name].append(BLOWS[name](site, 5))
                print(f"{name} killed; back after {back[name][-1]:.1f} s", flush=True)
                site.staff()
            clock.sleep(calm)
        finally:
            over.set()
            writer.join()
        try:
            return (*_checks(site, spark, written, back),)
        finally:
            for worker in site.workers:
                if worker.process.poll() is None:
                    worker.stop()
            close_session(spark)


def _lake(folder: Path, database: Postgres, store: S3) -> tuple[Path, Any]:
    bucket = store.bucket()
    catalog = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "jdbc.schema-version": "V1",
        "warehouse": f"{bucket.url}/warehouse",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": store.endpoint,
        "s3.access-key-id": store.access_key,
        "s3.secret-access-key": store.secret_key,
        "s3.path-style-access": "true",
        "client.region": REGION,
    }
    url = database.fresh_database().url
    migrate(url)
    values: dict[str, Any] = {
        "state": {"url": url},
        "spark": {"master": "local[1]", "conf": {"spark.driver.memory": "1g"}},
        "schedule": {"interval_seconds": 10},
        "worker": {
            "lease_seconds": 6,
            "poll_seconds": 1,
            "discover_seconds": 10,
            "retry_seconds": 2,
            "retry_max_seconds": 10,
            "max_failures": 1000,
            "console": False,
        },
        "health": {"stats_interval_seconds": 15},
        "catalogs": {_CATALOG: catalog},
        "policy": {
            "rewrite_min_input_files": 6,
            "snapshot_retention_hours": "1m",
            "snapshot_min_retained": 2,
            "delete_grace_hours": 1,
        },
    }
    config = folder / "lakewarden.toml"
    config.write_text(settings(values), encoding="utf-8")
    spark = open_session(
        "local[1]", {"spark.sql.shuffle.partitions": "1"}, ensure_jars(["base", "jdbc", "s3"])
    )
    add_catalog(spark, catalog, _CATALOG)
    spark.sql(f"create namespace if not exists {_CATALOG}.db")
    for name in _TABLES:
        spark.sql(f"create table {_CATALOG}.db.{name} (batch int, id bigint) using iceberg")
    return config, spark


def _write(spark: Any, written: Written, over: threading.Event) -> None:
    """A batch to each table in turn. A batch that ends in an error may or may not be committed."""
    number = 0
    while not over.wait(1):
        name = _TABLES[number % len(_TABLES)]
        rows = spark.range(_ROWS).selectExpr(f"{number} batch", "id")
        try:
            rows.writeTo(f"{_CATALOG}.db.{name}").append()
            written.sure[name].add(number)
        except (
            Exception
        ):  # the store is down, or another writer was first: only the table's final content counts
            written.unsure[name].add(number)
        number += 1


def _checks(site: Site, spark: Any, written: Written, back: dict[str, list[float]]) -> Iterator[Check]:
    for name, seconds in back.items():
        yield Check(f"{name} killed: seconds until work goes on, at most", max(seconds), unit=" s")
    yield Check("batches written", sum(len(each) for each in written.sure.values()), least=1)
    yield Check(
        "batches missing, doubled or halved", sum(_wrong(spark, written, name) for name in _TABLES), most=0
    )
    with Lakewarden.open(site.config, spark=spark) as warden:
        wait_until(lambda: not _open(warden), "no run is open", 180)
        runs = warden.runs(limit=10_000)
        yield Check("runs", len(runs), least=1)
        yield Check("runs that did something", sum(each.state == "done" for each in runs), least=1)
        yield Check(
            "runs that failed or were interrupted",
            sum(each.state in ("failed", "interrupted") for each in runs),
        )
        yield Check("runs with unknown outcome", sum(each.state == "unknown" for each in runs), most=0)
        faults = sum(len(warden.fsck(f"{_CATALOG}.db.{name}").of(Severity.ERROR)) for name in _TABLES)
        yield Check("faults that fsck finds", faults, most=0)
        twice = [each.path for name in _TABLES for each in warden.receipts(f"{_CATALOG}.db.{name}", 100_000)]
        yield Check("files deleted twice", len(twice) - len(set(twice)), most=0)
        yield Check("worker leads", float(bool((lease := warden.schedule.leader()) and lease.live)), least=1)


def _open(warden: Lakewarden) -> bool:
    with suppress(LakewardenError):  # the database may still be starting
        return any(each.ended_at is None for each in warden.runs(limit=100))
    return True


def _wrong(spark: Any, written: Written, name: str) -> int:
    rows = spark.sql(
        f"select batch, count(*) n, count(distinct id) d from {_CATALOG}.db.{name} group by batch"
    ).collect()
    found = {row.batch: (row.n, row.d) for row in rows}
    missing = [batch for batch in written.sure[name] if found.get(batch) != (_ROWS, _ROWS)]
    odd = [batch for batch in written.unsure[name] if found.get(batch, (_ROWS, _ROWS)) != (_ROWS, _ROWS)]
    strange = set(found) - written.sure[name] - written.unsure[name]
    return len(missing) + len(odd) + len(strange)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="kills of each component")
    parser.add_argument("--calm", type=float, default=20, help="seconds between two kills")
    parser.add_argument("--folder", type=Path, help="folder of the lake and the logs; it is kept")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args(arguments)
    with lake_folder(options.folder) as folder:
        found = chaos(options.rounds, options.calm, folder)
    tell(found, options.out)
    return 0 if all(each.met for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
