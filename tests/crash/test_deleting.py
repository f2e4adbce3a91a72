"""kill -9 around every journaled step, and between them, of the jobs that mark and delete.

After each death the next run says how the dead one really ended and goes on; nothing that anyone can read is lost, nothing
goes before its grace, every file that is gone has one receipt, and given time everything that nobody needs is gone. The
steps come from the code, so a new step is a new crash test. A few run always, the others by `make crash`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakewarden.errors import Busy, Refused
from lakewarden.jobs.recovery import IN_FLIGHT
from lakewarden.jobs.run_context import DeletingStep
from lakewarden.model.location import normal
from lakewarden.model.run import Job, Run, RunState
from lakewarden.state.holds import LoadState
from lakewarden.state.trash_batches import FileState
from tests.crash.deleting_child import PERMIT_SECONDS
from tests.crash.test_handoff import DEATHS
from tests.support.lab import Lab, lakewarden
from tests.support.nightly import nightly_except
from tests.support.ports import wait_until
from tests.support.spark import add_catalog
from tests.support.witness import Witness, later, run, wanted

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("deleting_child.py")
DONE, FAILED, PARTIAL, UNKNOWN = RunState.DONE, RunState.FAILED, RunState.PARTIAL, RunState.UNKNOWN
OLD = 10 * 86_400


@dataclass(frozen=True)
class Death:
    """Where a job's process dies, and what its run is found to have been."""

    job: str
    place: str
    when: str
    found: RunState
    nth: int = 1
    always: bool = False  # not only in `make crash`

    def __str__(self) -> str:
        return f"{self.job}-{self.when}-{self.place}{'' if self.nth == 1 else f'-{self.nth}'}"


def _around(job: str, place: str, before: RunState, after: RunState, nth: int = 1) -> list[Death]:
    return [Death(job, place, "before", before, nth), Death(job, place, "after", after, nth)]


EXPIRES = [
    *_around("expire", DeletingStep.TRASHING, FAILED, FAILED),
    Death("expire", DeletingStep.EXPIRING, "before", FAILED),
    Death("expire", DeletingStep.EXPIRING, "after", FAILED, always=True),
    *_around("expire", DeletingStep.TRASHED, DONE, DONE),
    Death("expire", "trash", "inside", FAILED),
    # The catalog moved, and we had not heard.
    Death("expire", "expire-commit", "after", DONE, always=True),
    Death("expire", "enforce", "inside", DONE),
    *_around("expire", "finish", DONE, DONE),
]
SWEEPS = [
    *_around("sweep", DeletingStep.TRASHING, FAILED, FAILED),
    *_around("sweep", DeletingStep.TRASHED, DONE, DONE),
    Death("sweep", "trash", "inside", FAILED),
    Death("sweep", "enforce", "inside", FAILED),
    *_around("sweep", "finish", DONE, DONE),
]
PURGES = [
    *_around("purge", DeletingStep.ERASING, FAILED, FAILED),
    *_around("purge", DeletingStep.ERASED, PARTIAL, PARTIAL),
    *_around("purge", DeletingStep.ERASING, PARTIAL, PARTIAL, nth=2),
    Death("purge", "begin-erasing", "after", FAILED),
    Death("purge", "unlink", "after", PARTIAL, nth=5, always=True),  # in the middle of the second batch
    Death("purge", "erase", "after", PARTIAL),  # a whole batch is gone, without a receipt
    Death("purge", "receipts", "inside", PARTIAL),
    *_around("purge", "finish", PARTIAL, DONE),
]
ADOPTS = [
    *_around("adopt", DeletingStep.ADOPTING, FAILED, UNKNOWN),
    *_around("adopt", DeletingStep.ADOPTED, DONE, DONE),
    Death("adopt", "claim", "inside", FAILED),
    Death("adopt", "adopt-commit", "after", DONE),
    *_around("adopt", "end-load", DONE, DONE),
    *_around("adopt", "finish", DONE, DONE),
]
EVERY = [*EXPIRES, *SWEEPS, *PURGES, *ADOPTS]


def cases(deaths: list[Death]) -> list[Any]:
    return nightly_except(lambda each: each.always, deaths)


@pytest.mark.main
def test_there_is_a_death_on_both_sides_of_every_step() -> None:
    told = {(each.place, each.when) for each in EVERY if each.place in set(DeletingStep)}
    told |= {(place, when) for place, when, _, _ in DEATHS if place in set(DeletingStep)}
    assert told == {(step, when) for step in DeletingStep for when in ("before", "after")}


# ------------------------------------------------------------ the table and its child


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """In a session of its own: every catalog of a session is asked before anything is deleted."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(alone, catalog, tmp_path / "warehouse", lw)


@pytest.fixture
def witness(lab: Lab) -> Witness:
    """A table with a tag, a pin, files that only old snapshots need, and orphans."""
    table = lab.messy(files=4, days=2, rows=20)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.sql(f"alter table {table} create tag audit as of version {ids[0]}")
    lab.lw.pin(table, ids[1], holder="report")
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    for place in ("data/d=2024-03-01/orphan-1.parquet", "data/orphan-2.parquet", "metadata/orphan-3-m0.avro"):
        path = lab.warehouse / "db" / "events" / place
        path.write_bytes(b"x")
        os.utime(path, (time.time() - OLD, time.time() - OLD))
    return Witness(lab, table)


def task(witness: Witness, job: str, place: str, when: str, **more: object) -> list[str]:
    told = {
        "folder": str(witness.lab.warehouse.parent),
        "table": witness.table,
        "job": job,
        "place": place,
        "when": when,
        "policy": wanted(job) if job in set(Job) else {},
        **more,
    }
    return [sys.executable, str(CHILD), json.dumps(told)]


def kill_at(witness: Witness, job: str, place: str, when: str, **more: object) -> None:
    command = task(witness, job, place, when, **more)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, (
        f"it did not die {when} {place}: {done.stdout}{done.stderr[-2000:]}"
    )


def told_truly(lab: Lab, died: str, death: Death) -> Run:
    """What the dead run is called after the next one looked, and that it was the dead one who was meant."""
    found, steps = lab.lw.run_by_id(died)
    assert found.state is death.found, found.reason
    if (death.place, death.when) == ("finish", "after"):
        return found  # it had said itself how it ended
    assert "stopped before the run was over" in found.reason
    assert steps[-1].name == "recovered"
    return found


def last_run(lab: Lab, table: str) -> str:
    return lab.lw.runs(table)[0].id


# ------------------------------------------------------------ killed


@pytest.mark.main
@pytest.mark.parametrize("death", cases(EXPIRES), ids=str)
def test_a_killed_expiry(witness: Witness, death: Death) -> None:
    lab, table = witness.lab, witness.table
    kill_at(witness, "expire", death.place, death.when)
    witness.nothing_lost()
    died = last_run(lab, table)

    run(lab, table, "expire")
    told_truly(lab, died, death)
    witness.nothing_open()
    witness.nothing_lost()
    assert len(witness.snapshots()) == 3, "the tag's, the pin's and the current one"
    assert len(lab.trash(table)) > 4

    assert lab.lw.run("purge", table).state is RunState.NOTHING_TO_DO, "the grace has just begun"
    assert witness.seen <= witness.stored(), "nothing goes before its grace"
    witness.converges()


@pytest.mark.parametrize("death", cases(SWEEPS), ids=str)
def test_a_killed_sweep(witness: Witness, death: Death) -> None:
    lab, table = witness.lab, witness.table
    kill_at(witness, "sweep", death.place, death.when)
    witness.nothing_lost()
    died = last_run(lab, table)

    run(lab, table, "sweep")
    told_truly(lab, died, death)
    witness.nothing_open()
    assert {Path(each).name for each in lab.trash(table)} == {
        "orphan-1.parquet",
        "orphan-2.parquet",
        "orphan-3-m0.avro",
    }
    assert lab.lw.run("purge", table).state is RunState.NOTHING_TO_DO
    assert witness.seen <= witness.stored(), "nothing goes before its grace"
    witness.converges()


@pytest.mark.main
@pytest.mark.parametrize("death", cases(PURGES), ids=str)
def test_a_killed_purge(witness: Witness, death: Death) -> None:
    lab, table = witness.lab, witness.table
    run(lab, table, "expire")
    marked = lab.trash(table)
    witness.look()
    kill_at(witness, "purge", death.place, death.when, nth=death.nth)
    witness.nothing_lost()
    died = last_run(lab, table)

    run(lab, table, "purge")
    found = told_truly(lab, died, death)
    if death.found is PARTIAL:
        receipts = [each for each in lab.lw.receipts(table, 1000) if each.run_id == died]
        assert receipts and f"{len(receipts)} files had been erased" in found.reason
    witness.nothing_open()
    witness.nothing_lost()
    assert not marked & witness.stored()
    assert set(witness.files(FileState.ERASED, FileState.MISSING)) == marked
    witness.converges()


# ------------------------------------------------------------ restoring


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "inside", "after"])
def test_a_killed_restore_happened_or_did_not(witness: Witness, when: str) -> None:
    lab, table = witness.lab, witness.table
    run(lab, table, "expire")
    marked = lab.trash(table)
    witness.look()
    kill_at(witness, "restore", "restore", when)
    happened = when == "after"
    assert lab.trash(table) == (set() if happened else marked)
    assert set(witness.files(FileState.RESTORED)) == (marked if happened else set())
    run(lab, table, "purge")
    assert bool(marked & witness.stored()) is happened
    witness.converges()


@pytest.mark.nightly
def test_what_a_killed_purge_was_deleting_is_not_promised_to_come_back(witness: Witness) -> None:
    """A file that is gone is never called restored: it has a receipt, however many processes died over it."""
    lab, table = witness.lab, witness.table
    run(lab, table, "expire")
    witness.look()
    kill_at(witness, "purge", "erase", "after")
    gone = witness.seen - witness.stored()
    assert gone
    # The next run looks at what the dead one was at, and can then go no further.
    unreadable = lab.warehouse / "db" / "other" / "metadata" / "v1.metadata.json"
    unreadable.parent.mkdir(parents=True)
    unreadable.write_text("{")
    with pytest.raises(Refused):
        lab.lw.run("purge", table, wanted("purge"))
    lab.lw.restore(table, everything=True)
    assert set(witness.files(FileState.RESTORED)) <= witness.stored(), "restored, and not there"
    unreadable.unlink()
    witness.nothing_lost()
    witness.converges()


# ------------------------------------------------------------ loads


def staged(lab: Lab, table: str) -> tuple[str, str]:
    path = str(lab.warehouse / "db" / "events" / "data" / "in" / "load.parquet")
    Path(path).parent.mkdir(parents=True)
    rows = {"id": [7001, 7002], "s": ["a", "b"], "d": [date(2024, 3, 1)] * 2}
    pq.write_table(pa.table(rows), path)
    return lab.lw.holds.stage_begin(table, "loader", paths=[path]).id, path


@pytest.mark.parametrize("death", cases(ADOPTS), ids=str)
def test_a_killed_adoption(witness: Witness, death: Death) -> None:
    lab, table = witness.lab, witness.table
    load, path = staged(lab, table)
    before = lab.rows(table)
    kill_at(witness, "adopt", death.place, death.when, load=load)
    died = last_run(lab, table)
    with later(days=5):  # whatever became of it, its file is nobody's to take
        run(lab, table, "sweep")
        assert normal(path) not in lab.trash(table)

    again = lab.lw.holds.stage_adopt(load)
    assert again.state in (RunState.DONE, RunState.NOTHING_TO_DO), again.reason
    told_truly(lab, died, death)
    assert len(lab.rows(table)) == len(before) + 2, "once"
    assert [each.state for each in lab.lw.holds._adopting.loads.list(table)] == [LoadState.ADOPTED]
    with later(seconds=IN_FLIGHT.total_seconds() + 1):
        lab.lw.holds.stage_adopt(load)
    assert lab.lw.run_by_id(died)[0].state is not UNKNOWN
    witness.converges()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "when"),
    [
        ("trash", "inside"),
        ("trash", "after"),
        ("end-load", "inside"),
        ("end-load", "after"),
        ("enforce", "inside"),
    ],
)
def test_a_killed_failing_of_a_load(witness: Witness, place: str, when: str) -> None:
    lab, table = witness.lab, witness.table
    load, path = staged(lab, table)
    witness.look()
    kill_at(witness, "fail", place, when, load=load)
    witness.nothing_lost()
    assert Path(path).exists()
    assert lab.lw.holds.stage_fail(load).state is LoadState.FAILED
    assert normal(path) in lab.trash(table)
    witness.converges()
    assert not Path(path).exists()


# ------------------------------------------------------------ stopped, taken for dead, and awake again


@pytest.fixture
def asleep(witness: Witness) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that were stopped; none is left behind."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for each in started:
        if each.poll() is None:
            each.kill()
            each.wait()


def stop_at(
    asleep: list[subprocess.Popen[str]], witness: Witness, job: str, place: str, when: str
) -> subprocess.Popen[str]:
    command = task(witness, job, place, when, end="stop")
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    asleep.append(child)
    done, status = os.waitpid(child.pid, os.WUNTRACED)
    assert done == child.pid and os.WIFSTOPPED(status), child.communicate()
    return child


def wake(child: subprocess.Popen[str]) -> str:
    child.send_signal(signal.SIGCONT)
    said, wrong = child.communicate(timeout=120)
    assert child.returncode == 0, wrong[-2000:]
    return said


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process counts as another host's, so that it goes by a run's beats, and as if those had stopped long ago."""
    monkeypatch.setattr("lakewarden.state.process._host", lambda: "elsewhere")
    monkeypatch.setattr("lakewarden.jobs.recovery.is_gone", lambda run, now: True)


STALLS = [
    pytest.param("erasing", "before", marks=pytest.mark.nightly),  # between the proof and its journal
    pytest.param("erasing", "after", marks=pytest.mark.nightly),
    pytest.param("begin-erasing", "after", marks=pytest.mark.nightly),  # marked, and nothing erased yet
    ("erase", "before"),  # with the permit in its hand
]


@pytest.mark.parametrize(("place", "when"), STALLS)
@pytest.mark.usefixtures("elsewhere")
def test_a_purge_that_lost_its_run_deletes_nothing_more(
    witness: Witness, asleep: list[subprocess.Popen[str]], place: str, when: str
) -> None:
    """It stood still between proof and deletion, another took its run over, and someone got all files back."""
    lab, table = witness.lab, witness.table
    run(lab, table, "expire")
    witness.look()
    child = stop_at(asleep, witness, "purge", place, when)
    stopped, taken = time.monotonic(), last_run(lab, table)

    # Another worker takes the run over; the grace it was told is not over, so everything can be given back.
    again = lab.lw.run("purge", table)
    assert again.state is RunState.NOTHING_TO_DO
    assert lab.lw.run_by_id(taken)[0].state is FAILED
    assert lab.lw.restore(table, everything=True).files
    there = witness.stored()
    wait_until(lambda: time.monotonic() > stopped + PERMIT_SECONDS, "its permit is over")
    said = wake(child)
    assert said.startswith("raised:") and ("RunTaken" in said or "Refused" in said), said
    assert witness.stored() == there, "it deleted files that it had no right to any more"
    witness.nothing_open()
    witness.converges()


@pytest.mark.nightly
@pytest.mark.parametrize("place", [DeletingStep.EXPIRING, "expire-commit"])
@pytest.mark.usefixtures("elsewhere")
def test_an_expiry_that_lost_its_run(
    witness: Witness, asleep: list[subprocess.Popen[str]], place: str
) -> None:
    """Whatever it still does to the metadata: what it took is in the trash by nobody, or by who took its run over."""
    lab, table = witness.lab, witness.table
    child = stop_at(asleep, witness, "expire", place, "before")
    run(lab, table, "expire", snapshot_expire_limit=1)
    witness.look()
    said = wake(child)
    # It hears that its run was taken over, or that its commit was not sent; it never reports success.
    assert said.startswith(("raised:", "survived: failed")), said
    witness.nothing_lost()
    witness.nothing_open()
    witness.converges()


@pytest.mark.nightly
@pytest.mark.usefixtures("elsewhere")
def test_a_sweep_that_lost_its_run(witness: Witness, asleep: list[subprocess.Popen[str]]) -> None:
    lab, table = witness.lab, witness.table
    child = stop_at(asleep, witness, "sweep", "enforce", "before")
    first = last_run(lab, table)
    run(lab, table, "sweep")
    lab.lw.restore(table, everything=True)
    said = wake(child)
    assert said.startswith("raised:"), said
    assert lab.trash(table) == set()
    assert lab.lw.run_by_id(first)[0].state is FAILED
    witness.converges()


# ------------------------------------------------------------ two processes at once


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("job", "place"), [("expire", "expire-commit"), ("sweep", "enforce"), ("purge", "begin-erasing")]
)
def test_a_process_that_is_at_it_is_left_alone(
    witness: Witness, asleep: list[subprocess.Popen[str]], job: str, place: str
) -> None:
    """However long it takes, on the same host its process is seen to be there: who comes second is told who is at it."""
    lab, table = witness.lab, witness.table
    if job == "purge":
        run(lab, table, "expire")
        witness.look()
    marked = lab.trash(table)
    child = stop_at(asleep, witness, job, place, "after")
    with later(hours=5), pytest.raises(Busy, match=f"pid {child.pid}") as busy:
        lab.lw.run(job, table, wanted(job))
    assert busy.value.exit_code == 11
    said = wake(child)
    assert said.startswith("survived:") and ("done" in said or "partial" in said), said
    run(lab, table, job)
    if job == "purge":
        assert sorted(witness.files(FileState.ERASED, FileState.MISSING)) == sorted(marked)
    witness.nothing_open()
    witness.converges()
