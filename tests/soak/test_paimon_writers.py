"""All our jobs beside a Paimon writer that never rests: it writes, deletes, drops, compacts and expires by Paimon's own library.

In another thread of the same JVM, so that the two really meet. Short by default; `make soak` runs it for longer.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter

import pytest
from py4j.protocol import Py4JJavaError

from lakewarden.errors import LakewardenError
from lakewarden.model.run import RunState
from tests.support.nightly import nightly_except
from tests.support.paimon import PaimonLab
from tests.support.paimon_races import AT_ONCE, age, readable
from tests.support.witness import later

SECONDS = float(os.environ.get("LAKEWARDEN_SOAK_SECONDS", "12")) / 2
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
JOBS: tuple[tuple[str, dict[str, object]], ...] = (
    ("compact", {"rewrite_min_input_files": 2}),
    ("rewrite-manifests", {"manifest_rewrite_min_manifests": 2}),
    ("expire", {"snapshot_retention_hours": 0, "snapshot_min_retained": 2}),
    ("sweep", {}),
    ("purge", AT_ONCE),
)


# A commit of Paimon's on a disk takes longer than this; in memory nothing of ours would ever come first.
_BREATH = 0.01
# How long a short run goes on until something of ours has won.
_PATIENCE = 60.0


class Writer(threading.Thread):
    """Does one thing after the other, and knows what the table must hold."""

    def __init__(self, lab: PaimonLab, table: str, *, keyed: bool) -> None:
        super().__init__(name="writer", daemon=True)
        self._lab, self._table, self._keyed = lab, table, keyed
        self._pick = random.Random(7)
        self._next = 0
        self.rows: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.stop = threading.Event()
        # Paimon's expiry asks for tags once, when it begins: one that is made while it deletes is not seen by it.
        self.tagging = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> None:
        acts = [self.append] * 6 + [self.compact, self.expire, self.drop]
        acts += [self.update, self.delete] * 2 if self._keyed else []
        try:
            while not self.stop.is_set():
                act = self._pick.choice(acts)
                try:
                    act()
                except Py4JJavaError as error:
                    # Nothing of it was committed. Files go without any grace here, also from under who reads the past.
                    if not any(each in str(error) for each in ("conflict", "FileNotFound", "not exist")):
                        raise
                    self.refused[act.__name__] += 1
                else:
                    self.done[act.__name__] += 1
                self.stop.wait(_BREATH)
        except BaseException as error:
            self.error = error

    def append(self) -> None:
        day, start = self._pick.choice(DAYS), self._next
        self._next += 10
        self._lab.maker.write(self._lab.load(self._table), start, 10, day, False)
        self.rows.update(f"{id_} v{id_} {day}" for id_ in range(start, start + 10))

    def update(self) -> None:
        day, start = self._pick.choice(DAYS), self._pick.randrange(self._next + 1)
        self._lab.maker.update(self._lab.load(self._table), start, 5, day)
        self._gone(start, day)
        self.rows.update(f"{id_} u{id_} {day}" for id_ in range(start, start + 5))

    def delete(self) -> None:
        day, start = self._pick.choice(DAYS), self._pick.randrange(self._next + 1)
        self._lab.delete(self._table, start, 5, day)
        self._gone(start, day)

    def _gone(self, start: int, day: str) -> None:
        for id_ in range(start, start + 5):
            for value in ("u", "v"):
                self.rows.pop(f"{id_} {value}{id_} {day}", None)

    def drop(self) -> None:
        day = self._pick.choice(DAYS)
        self._lab.maker.dropPartition(self._lab.load(self._table), day)
        self.rows = Counter({row: 1 for row in self.rows if not row.endswith(day)})

    def compact(self) -> None:
        self._lab.maker.compact(self._lab.load(self._table).copy({"write-only": "false"}))

    def expire(self) -> None:
        with self.tagging:
            self._lab.maker.ownExpire(self._lab.load(self._table), self._pick.choice([1, 3, 8]))


def won(ended: Counter[str]) -> bool:
    return any(ended[f"{job} done"] for job in ("compact", "rewrite-manifests"))


def ours(lab: PaimonLab, table: str, writer: Writer) -> Counter[str]:
    """One job after the other for as long as there is time; how each ended."""
    ended: Counter[str] = Counter()
    until, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < until or (not won(ended) and time.monotonic() < until + _PATIENCE):
        assert writer.error is None, str(writer.error)
        for job, policy in JOBS:
            try:
                run = lab.lw.run(job, table, policy)
            except LakewardenError as error:  # such as a table that changes faster than it can be read
                ended[f"{job} {type(error).__name__}"] += 1
                print(f"{job}: {error.message}")
            else:
                ended[f"{job} {run.state}"] += 1
        number += 1
        try:
            with writer.tagging:
                newest = lab.lw.view(table).current_snapshot_id
                lab.lw.holds.tag(table, f"t{number}", snapshot_id=newest, forever=True)
            ended["tag done"] += 1
        except LakewardenError:
            ended["tag lost"] += 1
    return ended


@pytest.mark.timeout(SECONDS * 4 + 240)
@pytest.mark.parametrize(
    "kind", nightly_except("primary key".__eq__, ["append", "fixed buckets", "primary key"])
)
def test_no_row_is_lost_or_comes_back(paimon: PaimonLab, kind: str) -> None:
    options = {"bucket": "2", "bucket-key": "id"} if kind == "fixed buckets" else {}
    keyed = kind == "primary key"
    table = paimon.create(keyed=keyed, **options, **{"compaction.min.file-num": "2", "write-only": "true"})
    writer = Writer(paimon, table, keyed=keyed)
    for _ in range(6):
        writer.append()
    writer.start()
    try:
        ended = ours(paimon, table, writer)
    finally:
        writer.stop.set()
        writer.join()
    assert writer.error is None, str(writer.error)
    told = f"{dict(writer.done)}, refused {dict(writer.refused)}; ours {dict(sorted(ended.items()))}"
    print(f"{kind}: the writer {told}")
    found = Counter(paimon.rows(table))
    assert found == writer.rows, {"lost": writer.rows - found, "back": found - writer.rows}
    assert won(ended), "some of ours won"
    kept = readable(paimon, table)
    age(paimon, table)
    stray = paimon.own_orphans(table) - paimon.trash(table)
    # An attempt of a commit that came second leaves what it wrote beside the manifests, whoever made it: Paimon keeps it.
    assert {each.partition("/")[0] for each in stray} <= {"manifest"}
    with later(minutes=11):
        for job, policy in (("sweep", {"orphan_max_percent": 100}), ("purge", AT_ONCE)):
            assert paimon.lw.run(job, table, policy).state in (RunState.DONE, RunState.NOTHING_TO_DO)
    assert readable(paimon, table) == kept
