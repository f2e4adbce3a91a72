"""Flink writes, Lakewarden maintains beside it, Flink is killed twice after an expiry: every row once at the end.

One job has an append stream and a stream of upserts (equality deletes). Its sources count from 1 and are part of
its checkpoints, so the rows at the end are known exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.interop.flink import Flink, Session, flink
from tests.interop.lake import DELETING, Lake, lake, paimon_lake
from tests.interop.parts import NotToBeHad
from tests.interop.places import BARE, EVERYWHERE, FILE, Place, place
from tests.interop.report import Report

# Slow until the last restart, so that the sources do not end before it; quick afterwards.
ROWS, SLOWLY, QUICKLY, KEYS = 60_000, 120, 2500, 700
TABLES = ("appended", "upserted")


@dataclass(frozen=True)
class Streams:
    """What a case writes and where: how to make the catalog in a session of Flink, and Lakewarden on the same tables."""

    flink: Flink
    lake: Lake
    catalog: str
    settings: dict[str, str]
    walked: bool  # whether a restarted job looks for its checkpoint parent by parent, as with Iceberg

    def session(self, rate: int = SLOWLY, **settings: str) -> Session:
        session = self.flink.session({**self.settings, **settings})
        session.run(self.catalog)
        for source in TABLES:
            session.run(
                f"create temporary table {source}_source (id bigint) with ('connector' = 'datagen', "
                f"'rows-per-second' = '{rate}', 'fields.id.kind' = 'sequence', "
                f"'fields.id.start' = '1', 'fields.id.end' = '{ROWS}')"
            )
        return session

    def submit(self, session: Session) -> str:
        return session.submit(
            "execute statement set begin "
            "insert into flink.db.appended select id, concat('row-', cast(id as string)), id * 1.5e0 "
            "from appended_source; "
            f"insert into flink.db.upserted select id % {KEYS}, concat('row-', cast(id as string)), id "
            "from upserted_source; end"
        )

    def tables(self) -> list[str]:
        return [f"{self.lake.catalog}.db.{name}" for name in TABLES]

    def maintain(self, beside: bool) -> None:
        for table in self.tables():
            self.lake.maintain(table, beside)

    def delete(self) -> None:
        """Compact first, so that the newest snapshot is ours, then expire every snapshot that may go.

        A restarted job of Flink walks from the head down to its checkpoint. Snapshots of others stand between the two, which
        expire would take if they were not held.
        """
        for table in self.tables():
            self.lake.run("compact", table)
            if self.walked:
                self.lake.run("compact", table, rewrite_strategy="sort", rewrite_sort_columns=["s"])
                self.lake.commit_nothing(table)
                self.lake.commit_nothing(table)
            for job in DELETING:
                self.lake.run(job, table)
            if self.walked:
                steps = self.steps_to_checkpoint(table)
                assert steps >= 2, f"{steps} snapshots between the head and Flink's checkpoint judge nothing"

    def steps_to_checkpoint(self, table: str) -> int:
        """How many snapshots a restarted job passes by until it finds itself; an error where it does not."""
        rows = self.lake.spark.sql(
            f"select snapshot_id, parent_id, summary['flink.job-id'] from {table}.snapshots"
        ).collect()
        chain = {row[0]: (row[1], row[2]) for row in rows}
        (head,) = self.lake.row(f"select snapshot_id from {table}.refs where name = 'main'")
        steps = 0
        while head in chain:
            parent, job = chain[head]
            if job is not None:
                return steps
            head, steps = parent, steps + 1
        raise AssertionError(f"{table}: the chain ends after {steps} snapshots, without Flink's checkpoint")


def through_two_deaths(streams: Streams) -> None:
    """The TaskManager dies first, then the whole cluster; both times Lakewarden expires and deletes while Flink is down."""
    running = streams.flink
    job = streams.submit(streams.session())
    running.wait_for(job, "RUNNING")
    running.wait_for_checkpoints(job, 6)
    streams.maintain(beside=True)
    running.wait_for_checkpoints(job, 3)

    running.worker.kill()
    streams.delete()
    running.start_worker()
    running.wait_for_checkpoints(job, 4)
    streams.maintain(beside=True)
    running.wait_for_checkpoints(job, 3)

    running.kill_cluster()
    checkpoint = running.newest_checkpoint(job)
    streams.delete()
    running.start_cluster()
    job = streams.submit(streams.session(QUICKLY, **{"execution.state-recovery.path": checkpoint}))
    streams.maintain(beside=True)
    running.wait_for(job, "FINISHED")
    streams.maintain(beside=False)


def judge(query: Callable[[str], tuple[Any, ...]], catalog: str) -> None:
    """Every appended row once, and of each key the newest row."""
    rows = query(f"select count(*), count(distinct id), sum(id), min(id), max(id) from {catalog}.db.appended")
    wanted = (ROWS, ROWS, ROWS * (ROWS + 1) // 2, 1, ROWS)
    assert tuple(map(int, rows)) == wanted, f"appended: {rows}, wanted {wanted}"
    newest = {number % KEYS: number for number in range(1, ROWS + 1)}
    found = query(f"select count(*), count(distinct k), sum(v), min(v), max(v) from {catalog}.db.upserted")
    kept = newest.values()
    wanted = (len(newest), len(newest), sum(kept), min(kept), max(kept))
    assert tuple(map(int, found)) == wanted, f"upserted: {found}, wanted {wanted}"


def worked(beside: Lake) -> str:
    """What was done; a case in which nothing was compacted, expired or deleted judges nothing."""
    idle = [job for job in ("compact", "expire", "purge") if not beside.counts.get(job)]
    assert not idle, f"{', '.join(idle)} never had work: {beside.done}"
    return beside.done


# ------------------------------------------------------------ Iceberg


def iceberg_streams(running: Flink, beside: Lake, where: Place, newer_sink: bool) -> Streams:
    options = {"type": "iceberg", "catalog-type": "rest", "uri": where.uri, "cache-enabled": "false"}
    streams = Streams(
        running,
        beside,
        _create_catalog({**options, **where.io}),
        {"table.exec.iceberg.use-v2-sink": str(newer_sink).lower()},
        walked=True,
    )
    session = streams.session()
    session.run("create database flink.db")
    session.run("create table flink.db.appended (id bigint, s string, x double)")
    session.run(
        "create table flink.db.upserted (k bigint, s string, v bigint, primary key (k) not enforced) "
        "with ('format-version' = '2', 'write.upsert.enabled' = 'true')"
    )
    return streams


def iceberg_case(spark: SparkSession, running: Flink, folder: Path, location: str, newer_sink: bool) -> str:
    with place(location, folder) as where, lake(spark, folder, where.catalog_properties) as beside:
        streams = iceberg_streams(running, beside, where, newer_sink)
        orphan = beside.plant_orphan(f"{beside.catalog}.db.appended", folder)
        through_two_deaths(streams)
        judge(beside.row, beside.catalog)
        batch = streams.session(**{"execution.runtime-mode": "batch"})
        judge(lambda query: tuple(batch.run(query)[0]), "flink")
        assert not orphan.exists(), "an old orphan is still there after sweep and purge"
        return worked(beside)


# ------------------------------------------------------------ Paimon


def paimon_case(spark: SparkSession, running: Flink, folder: Path, location: str) -> str:
    folder.mkdir(parents=True)
    warehouse = f"file://{folder}/wh" if location == FILE else f"{folder}/wh"
    with paimon_lake(spark, folder, {"warehouse": warehouse}) as beside:
        catalog = _create_catalog({"type": "paimon", "warehouse": warehouse})
        streams = Streams(running, beside, catalog, {}, walked=False)
        session = streams.session()
        session.run("create database flink.db")
        options = "'write-only' = 'true', 'bucket' = "
        session.run(f"create table flink.db.appended (id bigint, s string, x double) with ({options} '-1')")
        session.run(
            "create table flink.db.upserted (k bigint, s string, v bigint, primary key (k) not enforced) "
            f"with ({options} '2')"
        )
        through_two_deaths(streams)
        batch = streams.session(**{"execution.runtime-mode": "batch"})
        judge(lambda query: tuple(batch.run(query)[0]), "flink")
        return worked(beside)


def _create_catalog(options: dict[str, str]) -> str:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"create catalog flink with ({listed})"


def run(report: Report, spark: SparkSession, folder: Path) -> None:
    """Three places for Iceberg, each through two deaths; the newer sink of Iceberg in one of them; then Paimon."""
    cases: list[tuple[str, str, Callable[[Flink, Path], str]]] = []
    for location in EVERYWHERE:
        newer = location == BARE
        name = f"iceberg append, upsert; killed twice{' (v2 sink)' if newer else ''}"
        cases.append((name, location, _iceberg(spark, location, newer)))
    cases += [("paimon append, key; killed twice", each, _paimon(spark, each)) for each in (FILE, BARE)]
    for number, (name, location, case) in enumerate(cases):
        with report.case("flink", name, location) as result, ExitStack() as stack:
            try:
                running = stack.enter_context(flink(folder / f"flink-{number}"))
            except FileNotFoundError as error:
                raise NotToBeHad(str(error)) from error
            result.text = case(running, folder / f"lake-{number}")


def _iceberg(spark: SparkSession, location: str, newer: bool) -> Callable[[Flink, Path], str]:
    return lambda running, folder: iceberg_case(spark, running, folder, location, newer)


def _paimon(spark: SparkSession, location: str) -> Callable[[Flink, Path], str]:
    return lambda running, folder: paimon_case(spark, running, folder, location)
