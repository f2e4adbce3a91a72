"""Two workers on one PostgreSQL: the leader is killed with -9 in the middle of a job, the other finishes it, nothing is done twice.

A compaction and a deletion are killed every time, the other jobs by `make crash`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from lakewarden import clock
from lakewarden.jobs.run_context import DeletingStep, HistoryStep, StepName
from lakewarden.model.run import Job, RunState
from lakewarden.state.requests import RequestState
from lakewarden.state.schedule import PASS
from tests.crash.worker_child import WORKER
from tests.support.lab import Lab, lakewarden
from tests.support.nightly import nightly_except
from tests.support.ports import wait_until
from tests.support.postgres import Database
from tests.support.spark import add_catalog, remove_catalog
from tests.support.witness import EXPIRE, Witness, run
from tests.support.workers import slot

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("worker_child.py")
OFF: dict[str, object] = {
    "rewrite_min_input_files": 2,
    "rewrite_enabled": False,
    "delete_compaction_enabled": False,
    "manifest_rewrite_enabled": False,
    "snapshot_expiry_enabled": False,
    "history_compaction_enabled": False,
}
LONG = 180.0


@dataclass(frozen=True)
class Death:
    """In the middle of which job the leader dies, and what its run is found to have been."""

    job: Job
    place: str
    policy: dict[str, object]
    found: RunState = RunState.FAILED
    when: str = "after"
    always: bool = False
    first: tuple[str, ...] = field(default=())  # jobs that are done by hand before the workers start


DEATHS = [
    Death(Job.COMPACT, StepName.COMMITTING, {"rewrite_enabled": True}, always=True),
    # One of its two partitions was committed, and it had not heard so.
    Death(Job.COMPACT, StepName.COMMITTED, {"rewrite_enabled": True}, RunState.PARTIAL, "before"),
    Death(Job.COMPACT_DELETES, StepName.COMMITTING, {"delete_compaction_enabled": True}),
    Death(
        Job.REWRITE_MANIFESTS,
        StepName.COMMITTING,
        {"manifest_rewrite_enabled": True, "manifest_rewrite_min_manifests": 2},
    ),
    Death(Job.EXPIRE, DeletingStep.EXPIRING, {"snapshot_expiry_enabled": True, **EXPIRE}),
    Death(
        Job.PURGE,
        DeletingStep.ERASING,
        {"delete_grace_hours": 0},
        always=True,
        first=("compact", "expire"),
    ),
    Death(
        Job.SWEEP,
        DeletingStep.TRASHING,
        {"orphan_sweep_enabled": True, "orphan_max_percent": 100, "orphan_grace_hours": 24},
    ),
    Death(
        Job.EXPIRE_PARTITIONS,
        StepName.COMMITTING,
        {"partition_expiry_enabled": True, "partition_ttl_hours": "30d"},
    ),
    Death(
        Job.HANDOFF,
        DeletingStep.HANDING,
        {"handoff_enabled": True, "snapshot_expiry_enabled": True, **EXPIRE},
    ),
    Death(
        Job.COMPACT_HISTORY,
        HistoryStep.FOLDING,
        {"history_compaction_enabled": True, **EXPIRE},
        first=("expire",),
    ),
]


@pytest.mark.main
def test_there_is_a_death_in_every_job() -> None:
    assert {each.job for each in DEATHS} == set(Job)


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path, pg_database: Database) -> Iterator[Lab]:
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    with lakewarden(alone, pg_database.url.replace("+psycopg", "")) as lw:
        yield Lab(alone, catalog, tmp_path / "warehouse", lw)


def ended(process: subprocess.Popen[bytes], log: Path) -> int:
    """Its exit code; where it lives on, what it said."""
    try:
        return process.wait(LONG)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it did not die:\n{log.read_text()[-4000:]}") from None


@contextmanager
def worker(lab: Lab, log: Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    told = {
        "url": lab.lw.config.state.url,
        "folder": str(lab.warehouse.parent),
        "catalog": lab.catalog,
        **more,
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(told)], stdout=out, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(120)


def _over(lab: Lab, table: str) -> bool:
    found = slot(lab.lw, table)
    return found is not None and found.ended_at is not None


def term(lab: Lab) -> int:
    leader = lab.lw.schedule.leader()
    return leader.term if leader is not None and leader.live else 0


def prepared(lab: Lab, death: Death) -> str:
    """A table in need of the job, whose policy asks for that job alone."""
    table = lab.messy(files=5, days=2, rows=20)
    if death.job is Job.COMPACT_DELETES:
        lab.sql(f"alter table {table} set tblproperties ('write.delete.mode'='merge-on-read')")
        lab.sql(f"delete from {table} where id % 5 = 0")
    if death.job is Job.EXPIRE_PARTITIONS:  # one that would empty the table is refused
        lab.sql(f"insert into {table} values (1000000, 'new', current_date())")
    if death.job is Job.SWEEP:
        orphan = lab.warehouse / "db" / "events" / "data" / "orphan.parquet"
        orphan.write_bytes(b"x")
        os.utime(orphan, (time.time() - 864_000, time.time() - 864_000))
    for job in death.first:
        run(lab, table, job, **({"rewrite_min_input_files": 2} if job == "compact" else {}))
    if death.job is Job.PURGE:
        for path in lab.warehouse.rglob("*"):
            os.utime(path, (time.time() - 60, time.time() - 60))
    lab.lw.set_policy(table, {**OFF, **death.policy})
    return table


@pytest.mark.parametrize(
    "death",
    nightly_except(lambda each: each.always, DEATHS),
    ids=lambda each: f"{each.job}-{each.when}-{each.place}",
)
def test_the_other_worker_finishes(
    lab: Lab, tmp_path: Path, death: Death, capsys: pytest.CaptureFixture[str]
) -> None:
    more: dict[str, Any] = {}
    if death.job is Job.HANDOFF:
        (tmp_path / "cold").mkdir()
        more["cold"] = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(tmp_path / "cold")})
        death.policy["handoff_catalog"] = more["cold"]
    table = prepared(lab, death)
    witness, before = Witness(lab, table), len(lab.snapshots(table))
    done_before = {each.id for each in lab.lw.runs(table)}
    asked = lab.lw.schedule.request(table)
    first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"
    with worker(lab, first_log, place=death.place, when=death.when, **more) as first:
        wait_until(lambda: term(lab) == 1, "the first leads", LONG)
        with worker(lab, second_log, **more):
            code = ended(first, first_log)
            died = time.monotonic()
            assert code == -signal.SIGKILL, first_log.read_text()[-3000:]
            wait_until(lambda: term(lab) == 2, "the second leads", 30)
            took = time.monotonic() - died
            wait_until(lambda: lab.lw.schedule.request_by_id(asked.id).ended, "the request is done", LONG)
            wait_until(lambda: _over(lab, table), "the pass is over", LONG)
            over = time.monotonic() - died
    with capsys.disabled():
        print(
            f"\n  {death.job}: killed {death.when} {death.place}; the other leads after {took:.1f} s, is done after {over:.1f} s"
        )
    assert took < WORKER["lease_seconds"] + 5
    told = f"{first_log.read_text()[-2000:]}\n---\n{second_log.read_text()[-4000:]}"
    request = lab.lw.schedule.request_by_id(asked.id)
    assert request.state is RequestState.DONE, f"{request.reason}\n{told}"
    runs = [each for each in lab.lw.runs(table) if each.job == death.job and each.id not in done_before]
    dead = runs[-1]
    assert dead.state is death.found and "stopped before the run was over" in dead.reason, dead.reason
    assert runs[-2].state is RunState.DONE, runs[-2].reason
    assert all(each.ended_at is not None for each in lab.lw.runs(table)), "nothing is left open"
    # No double work: the table has the one snapshot more that the job makes, if it makes any.
    made = len(lab.snapshots(table)) - before
    if death.job in (Job.COMPACT, Job.COMPACT_DELETES):
        assert made == 2, "one commit for each partition"
    if death.job in (Job.REWRITE_MANIFESTS, Job.EXPIRE_PARTITIONS):
        assert made == 1
    if death.job is not Job.EXPIRE_PARTITIONS:
        witness.nothing_lost()
    standing = slot(lab.lw, table, PASS)
    assert standing is not None and standing.failures == 0
    if more.get("cold"):
        remove_catalog(lab.spark, more["cold"])
    assert clock.now() > dead.started_at


def _jvm(process: subprocess.Popen[bytes]) -> psutil.Process | None:
    children = psutil.Process(process.pid).children(recursive=True)
    return next((each for each in children if "java" in each.name()), None)


@pytest.mark.nightly
def test_a_worker_whose_spark_is_killed_starts_it_again_and_goes_on(lab: Lab, tmp_path: Path) -> None:
    table = prepared(lab, DEATHS[0])
    rows, log = lab.rows(table), tmp_path / "worker.log"
    # It stands still in the middle of the first run, for as long as it takes to kill its JVM.
    with worker(lab, log, place=StepName.WRITING, when="after", end="stop") as process:
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it is at it", LONG)
        jvm = _jvm(process)
        assert jvm is not None
        jvm.kill()
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: len(lab.data_files(table)) == 2, "it is compacted", LONG)
        wait_until(lambda: _over(lab, table), "the pass is over", LONG)
        assert process.poll() is None, log.read_text()[-3000:]
    told = log.read_text()
    assert "spark-not-ready" in told and told.count("spark-ready") == 2, told
    dead = [each for each in lab.lw.runs(table) if each.job == Job.COMPACT][-1]
    assert dead.state is RunState.FAILED, dead.reason
    assert lab.rows(table) == rows
    assert all(each.ended_at is not None for each in lab.lw.runs(table))


@pytest.mark.nightly
def test_sigterm_drains_and_the_standby_leads_at_once(lab: Lab, tmp_path: Path) -> None:
    table = prepared(lab, DEATHS[0])
    with worker(lab, tmp_path / "first.log") as first:
        wait_until(lambda: term(lab) == 1, "the first leads", LONG)
        wait_until(lambda: _over(lab, table), "the pass is over", LONG)
        with worker(lab, tmp_path / "second.log"):
            wait_until(lambda: "standing-by" in (tmp_path / "second.log").read_text(), "it stands by", LONG)
            first.send_signal(signal.SIGTERM)
            assert first.wait(120) == 0
            wait_until(lambda: term(lab) == 2, "the second leads", 10)
    assert "stopped" in (tmp_path / "second.log").read_text()
