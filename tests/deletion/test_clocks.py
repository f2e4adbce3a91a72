"""Clocks that disagree: ours an hour or three days ahead of the table's and the store's, or behind, or both in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.errors import Refused
from lakewarden.model.run import RunState
from tests.support.lab import Lab, lakewarden
from tests.support.spark import add_catalog
from tests.support.witness import PURGE, SWEEP, Witness, later, run, wanted

SKEWS = [1, 72]


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """In a session of its own: every catalog of a session is asked before anything is deleted."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(alone, catalog, tmp_path / "warehouse", lw)


@pytest.fixture
def witness(lab: Lab) -> Witness:
    table = lab.messy(files=2, days=1, rows=10)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    orphan = lab.warehouse / "db" / "events" / "data" / "orphan.parquet"
    orphan.write_bytes(b"x")
    return Witness(lab, table)


@pytest.mark.parametrize("hours", SKEWS)
@pytest.mark.parametrize("job", ["expire", "sweep"])
def test_behind_the_table_and_the_store_nothing_is_judged(witness: Witness, job: str, hours: int) -> None:
    words = {"expire": "this machine's clock says", "sweep": "modified in the future"}
    with later(hours=-hours), pytest.raises(Refused, match=words[job]) as error:
        witness.lab.lw.run(job, witness.table, wanted(job))
    assert "clock" in error.value.hint
    assert witness.lab.trash(witness.table) == set() and len(witness.snapshots()) == 3


@pytest.mark.parametrize("hours", SKEWS)
def test_a_few_minutes_are_no_disagreement(witness: Witness, hours: int) -> None:
    with later(minutes=-hours / 20):
        run(witness.lab, witness.table, "expire")
        run(witness.lab, witness.table, "sweep")
    witness.nothing_lost()


@pytest.mark.main
@pytest.mark.parametrize("hours", SKEWS)
def test_ahead_everything_still_waits_for_its_grace(witness: Witness, hours: int) -> None:
    """What a clock that is ahead trashes is in the trash in the future: once it is set right, the grace has not begun yet."""
    lab, table = witness.lab, witness.table
    with later(hours=hours):
        run(lab, table, "expire")
        assert lab.lw.plan("sweep", table, {"orphan_max_percent": 100}).empty, "too young, even three days on"
        assert lab.lw.run("purge", table).state is RunState.NOTHING_TO_DO
    assert lab.trash(table)
    for policy in (None, PURGE):
        assert lab.lw.run("purge", table, policy).state is RunState.NOTHING_TO_DO, "trashed later than now"
    assert witness.seen <= witness.stored()
    with later(hours=hours + 23):
        assert lab.lw.run("purge", table).state is RunState.NOTHING_TO_DO
    with later(hours=hours + 25):
        assert lab.lw.run("purge", table).state is RunState.DONE
    witness.converges()


@pytest.mark.parametrize("hours", SKEWS)
def test_a_clock_that_jumps_back_and_forth_shortens_no_grace(witness: Witness, hours: int) -> None:
    lab, table = witness.lab, witness.table
    run(lab, table, "expire")
    for jump in (-hours, 0, -2 * hours, 0):
        with later(hours=jump):
            assert lab.lw.run("purge", table).state is RunState.NOTHING_TO_DO
    with later(hours=-hours):
        assert lab.lw.run("purge", table, PURGE).state is RunState.NOTHING_TO_DO, (
            "not even with a grace of nothing"
        )
    assert witness.seen <= witness.stored()
    run(lab, table, "purge")
    witness.converges()


def test_a_store_whose_clock_is_ahead_is_not_swept(witness: Witness) -> None:
    """Its newest files are of the future, so nothing it says about ages counts."""
    lab, table = witness.lab, witness.table
    orphan = lab.warehouse / "db" / "events" / "data" / "orphan.parquet"
    os.utime(orphan, (time.time() - 20 * 86_400,) * 2)
    written = lab.warehouse / "db" / "events" / "data" / "ahead.parquet"
    written.write_bytes(b"x")
    os.utime(written, (time.time() + 3600,) * 2)
    with pytest.raises(Refused, match="modified in the future"):
        lab.lw.run("sweep", table, SWEEP)
    assert lab.trash(table) == set()


def test_a_file_trashed_by_a_clock_behind_its_store_is_kept(witness: Witness) -> None:
    """An hour behind a store that stamps files: it looks younger than its deletion batch, so it stays. Too long, never too short."""
    lab, table = witness.lab, witness.table
    run(lab, table, "expire")
    marked = lab.trash(table)
    for path in marked:
        os.utime(path, (time.time() + 3600,) * 2)
    done = run(lab, table, "purge")
    assert done.counters["files_kept"] == len(marked)
    assert marked <= witness.stored()
