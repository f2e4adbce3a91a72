"""kill -9 at every step of a hand-off: no snapshot half in the cold table, no live file gone without its proof."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.jobs.run_context import DeletingStep
from lakewarden.model.run import RunState
from tests.support.lab import Lab, lakewarden
from tests.support.nightly import nightly_except
from tests.support.paimon import COLD, PaimonLab, paimon_lab
from tests.support.spark import add_catalog, remove_catalog

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("deleting_child.py")
POLICY = {
    "snapshot_retention_hours": 0,
    "snapshot_min_retained": 1,
    "delete_grace_hours": 0,
    "handoff_enabled": True,
}
FAILED, DONE = RunState.FAILED, RunState.DONE
# Where the process dies, and what its run is found to have been.
DEATHS = [
    ("make-cold", "before", 1, FAILED),
    ("make-cold", "after", 1, FAILED),
    (DeletingStep.HANDING, "before", 1, FAILED),
    (DeletingStep.HANDING, "after", 1, FAILED),
    ("copies", "before", 1, FAILED),
    ("copies", "inside", 1, FAILED),
    ("copies", "after", 1, FAILED),
    ("copies", "inside", 2, FAILED),
    ("copies", "after", 2, FAILED),
    ("copies", "before", 3, FAILED),
    ("rehome", "before", 1, FAILED),
    ("rehome", "after", 2, FAILED),
    ("rehome", "after", 4, FAILED),
    ("copies", "after", 3, FAILED),
    ("copies", "after", 4, FAILED),
    ("register", "before", 1, FAILED),
    ("register", "after", 1, DONE),
    (DeletingStep.HANDED, "before", 1, DONE),
    (DeletingStep.HANDED, "after", 1, DONE),
    ("finish", "before", 1, DONE),
    ("finish", "after", 1, DONE),
]
# The same of a purge that had the proof of its files when it died.
PURGES = [
    ("begin-erasing", "before", 1),
    ("begin-erasing", "after", 1),
    ("unlink", "after", 2),
    ("receipts", "inside", 1),
    ("begin-erasing", "before", 2),
]
ALWAYS = [("copies", "inside", 2, FAILED), ("register", "after", 1, DONE)]
# Paimon's metadata is copied as it is; what makes the table is written in two steps, snapshots last.
PAIMON_DEATHS = [
    *((place, when, nth, found) for place, when, nth, found in DEATHS if place != "rehome"),
    ("put", "before", 1, FAILED),
    ("put", "after", 1, FAILED),
    ("put", "after", 2, DONE),
]


def names(found: list[tuple[str, str, int, RunState]]) -> list[str]:
    return [f"{when}-{place}-{nth}" for place, when, nth, _ in found]


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    catalog = add_catalog(spark, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, catalog, tmp_path / "warehouse", lw)
    remove_catalog(spark, catalog)


def die(
    folder: Path,
    table: str,
    job: str,
    moment: tuple[str, str, int],
    policy: dict[str, object],
    of: str = "iceberg",
) -> None:
    place, when, nth = moment
    task = {
        "folder": str(folder), "table": table, "job": job, "place": place, "when": when, "nth": nth,
        "policy": policy, "format": of,
    }  # fmt: skip
    died = subprocess.run([sys.executable, str(CHILD), json.dumps(task)], capture_output=True, text=True)
    assert died.returncode == -9, died.stdout + died.stderr[-2000:]


def goes_on(lab: Lab | PaimonLab, table: str, policy: dict[str, object], found: RunState) -> None:
    """Hand-off, expiry and purging after the death, each of which waits for the one before it."""
    early = lab.lw.run("expire", table, policy)
    assert (early.state is DONE) == (found is DONE), "nothing expires that is not in the cold table"
    if found is not DONE:
        again = lab.lw.run("handoff", table, policy)
        assert again.state is DONE, again.reason
        assert lab.lw.run("expire", table, policy).state is DONE
    else:
        again = lab.lw.run("handoff", table, policy)
        assert again.state is RunState.NOTHING_TO_DO
    dead = next(run for run in lab.lw.runs(table) if run.job == "handoff" and run.id != again.id)
    assert dead.state is found, dead.reason
    for path in lab.warehouse.rglob("*"):
        os.utime(path, (0, 0))
    purged = lab.lw.run("purge", table, policy)
    assert purged.counters["files_erased"] and not purged.counters["files_held"], purged.reason


@pytest.mark.parametrize(
    ("place", "when", "nth", "found"), nightly_except(ALWAYS.__contains__, DEATHS), ids=names(DEATHS)
)
def test_the_next_run_goes_on_where_it_stopped(
    lab: Lab, tmp_path: Path, place: str, when: str, nth: int, found: RunState
) -> None:
    table = lab.messy(files=3, days=1)
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    cold = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(tmp_path / "cold")})
    policy = {**POLICY, "handoff_catalog": cold}
    rows = {
        row.snapshot_id: lab.rows(table, f"version as of {row.snapshot_id}") for row in lab.snapshots(table)
    }
    head = lab.lw.view(table).current_snapshot_id
    die(tmp_path, table, "handoff", (place, when, nth), policy)
    goes_on(lab, table, policy, found)
    for snapshot_id, expected in rows.items():
        where = table if snapshot_id == head else f"{cold}.db.events"
        assert lab.rows(where, f"version as of {snapshot_id}") == expected
    remove_catalog(lab.spark, cold)


@pytest.mark.parametrize(
    "moment",
    [pytest.param(each, marks=[] if each is PURGES[1] else pytest.mark.nightly) for each in PURGES],
    ids=lambda moment: "-".join(map(str, moment)),
)
def test_what_was_proven_before_the_death_is_proven_again(
    lab: Lab, tmp_path: Path, moment: tuple[str, str, int]
) -> None:
    table = lab.messy(files=5, days=1)
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    cold = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(tmp_path / "cold")})
    policy: dict[str, object] = {**POLICY, "handoff_catalog": cold}
    rows = {
        row.snapshot_id: lab.rows(table, f"version as of {row.snapshot_id}") for row in lab.snapshots(table)
    }
    assert lab.lw.run("handoff", table, policy).state is DONE
    assert lab.lw.run("expire", table, policy).state is DONE
    for path in lab.warehouse.rglob("*"):
        os.utime(path, (0, 0))
    die(tmp_path, table, "purge", moment, policy)
    due = {Path(each.path.removeprefix("file:")) for each in lab.lw.trash(table, limit=100).files}
    live = next(each for each in sorted(due) if each.suffix == ".parquet" and each.exists())
    copy = tmp_path / "cold" / live.relative_to(lab.warehouse)
    copy.write_bytes(copy.read_bytes()[:-1] + b"?")
    run = lab.lw.run("purge", table, policy)
    assert run.counters["files_held"] == 1 and str(copy) in run.reason and live.exists()
    assert lab.lw.run("purge", table, policy).counters["files_erased"] == 1 and not live.exists()
    head = lab.lw.view(table).current_snapshot_id
    for snapshot_id, expected in rows.items():
        where = table if snapshot_id == head else f"{cold}.db.events"
        assert lab.rows(where, f"version as of {snapshot_id}") == expected
    remove_catalog(lab.spark, cold)


# The same code as above, over another format.
@pytest.mark.nightly
@pytest.mark.parametrize(("place", "when", "nth", "found"), PAIMON_DEATHS, ids=names(PAIMON_DEATHS))
def test_so_does_that_of_a_paimon_table(
    spark: SparkSession, tmp_path: Path, place: str, when: str, nth: int, found: RunState
) -> None:
    policy = {**POLICY, "handoff_catalog": COLD}
    with paimon_lab(spark, tmp_path, cold=True) as lab:
        table = lab.create()
        lab.append(table, 2)
        assert lab.lw.run("handoff", table, policy).state is DONE
        lab.append(table, 3, start=100, days=1)
        lab.maker.ownExpire(lab.load(table), 2)  # so that there is a gap to fill
        lab.maker.compact(lab.load(table))
        lab.append(table, 3, start=200, days=1)
        snapshots = lab.lw.view(table).snapshots
        lab.maker.tag(lab.load(table), "then", snapshots[1].id)
        rows = {each.id: lab.texts_at(table, snapshot_id=each.id) for each in snapshots}
        ours = place if place not in ("make-cold", "register") else f"{place}-paimon"
        die(tmp_path, table, "handoff", (ours, when, nth), policy, "paimon")
        goes_on(lab, table, policy, found)
        *gone, head = snapshots
        assert lab.texts(table) == rows[head.id]
        assert lab.cold_texts(table, tag_name="then") == rows[snapshots[1].id]
        for each in gone:
            at = round(each.committed_at.timestamp() * 1000)
            assert lab.cold_texts(table, snapshot_id=each.id) == rows[each.id]
            assert lab.cold_texts(table, timestamp_millis=at) == rows[each.id]
        assert len(lab.cold_texts(table, snapshot_id=1)) == 20, (
            "what an earlier hand-off brought is still there"
        )
