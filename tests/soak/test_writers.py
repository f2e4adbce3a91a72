"""A compaction beside a writer that never rests: it wins, and no row is lost or comes back.

Short by default; `make soak` runs it for three minutes.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from bench.equality import add_equality_deletes
from lakewarden.model.run import Run, RunState
from tests.support.lab import Lab

SECONDS = float(os.environ.get("LAKEWARDEN_SOAK_SECONDS", "12"))
EVERY = 2.0
DAY = "d=2024-03-01"


class Writer(threading.Thread):
    """Appends and deletes every two seconds, and knows what the table must hold."""

    def __init__(self, lab: Lab, table: str, seconds: float) -> None:
        super().__init__(name="writer", daemon=True)
        self._lab, self._table = lab, table
        self._until = time.monotonic() + seconds
        self._random = random.Random(7)
        self._next = 0
        self.rows: Counter[int] = Counter()
        self.refused = 0
        self.commits = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self._until:
                started = time.monotonic()
                self.append(4, 50)
                self._delete()
                time.sleep(max(0.0, EVERY - (time.monotonic() - started)))
        except BaseException as error:
            self.error = error

    def append(self, files: int, rows: int) -> None:
        """New ids, and some that were there before: an older delete must not strike them."""
        for _ in range(files):
            again = self._random.sample(range(max(1, self._next)), min(3, self._next))
            ids = [*range(self._next, self._next + rows), *again]
            values = ", ".join(f"({id_}, 'name-{id_ % 17}', date'2024-03-01')" for id_ in ids)
            self._lab.sql(f"insert into {self._table} values {values}")
            self._next += rows
            self.rows.update(ids)
            self.commits += 1

    def _delete(self) -> None:
        ids = sorted(self._random.sample(range(self._next), 20))
        if self._random.random() < 0.5:
            keys = pa.table({"id": pa.array(ids, pa.int64())})
            add_equality_deletes(self._lab.spark, self._table, [keys], DAY)
        elif not self._delete_by_position(ids):
            return
        self.commits += 1
        for id_ in ids:
            del self.rows[id_]

    def _delete_by_position(self, ids: list[int]) -> bool:
        """Spark refuses its own delete when the files it read were rewritten meanwhile; nothing is deleted then."""
        try:
            self._lab.sql(f"delete from {self._table} where id in ({', '.join(map(str, ids))})")
        except Exception as error:
            if "ValidationException" not in str(error) and "CommitFailed" not in str(error):
                raise
            self.refused += 1
            return False
        return True


def compactions(lab: Lab, table: str, writer: Writer) -> Iterator[Run]:
    """One run after the other for as long as the writer writes: packing, then applying deletes."""
    policy = {"rewrite_min_input_files": 4}
    while writer.is_alive():
        for job in ("compact", "compact-deletes"):
            yield lab.lw.run(job, table, policy=policy, trigger={"type": "manual", "operator": "soak"})


@pytest.mark.timeout(SECONDS * 4 + 240)
@pytest.mark.parametrize("version", ["2", "3"])
def test_a_compaction_wins_against_a_busy_writer(lab: Lab, version: str) -> None:
    properties: dict[str, Any] = {"format-version": version, "write.delete.mode": "merge-on-read"}
    table = lab.create(**properties)
    writer = Writer(lab, table, SECONDS)
    writer.append(6, 50)
    writer.start()
    runs = list(compactions(lab, table, writer))
    writer.join()
    assert writer.error is None, writer.error
    states = Counter(run.state for run in runs)
    print(
        f"v{version}: {writer.commits} commits of the writer, {writer.refused} refused, runs {dict(states)}"
    )
    with_work = [run for run in runs if run.state is not RunState.NOTHING_TO_DO]
    assert with_work
    assert all(run.snapshot_ids for run in with_work), [(run.state, run.reason) for run in with_work]
    found = Counter(row.id for row in lab.sql(f"select id from {table}"))
    assert found == +writer.rows, {"lost": +(writer.rows - found), "back": +(found - writer.rows)}
    assert lab.strays(table) == set()
