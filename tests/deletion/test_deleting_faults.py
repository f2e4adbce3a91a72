"""expire, sweep and purge when what they stand on fails: the state database, the store, the catalog.

A run completes, or ends with the reason. The next one, once things answer again, settles it and goes on; nothing that
anyone can read is lost, and every file that is gone has one receipt.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from lakewarden import Lakewarden, clock
from lakewarden.errors import Busy, LakewardenError, Unreachable
from lakewarden.jobs.purge import execute as purging
from lakewarden.jobs.run_context import DeletingStep
from lakewarden.model.run import Job, Owner, RunState
from lakewarden.state.database import State
from lakewarden.state.runs import Journal
from lakewarden.state.trash_batches import FileState
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.writer import IcebergWriter
from tests.deletion.test_s3_deleting import new_lab
from tests.support.faults import Faults, proxy
from tests.support.lab import Lab, lakewarden, told_to_tables
from tests.support.postgres import Postgres, postgres
from tests.support.rest_catalog import RestCatalog
from tests.support.s3 import S3, Bucket
from tests.support.spark import add_catalog
from tests.support.witness import Witness, later, run, wanted

pytestmark = pytest.mark.services

OLD = 10 * 86_400
# What a run may be when something failed under it, and it could still be told.
HONEST = (RunState.DONE, RunState.NOTHING_TO_DO, RunState.PARTIAL, RunState.FAILED, RunState.UNKNOWN)


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """In a session of its own: every catalog of a session is asked before anything is deleted."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(alone, catalog, tmp_path / "warehouse", lw)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "LOCAL_BATCH", 3)
    monkeypatch.setattr(purging, "REMOTE_BATCH", 3)


# ------------------------------------------------------------ something for each job to do


def work_for(job: str, witness: Witness) -> None:
    """So that the job has something to do once more; for purge, seven files that a sweep has trashed."""
    lab, table = witness.lab, witness.table
    if job == Job.EXPIRE:
        empty_commit(lab, table)
    else:
        folder = lab.warehouse / "db" / "events" / "data" / secrets.token_hex(4)
        folder.mkdir()
        for number in range(7):
            path = folder / f"orphan-{number}.parquet"
            path.write_bytes(b"x")
            os.utime(path, (time.time() - OLD, time.time() - OLD))
    if job == Job.PURGE:
        run(lab, table, "sweep")
    witness.look_at_files()


def empty_commit(lab: Lab, table: str) -> None:
    """A snapshot that differs from the last one in nothing but its manifest list, which the last one's expiry trashes."""
    loaded = lab.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        lab.spark._jsparkSession, table
    )
    loaded.newAppend().commit()


def try_to(job: str, lab: Lab, table: str) -> None:
    """The job, among things that fail: it may raise what a user can read, and nothing else."""
    try:
        done = lab.lw.run(job, table, wanted(job))
    except LakewardenError as error:
        assert error.message
    else:
        assert done.state in HONEST
        assert done.reason or done.state in (RunState.DONE, RunState.NOTHING_TO_DO)


def goes_on(job: str, witness: Witness, marked: set[str]) -> None:
    """Whatever happened to the run before: only what was marked is gone, and the next run finishes the work."""
    lab, table = witness.lab, witness.table
    receipts = set(witness.files(FileState.ERASED, FileState.MISSING))
    gone = witness.seen - witness.stored() - receipts
    assert gone <= (marked if job == Job.PURGE else set())
    run(lab, table, job)
    witness.nothing_open()
    if job == Job.PURGE:
        assert lab.trash(table) == set() and not marked & witness.stored()
    if job == Job.EXPIRE:
        assert len(lab.lw.view(table).snapshots) == 1
    witness.told_truly(job)


# ------------------------------------------------------------ the state database


class Failing:
    """From the n-th transaction on that writes: once or for good, and with or without having been committed.

    `refused`: the database takes nothing any more, as on a file system that went read-only. `lost`: it committed, and the
    answer did not arrive.
    """

    def __init__(self, nth: int, how: str, stays: bool) -> None:
        self.nth, self.how, self.stays = nth, how, stays
        self.writes = 0

    def __enter__(self) -> Failing:
        real = State.write

        @contextmanager
        def write(state: State) -> Iterator[Connection]:
            self.writes += 1
            fails = self.writes == self.nth or (self.stays and self.writes > self.nth)
            with real(state) as connection:
                if fails and self.how == "refused":
                    connection.exec_driver_sql("PRAGMA query_only = ON")
                yield connection
            if fails and self.how == "lost":
                raise Unreachable(what="the state database", reason="the connection was cut")

        self._patch = patch.object(State, "write", write)
        self._patch.__enter__()
        return self

    def __exit__(self, *what: Any) -> None:
        self._patch.__exit__(*what)


OUTAGES = [
    ("refused", False),
    pytest.param("refused", True, marks=pytest.mark.nightly),
    pytest.param("lost", False, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("job", [Job.EXPIRE, Job.SWEEP, Job.PURGE])
@pytest.mark.parametrize(("how", "stays"), OUTAGES)
def test_every_write_of_the_state_may_fail(lab: Lab, job: Job, how: str, stays: bool) -> None:
    witness = Witness(lab, lab.messy(files=1, days=1, rows=5))
    nth, failing = 0, Failing(0, how, stays)
    while failing.writes >= nth:
        nth += 1
        work_for(job, witness)
        marked = lab.trash(witness.table)
        with Failing(nth, how, stays) as failing:
            try_to(job, lab, witness.table)
        goes_on(job, witness, marked)
    assert nth > 5, "there are writes to fail"
    witness.nothing_lost()


def test_a_full_disk_under_the_state(lab: Lab) -> None:
    """SQLite can take no page more: nothing of what is in the trash counts, and nothing is expired."""
    witness = Witness(lab, lab.messy(files=3, days=1, rows=5))
    real = State.write

    @contextmanager
    def full(state: State) -> Iterator[Connection]:
        with real(state) as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            connection.exec_driver_sql("CREATE TABLE more AS SELECT randomblob(100000) AS some")
            yield connection

    with patch.object(State, "write", full), pytest.raises(Unreachable, match="full"):
        lab.lw.run("expire", witness.table, wanted("expire"))
    assert len(witness.snapshots()) == 3 and not lab.trash(witness.table)
    goes_on("expire", witness, set())
    witness.converges()


@pytest.mark.parametrize("job", [Job.EXPIRE, Job.PURGE])
def test_a_postgresql_that_dies_and_comes_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    """In the middle of a run: no answer any more, and no connection."""
    catalog = add_catalog(alone := spark.newSession(), {"type": "hadoop", "warehouse": str(tmp_path / "w")})
    with postgres() as server, lakewarden(alone, server.fresh_database().url) as lw:
        lab = Lab(alone, catalog, tmp_path / "w", lw)
        witness = Witness(lab, lab.messy(files=3, days=1, rows=5))
        for step in (
            (DeletingStep.EXPIRING,) if job is Job.EXPIRE else (DeletingStep.ERASING, DeletingStep.ERASED)
        ):
            work_for(job, witness)
            marked = lab.trash(witness.table)
            with dies_before(monkeypatch, server, step), pytest.raises(Unreachable, match="state database"):
                lw.run(job, witness.table, wanted(job))
            server.start()
            goes_on(job, witness, marked)
        witness.nothing_lost()


@contextmanager
def dies_before(monkeypatch: pytest.MonkeyPatch, server: Postgres, name: str) -> Iterator[None]:
    real = Journal.step

    def step(self: Journal, run_id: str, owner: Owner, given: str, *more: Any) -> None:
        if given == name:
            server.kill()
        real(self, run_id, owner, given, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "step", step)
        yield


# ------------------------------------------------------------ the store


@dataclass(frozen=True)
class Trouble:
    """What the store does from the n-th request of a run on."""

    name: str
    set: Callable[[Faults, int], None]

    def __str__(self) -> str:
        return self.name


def _busy(faults: Faults, nth: int) -> None:
    faults.busy_from = faults.requests + nth


def _cut(faults: Faults, nth: int) -> None:
    faults.cut_from, faults.cut_after = faults.requests + nth, 40


TROUBLES = [Trouble("busy", _busy), Trouble("cut", _cut)]


# Requests of a run after which the store fails: a sweep and an expiry of a small table need few.
FROM = {Job.EXPIRE: (1, 2), Job.SWEEP: (1, 2), Job.PURGE: (1, 3, 5)}


def calm(faults: Faults) -> None:
    faults.busy_from = faults.cut_from = faults.cut_after = faults.break_deletes = 0


@pytest.mark.parametrize("job", [Job.EXPIRE, Job.SWEEP, Job.PURGE])
def test_a_store_that_fails_in_the_middle(spark: SparkSession, s3: S3, tmp_path: Path, job: Job) -> None:
    """From the first request of a run on, from the third, and so on; then it answers again."""
    bucket = s3.bucket()
    with proxy(s3.port) as faults, new_lab(spark, bucket, tmp_path) as lab:
        witness = Witness(lab, lab.messy(files=1, days=1, rows=5), s3.io())
        for trouble in TROUBLES:
            for nth in FROM[job]:
                trashed_or_due(job, lab, witness, bucket)
                marked = lab.trash(witness.table)
                trouble.set(faults, nth)
                with later(days=10), through(faults):
                    try_to(job, lab, witness.table)
                calm(faults)
                with later(days=10):
                    goes_on(job, witness, marked)
        assert faults.requests >= len(TROUBLES) * sum(FROM[job]), "each trouble was met"
        witness.nothing_lost()


@contextmanager
def through(faults: Faults) -> Iterator[None]:
    """Lakewarden's own requests meet the faults. Iceberg's do not: it asks for a table's metadata for minutes on end."""
    hasty = {"s3.endpoint": faults.endpoint, "s3.retry.num-retries": "1", "s3.request-timeout": "5"}
    with told_to_tables(hasty):
        yield


def trashed_or_due(job: str, lab: Lab, witness: Witness, bucket: Bucket) -> None:
    """Work for the job on a store; a day's clock ahead, because nobody can make an object older than it is."""
    if job == Job.EXPIRE:
        empty_commit(lab, witness.table)
    else:
        for number in range(5):
            bucket.put(f"wh/db/events/data/orphan-{secrets.token_hex(4)}-{number}.parquet")
    if job == Job.PURGE:
        with later(days=10):
            run(lab, witness.table, "sweep")
    witness.look_at_files()


def test_answers_to_deletions_that_end_in_the_middle(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    """The store deleted them and did not get to say so: they are not called deleted before someone looked."""
    bucket = s3.bucket()
    with proxy(s3.port) as faults, new_lab(spark, bucket, tmp_path) as lab:
        witness = Witness(lab, lab.messy(files=1, days=1, rows=5), s3.io())
        trashed_or_due(Job.PURGE, lab, witness, bucket)
        marked = lab.trash(witness.table)
        faults.break_deletes = 1000
        with later(days=10), through(faults):
            done = lab.lw.run("purge", witness.table, wanted("purge"))
        assert done.state is RunState.PARTIAL and done.counters["files_failed"] == len(marked)
        assert lab.lw.receipts(witness.table) == ()
        assert not marked & witness.stored()
        calm(faults)
        with later(days=10):
            done = run(lab, witness.table, "purge")
        assert done.counters["files_missing"] == len(marked)
        witness.nothing_lost()


# ------------------------------------------------------------ the catalog


@pytest.mark.parametrize("happened", [False, True])
def test_a_catalog_that_dies_around_the_commit_of_an_expiry(
    spark: SparkSession,
    rest_catalog: RestCatalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    happened: bool,
) -> None:
    """Before it nothing was sent: the run failed. After it and before the answer: unknown, until the table tells."""
    alone = spark.newSession()
    with proxy(rest_catalog.port) as faults, lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        catalog = add_catalog(alone, {"type": "rest", "uri": faults.endpoint})
        alone.sql(f"show namespaces in {catalog}").collect()
        lab = Lab(alone, catalog, tmp_path / "none", lw)
        witness = Witness(lab, lab.messy(files=4, days=1, rows=5))
        requests = requests_of_an_expiry(lab, witness.table, faults)
        with dying(monkeypatch, rest_catalog, faults, requests if happened else 0):
            undecided = lw.run("expire", witness.table, wanted("expire"))
        assert undecided.state is (RunState.UNKNOWN if happened else RunState.FAILED), undecided.reason
        assert undecided.state.exit_code == (14 if happened else 1)
        rest_catalog.start()
        calm(faults)
        assert len(witness.snapshots()) == (1 if happened else 3)
        witness.nothing_lost()
        run(lab, witness.table, "purge")  # what the first expiry trashed, and nothing of what is undecided
        witness.nothing_lost()

        again = run(lab, witness.table, "expire")
        assert again.state is (RunState.NOTHING_TO_DO if happened else RunState.DONE)
        run(lab, witness.table, "purge")
        with later(minutes=11):
            run(lab, witness.table, "expire")
        found = lw.run_by_id(undecided.id)[0]
        if happened:
            assert found.state is RunState.DONE, "its snapshots are gone, by whichever commit"
            assert "its outcome was unknown; found out later: its snapshots are gone" in found.reason
        else:
            assert found.state is RunState.FAILED and "before it was sent" in found.reason
        witness.converges()


def requests_of_an_expiry(lab: Lab, table: str, faults: Faults) -> int:
    """How many a commit takes that goes well: the last is the commit itself."""
    real, counted = IcebergWriter.expire, []

    def counting(self: IcebergWriter, *arguments: Any) -> None:
        before = faults.requests
        real(self, *arguments)
        counted.append(faults.requests - before)

    oldest = lab.snapshots(table)[0].snapshot_id
    with patch.object(IcebergWriter, "expire", counting):
        lab.lw.run("expire", table, {"snapshot_ids": str(oldest)})
    return counted[0]


@contextmanager
def dying(
    monkeypatch: pytest.MonkeyPatch, server: RestCatalog, faults: Faults, answered: int
) -> Iterator[None]:
    """So many requests of the commit arrive, the answer to the last of them does not; then the server is dead.

    None of them: it dies when the table was loaded and the commit is not yet on its way.
    """
    real, load = IcebergWriter.expire, IcebergCatalogs.load

    def expire(self: IcebergWriter, *arguments: Any) -> None:
        if answered:
            faults.cut_from, faults.cut_after = faults.requests + answered, 0
        else:
            patched.setattr(IcebergCatalogs, "load", last)
        real(self, *arguments)

    def last(self: IcebergCatalogs, ref: Any) -> Any:
        loaded = load(self, ref)
        server.kill()
        return loaded

    with monkeypatch.context() as patched:
        patched.setattr(IcebergWriter, "expire", expire)
        patched.setattr(
            clock, "sleep", lambda seconds: server.kill()
        )  # nobody answers when the table is asked
        yield


# ------------------------------------------------------------ two at once


@pytest.mark.parametrize("job", [Job.EXPIRE, Job.SWEEP, Job.PURGE])
def test_two_workers_on_one_table(lab: Lab, job: Job) -> None:
    """One is busy, or they take turns; nothing is done twice."""
    witness = Witness(lab, lab.messy(files=2, days=1, rows=5))
    url = str(lab.lw.config.state.url)
    with lakewarden(lab.spark, url) as first, lakewarden(lab.spark, url) as second:
        _ = first.lake, second.lake
        for _ in range(2):
            work_for(job, witness)
            marked = lab.trash(witness.table)
            before = len(lab.lw.receipts(witness.table, 1000))
            with ThreadPoolExecutor(2) as pool:
                ended = list(pool.map(lambda lw: outcome(lw, job, witness.table), (first, second)))
            assert RunState.DONE in ended, ended
            assert set(ended) <= {RunState.DONE, RunState.NOTHING_TO_DO, "busy"}
            goes_on(job, witness, marked)
            if job is Job.PURGE:  # told once, each
                assert len(lab.lw.receipts(witness.table, 1000)) == before + len(marked)
    witness.nothing_lost()


def outcome(lw: Lakewarden, job: Job, table: str) -> str:
    try:
        return lw.run(job, table, wanted(job)).state
    except Busy as error:
        assert error.exit_code == 11
        return "busy"
