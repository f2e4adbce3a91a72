"""kill -9 at every step of what handoff does in the colder tier itself: ageing, and the end of cold retention."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import update

from lakewarden import clock
from lakewarden.jobs.run_context import ColdStep, DeletingStep
from lakewarden.model.run import RunState
from lakewarden.state.cold import ColdSnapshots
from lakewarden.state.schema import cold_snapshots
from lakewarden.state.trash_batches import FileState
from tests.cold.test_s3_cold import data
from tests.support.lab import Lab, lakewarden
from tests.support.nightly import nightly_except
from tests.support.s3 import S3
from tests.support.spark import add_catalog, remove_catalog
from tests.tables.test_s3_tables import catalog_properties

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("deleting_child.py")
POLICY: dict[str, object] = {
    "snapshot_retention_hours": 0,
    "snapshot_min_retained": 1,
    "handoff_enabled": True,
}
FAILED, DONE = RunState.FAILED, RunState.DONE
# Where the process dies, and what its run is found to have been.
RELEASES = [
    ("trash", "inside", FAILED),
    (DeletingStep.TRASHING, "after", FAILED),
    (ColdStep.RELEASING, "before", FAILED),
    (ColdStep.RELEASING, "after", FAILED),
    ("release", "after", DONE),
    ("let-go", "inside", DONE),
    ("left", "inside", DONE),
    ("enforce", "inside", DONE),
    (ColdStep.RELEASED, "before", DONE),
    (ColdStep.RELEASED, "after", DONE),
    ("finish", "before", DONE),
]
AGEINGS = [
    (ColdStep.AGEING, "before", FAILED),
    (ColdStep.AGEING, "after", FAILED),
    ("move", "after", FAILED),
    ("classes", "inside", FAILED),
    (ColdStep.AGED, "before", FAILED),
    (ColdStep.AGED, "after", DONE),
]
ALWAYS = [("release", "after", DONE), ("move", "after", FAILED)]


@pytest.mark.main
def test_every_step_is_one_a_process_dies_at() -> None:
    told = {(place, when) for place, when, _ in (*RELEASES, *AGEINGS) if place in set(ColdStep)}
    assert told == {(step, when) for step in ColdStep for when in ("before", "after")}


def dies(told: dict[str, Any]) -> None:
    died = subprocess.run([sys.executable, str(CHILD), json.dumps(told)], capture_output=True, text=True)
    assert died.returncode == -9, died.stdout + died.stderr[-2000:]


def names(found: list[tuple[str, str, RunState]]) -> list[str]:
    return [f"{when}-{place}" for place, when, _ in found]


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    catalog = add_catalog(spark, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, catalog, tmp_path / "warehouse", lw)
    remove_catalog(spark, catalog)


@pytest.mark.parametrize(
    ("place", "when", "found"), nightly_except(ALWAYS.__contains__, RELEASES), ids=names(RELEASES)
)
def test_a_release_is_whole_or_was_not(
    lab: Lab, tmp_path: Path, place: str, when: str, found: RunState
) -> None:
    table = lab.messy(files=3, days=1)
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    cold = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(tmp_path / "cold")})
    policy = {**POLICY, "handoff_catalog": cold, "cold_retention_hours": "7d"}
    assert lab.lw.run("handoff", table, policy).state is DONE
    assert lab.lw.run("expire", table, policy).state is DONE
    uuid = lab.lw.view(table).uuid
    old = frozenset(ColdSnapshots(lab.lw.state).handed(uuid))
    lab.append(table, 2, start=900)
    rows = {
        row.snapshot_id: lab.rows(table, f"version as of {row.snapshot_id}") for row in lab.snapshots(table)
    }
    assert lab.lw.run("handoff", table, policy).state is DONE
    assert lab.lw.run("expire", table, policy).state is DONE
    with lab.lw.state.write() as connection:
        past = clock.now() - timedelta(days=8)
        connection.execute(
            update(cold_snapshots).where(cold_snapshots.c.snapshot_id.in_(old)).values(handed_at=past)
        )
    frozen, planned = f"{cold}.db.events", lab.lw.plan("handoff", table, policy)
    dies(
        {
            "folder": str(tmp_path),
            "table": table,
            "job": "handoff",
            "place": place,
            "when": when,
            "policy": policy,
        }
    )
    again = lab.lw.run("handoff", table, policy)
    assert again.state is (RunState.NOTHING_TO_DO if found is DONE else DONE), again.reason
    dead = next(run for run in lab.lw.runs(table) if run.job == "handoff" and run.id != again.id)
    assert dead.state is found, dead.reason
    trashed = [each.path for each in lab.lw.trash(frozen, 500).files]
    assert sorted(trashed) == sorted(each.path for each in planned.trash), "each of them, once"
    known = ColdSnapshots(lab.lw.state)
    assert known.left(uuid) == old and not old & set(known.handed(uuid))
    for path in (tmp_path / "cold").rglob("*"):
        os.utime(path, (0, 0))
    purged = lab.lw.run("purge", frozen, {"delete_grace_hours": 0})
    assert purged.counters["files_erased"] == len(trashed), purged.reason
    for id_ in known.handed(uuid):
        assert lab.rows(frozen, f"version as of {id_}") == rows[id_]
    remove_catalog(lab.spark, cold)


@pytest.mark.services
@pytest.mark.parametrize(
    ("place", "when", "found"), nightly_except(ALWAYS.__contains__, AGEINGS), ids=names(AGEINGS)
)
def test_what_had_aged_is_found_so(
    spark: SparkSession, exact_s3: S3, tmp_path: Path, place: str, when: str, found: RunState
) -> None:
    live, frost = exact_s3.bucket(), exact_s3.bucket()
    (tmp_path / "cold").mkdir()
    catalogs = {
        add_catalog(spark, each): each
        for each in (catalog_properties(live, tmp_path), catalog_properties(frost, tmp_path / "cold"))
    }
    catalog, cold = catalogs
    file = tmp_path / "catalogs.json"
    file.touch(0o600)
    file.write_text(json.dumps(catalogs), "utf-8")
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(spark, catalog, tmp_path / "no-local-warehouse", lw)
        table = lab.messy(files=3, days=1)
        policy = {**POLICY, "handoff_catalog": cold, "handoff_storage_class": "GLACIER_IR"}
        assert lw.run("handoff", table, policy).state is DONE
        policy |= {"handoff_retention_hours": 0}
        told = {"folder": str(tmp_path), "table": table, "job": "handoff", "place": place, "when": when}
        dies({**told, "policy": policy, "catalogs": str(file)})
        again = lw.run("handoff", table, policy)
        # Right before it would have said so, all of it was written down.
        over = found is DONE or place == ColdStep.AGED
        assert again.state is (RunState.NOTHING_TO_DO if over else DONE), again.reason
        dead = next(run for run in lw.runs(table) if run.job == "handoff" and run.id != again.id)
        assert dead.state is found, dead.reason
        assert set(data(frost).values()) == {"DEEP_ARCHIVE"}
        if place == "move":
            assert again.counters["files_aged"] == 0, "they had moved already, and are only written down"
        assert lw.plan("handoff", table, policy).empty
        assert not [each for each in lw.trash(f"{cold}.db.events").files if each.state is FileState.TRASHED]
    for each in catalogs:
        remove_catalog(spark, each)
