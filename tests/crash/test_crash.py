"""kill -9 around every journaled step; the next run settles it, and nothing is lost or doubled.

The steps come from the code, so a new step is a new crash test. Two of them run always, the others by
`make crash`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.jobs.run_context import StepName
from lakewarden.model.run import RunState
from tests.support.lab import Lab, lakewarden
from tests.support.nightly import nightly_except
from tests.support.spark import add_catalog, remove_catalog

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("child.py")
# Written by the run that settles a dead one, never by the one that dies.
STEPS = [step for step in StepName if step is not StepName.RECOVERED]
ALWAYS = [(StepName.COMMITTING, "before"), (StepName.COMMITTED, "before")]
EVERY = [(step, when) for step in STEPS for when in ("before", "after")]


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    catalog = add_catalog(spark, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, catalog, tmp_path / "warehouse", lw)
    remove_catalog(spark, catalog)


def kill_at(folder: Path, table: str, job: str, step: str, when: str) -> None:
    """The same warehouse and the same journal, in a process that dies."""
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder), table, job, step, when],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, f"it did not die at {step}: {done.stdout}{done.stderr}"


@pytest.mark.main
@pytest.mark.parametrize(("step", "when"), nightly_except(ALWAYS.__contains__, EVERY))
def test_a_killed_compaction_is_settled_by_the_next_run(
    lab: Lab, tmp_path: Path, step: StepName, when: str
) -> None:
    table = lab.messy(files=8, days=2)
    before = lab.rows(table)
    kill_at(tmp_path, table, "compact", step, when)

    again = lab.lw.run("compact", table)
    assert again.state in (RunState.DONE, RunState.NOTHING_TO_DO), again.reason
    died = lab.lw.runs(table)[-1]
    steps = [each.name for each in lab.lw.run_by_id(died.id)[1]]
    assert died.state in (RunState.DONE, RunState.PARTIAL, RunState.FAILED)
    assert "stopped before the run was over" in died.reason
    assert steps[-1] == StepName.RECOVERED
    assert lab.lw.run("compact", table).state is RunState.NOTHING_TO_DO

    if step in (StepName.DISCARDED, StepName.SKIPPED):  # the race these steps need deletes every row
        before = []
    if step is StepName.CARRYING:
        before = [row for row in before if row[0] % 7]
    assert lab.rows(table) == before
    # Files whose commit had begun may be left, each with a delete file; evidence is meant to be.
    may_stay = steps.count(StepName.COMMITTING) * (1 + steps.count(StepName.CARRYING))
    assert len(lab.strays(table)) <= may_stay + steps.count(StepName.EVIDENCE) * 2
    if (step, when) == (StepName.COMMITTING, "before"):
        assert lab.strays(table) == set(), "no commit had begun: what was written is removed"
    if (step, when) == (StepName.COMMITTED, "before"):
        assert died.snapshot_ids, "the commit had happened, and now the journal says so"
        assert lab.strays(table) == set()


@pytest.mark.parametrize(
    ("step", "when"),
    nightly_except(
        lambda each: each == (StepName.WRITING, "before"),
        [each for each in EVERY if each[0] in ("writing", "committing", "committed")],
    ),
)
def test_applying_deletes_is_settled_too(lab: Lab, tmp_path: Path, step: StepName, when: str) -> None:
    table = lab.messy(files=4, days=1, **{"write.delete.mode": "merge-on-read"})
    lab.sql(f"delete from {table} where id % 5 = 0")
    before = lab.rows(table)
    kill_at(tmp_path, table, "compact-deletes", step, when)
    again = lab.lw.run("compact-deletes", table)
    assert again.state in (RunState.DONE, RunState.NOTHING_TO_DO), again.reason
    assert lab.rows(table) == before
    assert lab.sql(f"select * from {table}.delete_files") == []
    assert len(lab.strays(table)) <= (step is not StepName.WRITING)


@pytest.mark.parametrize(
    ("step", "when"),
    nightly_except(ALWAYS.__contains__, [each for each in EVERY if each[0] in ("committing", "committed")]),
)
def test_a_killed_manifest_rewrite_is_settled_by_the_next_run(
    lab: Lab, tmp_path: Path, step: StepName, when: str
) -> None:
    table = lab.messy(files=4, days=1)
    before = lab.rows(table)
    kill_at(tmp_path, table, "rewrite-manifests", step, when)
    again = lab.lw.run("rewrite-manifests", table, policy={"manifest_rewrite_min_manifests": 2})
    assert again.state is (RunState.DONE if step is StepName.COMMITTING else RunState.NOTHING_TO_DO), (
        again.reason
    )
    assert "stopped before the run was over" in lab.lw.runs(table)[-1].reason
    assert lab.rows(table) == before
