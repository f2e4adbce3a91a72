"""Deletes and appends that come at every moment of a commit, in random order: the rows are always those of a plain model."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from bench.equality import add_equality_deletes
from lakewarden.model.run import RunState
from lakewarden.tables.iceberg.rewrite import RewriteCommit
from lakewarden.tables.iceberg.writer import IcebergWriter
from tests.support.lab import Lab

SEEDS = range(int(os.environ.get("LAKEWARDEN_SOAK_SEEDS", "4")))


class Story:
    """A table, what it must hold, and things that happen to it."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.pick = random.Random(seed)
        self.lab = lab
        self.partitioned = self.pick.random() < 0.5
        properties = {
            "format-version": self.pick.choice(["2", "2", "3"]),
            "write.delete.mode": "merge-on-read",
            "write.delete.granularity": self.pick.choice(["file", "partition"]),
        }
        self.table = lab.create("id bigint, g int, s string", "g" if self.partitioned else "", **properties)
        self.rows: list[tuple[int, int, str]] = []
        self.next = 0

    def append(self) -> None:
        """New ids, and some that were there before."""
        start = max(0, self.next - self.pick.randint(0, 5))
        end = start + self.pick.randint(3, 20)
        tag, slices = f"s{self.pick.random()}", self.pick.choice([1, 2])
        self.lab.sql(
            f"insert into {self.table} select id, cast(id % 2 as int), '{tag}' from range({start}, {end}, 1, {slices})"
        )
        self.next = max(self.next, end)
        self.rows += [(id_, id_ % 2, tag) for id_ in range(start, end)]

    def delete_by_position(self) -> None:
        ids = self._some()
        self.lab.sql(f"delete from {self.table} where id in ({', '.join(map(str, ids))}) and s <> ''")
        self._forget(ids)

    def delete_by_key(self) -> None:
        g = self.pick.randint(0, 1)
        ids = [id_ for id_ in self._some() if not self.partitioned or id_ % 2 == g]
        if ids:
            keys = pa.table({"id": pa.array(ids, pa.int64())})
            where = f"g={g}" if self.partitioned else ""
            add_equality_deletes(self.lab.spark, self.table, [keys], where)
            self._forget(ids)

    def _some(self) -> list[int]:
        return self.pick.sample(range(self.next), min(self.next, self.pick.randint(1, 4)))

    def _forget(self, ids: list[int]) -> None:
        self.rows = [row for row in self.rows if row[0] not in ids]

    def goes_on(self, chance: float) -> None:
        acts: list[Callable[[], None]] = [self.append, *[self.delete_by_position, self.delete_by_key] * 2]
        while self.pick.random() < chance:
            self.pick.choice(acts)()
            chance /= 2

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Before every commit, and before every further attempt of one."""
        commit, attempt, tries = IcebergWriter.commit_rewrite, RewriteCommit._attempt, Counter[str]()

        def first(format_: IcebergWriter, rewrite: Any, incorporate: Any = None) -> int | None:
            self.goes_on(0.9)
            return commit(format_, rewrite, incorporate)

        def again(commit_: RewriteCommit, sending: Any) -> bool:
            tries["all"] += 1
            if commit_._attempts and tries["all"] < 12:
                self.goes_on(0.6)
            return attempt(commit_, sending)

        with (
            patch.object(IcebergWriter, "commit_rewrite", first),
            patch.object(RewriteCommit, "_attempt", again),
        ):
            yield


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_meanwhile_no_row_is_lost_or_comes_back(lab: Lab, seed: int) -> None:
    story = Story(lab, seed)
    for _ in range(4):
        story.append()
    story.goes_on(0.8)
    for job in story.pick.sample(["compact", "compact-deletes", "compact-deletes"], 2):
        policy = {
            "rewrite_min_input_files": 2,
            "rewrite_max_group_bytes": story.pick.choice([1500, 3000, 10**11]),
            "rewrite_target_bytes": story.pick.choice([2000, 134217728]),
            "delete_compaction_min_deletes": story.pick.choice([1, 1, 2]),
        }
        with story.meanwhile():
            run = lab.lw.run(job, story.table, policy=policy)
        assert run.state in (RunState.DONE, RunState.NOTHING_TO_DO, RunState.PARTIAL, RunState.LOST_RACE), (
            run.reason
        )
        found = Counter(tuple(row) for row in lab.sql(f"select * from {story.table}"))
        assert found == Counter(story.rows)
    assert lab.strays(story.table) == set()
