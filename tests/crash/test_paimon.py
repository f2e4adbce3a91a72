"""kill -9 around every journaled step of expire and purge of a Paimon table, and between them.

After each death everything that is kept reads the same, the next runs say how the dead one ended and go on, and in the end
the files are exactly those of runs that nobody killed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from lakewarden.model.run import RunState
from tests.crash.test_deleting import CHILD, EXPIRES, PURGES, Death, cases
from tests.support.paimon import PaimonLab, paimon_lab
from tests.support.undisturbed import EXPIRE, PURGE, Original, both
from tests.support.witness import later

pytestmark = pytest.mark.crash

# The same places; snapshots are dropped one by one instead of in a commit, and the death after that runs every time.
DEATHS = [
    replace(each, place="drop") if each.place == "expire-commit" else replace(each, always=False)
    for each in (*EXPIRES, *PURGES)
]


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    """One table, copied for each death."""
    with paimon_lab(spark, tmp_path_factory.mktemp("deaths")) as lab:
        yield Original.make(lab)


def kill_at(lab: PaimonLab, table: str, death: Death) -> None:
    told = {
        "folder": str(lab.warehouse.parent),
        "table": table,
        "job": death.job,
        "place": death.place,
        "when": death.when,
        "nth": death.nth,
        "format": "paimon",
        "policy": EXPIRE if death.job == "expire" else PURGE,
    }
    command = [sys.executable, str(CHILD), json.dumps(told)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, f"it did not die {death}: {done.stdout}{done.stderr[-2000:]}"


@pytest.mark.main
@pytest.mark.parametrize("death", cases(DEATHS), ids=str)
def test_a_killed_run(original: Original, death: Death) -> None:
    lab = original.lab
    with original.copied() as copy:
        if death.job == "purge":
            assert lab.lw.run("expire", copy, EXPIRE).state is RunState.DONE
        kill_at(lab, copy, death)
        died = lab.lw.runs(copy)[0].id
        original.nothing_lost(copy)
        with later(minutes=11):  # whatever a killed process still held is over by then
            both(lab, copy)
        found, _ = lab.lw.run_by_id(died)
        assert found.state is death.found, found.reason
        original.intact(copy)
        assert RunState.RUNNING not in {run.state for run in lab.lw.runs(copy)}
