"""kill -9 around every journaled step of compact-history, and inside its transaction: nothing is lost, nothing is told twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakewarden.jobs.history import PREFIX
from lakewarden.jobs.run_context import HistoryStep
from lakewarden.lineage.history import EntrySource
from lakewarden.model.run import RunState
from tests.crash.test_deleting import CHILD
from tests.crash.test_deleting import lab as lab
from tests.support.lab import Lab

pytestmark = pytest.mark.crash

JOB = "compact-history"
NOW: dict[str, object] = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}


@dataclass(frozen=True)
class Death:
    """Where the process dies, and what its run is found to have been. `kept`: where details go."""

    place: str
    when: str
    found: RunState
    kept: str = "state"

    def __str__(self) -> str:
        return f"{self.when}-{self.place}-{self.kept}"


def _deaths(kept: str) -> list[Death]:
    return [
        Death(HistoryStep.FOLDING, "before", RunState.FAILED, kept),
        Death(HistoryStep.FOLDING, "after", RunState.FAILED, kept),
        Death("fold", "inside", RunState.FAILED, kept),
        Death("fold", "after", RunState.DONE, kept),
        Death(HistoryStep.FOLDED, "before", RunState.DONE, kept),
        Death(HistoryStep.FOLDED, "after", RunState.DONE, kept),
        Death("finish", "before", RunState.DONE, kept),
    ]


EVERY = [*_deaths("state"), *_deaths("table")]


@pytest.mark.main
def test_there_is_a_death_on_both_sides_of_every_step() -> None:
    told = {(each.place, each.when) for each in EVERY if each.place in set(HistoryStep)}
    assert told == {(step, when) for step in HistoryStep for when in ("before", "after")}


def kill_at(folder: Path, table: str, death: Death) -> None:
    task = {
        "folder": str(folder),
        "table": table,
        "job": JOB,
        "place": death.place,
        "when": death.when,
        "policy": NOW,
        "history": death.kept,
    }
    done = subprocess.run(
        [sys.executable, str(CHILD), json.dumps(task)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, f"it did not die: {done.stdout}{done.stderr[-2000:]}"


# tests/state/test_history_state.py kills a fold alone, on both databases, every time.
@pytest.mark.nightly
@pytest.mark.parametrize("death", EVERY, ids=str)
def test_a_killed_fold(lab: Lab, tmp_path: Path, death: Death) -> None:
    table = lab.messy(files=5, rows=5, days=1)
    before = {each.id: each for each in lab.lw.view(table).snapshots}
    lab.lw.run("expire", table, NOW)

    def told() -> dict[int, object]:
        entries = lab.lw.history.of(table, limit=None).entries
        assert len({each.snapshot.id for each in entries}) == len(entries)
        return {each.snapshot.id: (each.snapshot.summary, each.snapshot.committed_at) for each in entries}

    expected = {id_: (each.summary, each.committed_at) for id_, each in before.items()}
    assert told() == expected
    kill_at(tmp_path, table, death)
    assert told() == expected

    again = lab.lw.run(JOB, table, NOW)
    died = lab.lw.runs(table)[1]
    assert died.state is death.found, died.reason
    assert "stopped before the run was over" in died.reason
    assert again.state is (RunState.NOTHING_TO_DO if death.found is RunState.DONE else RunState.DONE)
    assert told() == expected
    found = lab.lw.history.of(table, limit=None)
    assert found.counts == {"live": 1, "archived": 0, "folded": 4}
    assert {each.source for each in found.entries} == {EntrySource.LIVE, EntrySource.DETAIL}
    files = [path.name for path in (lab.warehouse / "db/events/metadata").glob(f"{PREFIX}*")]
    assert len(files) <= (2 if death.kept == "table" else 0), "one orphan at most"
