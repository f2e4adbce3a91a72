"""Random histories of tables, writers, readers, people, crashes and our own jobs: nothing that anyone can need is deleted.

A history's name is its seed: `LAKEWARDEN_HISTORIES=1 LAKEWARDEN_FIRST_SEED=4711 pytest tests/histories` plays one again.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import update

from lakewarden.deletion.holds import Holds
from lakewarden.deletion.lake_index import Neighbours
from lakewarden.deletion.proof import Proof
from lakewarden.jobs.expire import execute as expiring
from lakewarden.jobs.purge import execute as purging
from lakewarden.model.run import Owner
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.schema import trashed
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import TrashBatch
from tests.histories.play import History, Stage, failing, shortened
from tests.histories.world import Violated

COUNT = int(os.environ.get("LAKEWARDEN_HISTORIES", "150"))
FIRST = int(os.environ.get("LAKEWARDEN_FIRST_SEED", "0"))
# A long run that is cut off has told how far it came.
TELL = 500


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="lakewarden-histories-") as folder:
        stage = Stage(Path(folder))
        with stage.set():
            yield stage
        stage.database.engine.dispose()


@pytest.mark.timeout(0)
def test_nothing_that_is_needed_is_ever_deleted(stage: Stage) -> None:
    began, told = time.monotonic(), Counter[str]()
    for seed in range(FIRST, FIRST + COUNT):
        history = History.of(seed)
        failure = failing(stage, history, told)
        if failure is not None:
            short, why = shortened(stage, history)
            pytest.fail(f"{history}\nfails with {failure!r}\nas does {short}\nwith {why!r}")
        if (seed + 1 - FIRST) % TELL == 0:
            print(f"seeds {FIRST} to {seed}: {time.monotonic() - began:,.0f} s", flush=True)
    print(f"\n{summary(told, time.monotonic() - began)}")
    for name in ("files erased", "crashes", "turns", "pins", "files restored"):
        assert told[name] or COUNT < 100, f"no {name}: these histories prove nothing"


def summary(told: Counter[str], seconds: float) -> str:
    numbers = ", ".join(
        f"{told[name]:,} {name}"
        for name in (
            "operations",
            "runs",
            "crashes",
            "turns",
            "pins",
            "snapshots expired",
            "files erased",
            "files restored",
        )
    )
    rest = ", ".join(
        f"{name} {count:,}" for name, count in sorted(told.items()) if name[0].isupper() or " " in name
    )
    return (
        f"{COUNT:,} histories (seeds {FIRST} to {FIRST + COUNT - 1}) in {seconds:,.0f} s: {numbers}\n({rest})"
    )


# ------------------------------------------------------------ that the histories see what is wrong


def blind_proof() -> list[Any]:
    return [patch.object(Proof, "_holds", lambda self, numbers: np.zeros(len(numbers), dtype=bool))]


def blind_commit() -> list[Any]:
    return [patch.object(expiring, "_refuse_held", lambda *args: None)]


def blind_holds() -> list[Any]:
    return [patch.object(Holds, "covering", lambda *args: None)]


def blind_to_change() -> list[Any]:
    return [
        patch.object(
            purging, "_may_differ", lambda batch, now: pa.array([False] * batch.num_rows, pa.bool_())
        )
    ]


def deaf_to_restore() -> list[Any]:
    """A file that is restored after it was proven is deleted all the same."""
    real = TrashedFiles.begin_erasing

    def begin(self: TrashedFiles, ids: Sequence[int], run: str, owner: Owner, now: datetime) -> list[int]:
        with self._state.write() as connection:
            again = update(trashed).where(trashed.c.id.in_(ids), trashed.c.state == "restored")
            connection.execute(again.values(state="trashed"))
        return real(self, ids, run, owner, now)

    return [patch.object(TrashedFiles, "begin_erasing", begin)]


def alone() -> list[Any]:
    """No other table is looked at."""
    real = Neighbours.read

    def read(self: Neighbours) -> tuple[TableView, list[TableView]]:
        return real(self)[0], []

    return [patch.object(Neighbours, "read", read)]


def hasty() -> list[Any]:
    """The grace is not waited for."""
    real = TrashedFiles.due

    def due(self: TrashedFiles, uuid: str, graces: dict[str, timedelta], now: datetime) -> Any:
        return real(self, uuid, dict.fromkeys(graces, timedelta(0)), now)

    def due_at(batch: TrashBatch, policy: Policy) -> datetime | None:
        return batch.trashed_at

    return [patch.object(TrashedFiles, "due", due), patch("lakewarden.jobs.purge.plan.due_at", due_at)]


@pytest.mark.parametrize(
    ("sabotage", "first"),
    [
        (blind_proof, 0),
        (blind_commit, 37),
        (blind_holds, 9),
        (blind_to_change, 1),
        (hasty, 27),
        (deaf_to_restore, 32),
        (alone, 65),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_what_is_broken_is_seen(
    stage: Stage, sabotage: Callable[[], list[AbstractContextManager[Any]]], first: int
) -> None:
    broken = sabotage()
    for each in broken:
        each.__enter__()
    try:
        found = next(
            (each for each in (failing(stage, History.of(first + n)) for n in range(600)) if each), None
        )
    finally:
        for each in broken:
            each.__exit__(None, None, None)
    assert isinstance(found, Violated), found


def test_a_failure_is_made_shorter(stage: Stage) -> None:
    history = History.of(0)
    with blind_proof()[0]:
        short, why = shortened(stage, history)
    assert len(short.steps) < len(history.steps) and isinstance(why, Violated)
    assert f"seed {history.seed}" in str(short)
