"""Others append, delete, drop, compact, expire, tag and roll back at the worst moment of each of our jobs: how ours ends, and that nothing is lost.

What is in the table afterwards is told by Paimon's own reader, and compared with a copy that the others alone changed. Some of
the cells run every time, all of them by `make crash`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakewarden.errors import Refused
from lakewarden.jobs.sweep import execute
from lakewarden.model.run import RunState
from lakewarden.model.table import TableRef
from lakewarden.state.trash import TrashedFiles
from lakewarden.tables.paimon import partitions, rewrite
from lakewarden.tables.paimon.format import Paimon
from lakewarden.tables.paimon.metadata import PaimonReader
from tests.support.nightly import nightly_except
from tests.support.paimon import PaimonLab, paimon_lab
from tests.support.paimon_races import (
    ANY,
    AT_ONCE,
    KINDS,
    NEW,
    OLD,
    ORPHAN,
    OTHER,
    OTHERS,
    Originals,
    age,
    race,
    readable,
    rows,
    run,
)
from tests.support.witness import later

DOCS = Path(__file__).parents[2] / "docs" / "paimon.md"
ALL = tuple(KINDS)
DONE = "done"

# How our job ends, by what others do meanwhile; the same table is in docs/paimon.md. What is not told is done.
OUTCOMES: dict[str, dict[str, str]] = {
    "compact": {"drop partition": "partial", "compaction": "lost-race", "rollback": "lost-race"},
    "compact keyed": {"drop partition": "partial", "compaction": "lost-race", "rollback": "lost-race"},
    "compact-deletes": {"drop partition": "partial", "compaction": "lost-race", "rollback": "lost-race"},
    "rewrite-manifests": {},
    "expire": {"rollback": "lost-race"},
    "expire, last instant": {"rollback": "unknown"},
    "expire-partitions": {},
    "sweep": {},
    "purge": {},
    "tag": {"expiry": "lost-race"},
}
JOBS: dict[str, tuple[str, ...]] = {
    "compact": ALL[:3],
    "compact keyed": ALL[3:],
    "compact-deletes": ("append with deletion vectors",),
}


def table_of_outcomes() -> str:
    """As docs/paimon.md has it."""
    head = ["our job \\ meanwhile", *OTHERS]
    lines = [head, ["---"] * len(head)]
    for job, told in OUTCOMES.items():
        lines.append([f"`{job}`", *(told.get(other, DONE) for other in OTHERS)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@pytest.mark.main
def test_the_documentation_tells_the_same() -> None:
    assert table_of_outcomes() in DOCS.read_text("utf-8"), table_of_outcomes()


def cells() -> Iterator[tuple[str, str, str]]:
    for job in OUTCOMES:
        for other in OTHERS:
            for kind in JOBS.get(job, ALL):
                if other != "delete" or kind not in ("append", "fixed buckets"):
                    yield job, other, kind


def always() -> list[tuple[str, str, str]]:
    """One cell of each that does not simply stand, and of the rest every so many; the others are nightly."""
    every = list(cells())
    notable: dict[tuple[str, str], tuple[str, str, str]] = {}
    for job, other, kind in every:
        if other in OUTCOMES[job]:
            notable.setdefault((job, other), (job, other, kind))
    plain = [cell for cell in every if cell[2] in ("append", "primary key")]
    return [*notable.values(), *plain[::11]]


@pytest.fixture(scope="module")
def originals(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Originals]:
    with paimon_lab(spark, tmp_path_factory.mktemp("races")) as lab:
        yield Originals(lab)


@pytest.mark.parametrize(("job", "other", "kind"), nightly_except(always().__contains__, cells()))
def test_whoever_comes_in_between(originals: Originals, job: str, other: str, kind: str) -> None:
    lab, told = originals.lab, originals.told(kind, other, expired=job == "purge")
    expected = left_by(originals, kind, other) if job == "expire-partitions" else told.rows
    with originals.copied(kind, expired=job == "purge") as table:
        state, reason = race(lab, table, job, other)
        assert state == OUTCOMES[job].get(other, DONE), reason
        assert rows(lab, table) == expected
        kept, trashed = readable(lab, table), lab.trash(table)
        age(lab, table)
        if job != "purge":  # which deletes them
            left = told.orphans - trashed
            assert lab.own_orphans(table) - trashed == left, "a stray of ours, or somebody's file is gone"
        nothing_goes_with(lab, table, kept)


def left_by(originals: Originals, kind: str, other: str) -> list[str]:
    """Of partitions that leave, rows that came meanwhile stay; unless ours was lost first, and planned anew."""
    before, after = originals.told(kind).rows, originals.told(kind, other).rows
    came = set(after) - set(before) if other in ("append", "delete") else set()
    return [row for row in after if row.endswith(NEW) or row in came]


def nothing_goes_with(lab: PaimonLab, table: str, kept: dict[str, list[str]]) -> None:
    """Whatever is taken for unneeded is deleted, once all is decided: every snapshot and tag reads as before."""
    with later(minutes=11):
        for job, policy in (("sweep", ANY), ("purge", AT_ONCE)):
            ended = lab.lw.run(job, table, policy)
            assert ended.state in (RunState.DONE, RunState.NOTHING_TO_DO), ended.reason
    assert not lab.own_orphans(table)
    assert readable(lab, table) == kept


COMMITS: dict[str, tuple[Any, str]] = {
    "compact": (rewrite, "append"),
    "compact keyed": (rewrite, "primary key"),
    "rewrite-manifests": (rewrite, "append"),
    "expire-partitions": (partitions, "append"),
}


@pytest.mark.parametrize("job", nightly_except(["compact", "rewrite-manifests"].__contains__, COMMITS))
def test_a_commit_that_others_expire_at_once_has_happened(originals: Originals, job: str) -> None:
    """No snapshot tells of it when we look: that it is unknown would be wrong, and that it is lost a catastrophe."""
    module, kind = COMMITS[job]
    lab, real = originals.lab, module.commit
    expected = left_by(originals, kind, "") if job == "expire-partitions" else originals.told(kind).rows
    with originals.copied(kind) as table:

        def commit(ref: TableRef, summary: Any, attempt: Callable[[], int], *rest: Any) -> int:
            def then_expired() -> int:
                made = attempt()
                OTHERS["expiry"](lab, table)
                return made

            return int(real(ref, summary, then_expired, *rest))

        with patch.object(module, "commit", commit):
            state, reason = run(lab, job, table)
        assert state == DONE, reason
        came = [row for row in rows(lab, table) if row not in expected]
        assert sorted([*expected, *came]) == rows(lab, table)
        assert {int(row.split()[0]) for row in came} == {950, 951}
        kept = readable(lab, table)
        age(lab, table)
        nothing_goes_with(lab, table, kept)


@pytest.mark.parametrize("job", ["compact", "compact keyed"])
def test_a_commit_that_was_told_lost_and_that_others_expired_has_happened(
    originals: Originals, job: str
) -> None:
    """The library said that others were faster, and no snapshot tells of ours: the table's files tell, and all of them stay."""
    module, kind = COMMITS[job]
    lab, real = originals.lab, module.commit
    expected = originals.told(kind).rows
    with originals.copied(kind) as table:

        def commit(ref: TableRef, summary: Any, attempt: Callable[[], int], *rest: Any) -> int:
            def then_told_lost() -> int:
                attempt()
                OTHERS["expiry"](lab, table)
                told = lab.spark._jvm.java.lang.RuntimeException("File deletion conflicts detected!")
                raise Py4JJavaError("commit", told)

            return int(real(ref, summary, then_told_lost, *rest))

        with patch.object(module, "commit", commit):
            state, reason = run(lab, job, table)
        assert state == DONE, reason
        came = [row for row in rows(lab, table) if row not in expected]
        assert sorted([*expected, *came]) == rows(lab, table)
        nothing_goes_with(lab, table, readable(lab, table))


# ------------------------------------------------------------ a table whose writer leaves one snapshot

ONE = {
    "snapshot.num-retained.min": "1",
    "snapshot.num-retained.max": "1",
    "snapshot.time-retained": "1 ms",
    "compaction.min.file-num": "2",
}
# Where a sweep can be met: before what it calls, or once that is done.
MOMENTS: dict[str, tuple[Any, str, bool]] = {
    "before the listing": (execute, "_listing", False),
    "after the listing": (execute, "_listing", True),
    "once the snapshots are read": (Paimon, "view", True),
    "before the manifests are read": (Paimon, "reached", False),
    "between two manifests": (PaimonReader, "manifests", False),
    "once all is read": (execute, "_check_listing", False),
    "before it is judged": (execute, "_judge", False),
    "before the deletion batch": (TrashedFiles, "trash", False),
    "once the deletion batch is written": (TrashedFiles, "trash", True),
}


@contextmanager
def at(moment: str, times: int, do: Callable[[], None]) -> Iterator[None]:
    owner, name, after = MOMENTS[moment]
    real, left = getattr(owner, name), [times]

    def called(*given: Any, **named: Any) -> Any:
        if not after:
            once()
        found = real(*given, **named)
        if after:
            once()
        return found

    def once() -> None:
        if left[0]:
            left[0] -= 1
            do()

    with patch.object(owner, name, called):
        yield
    assert left[0] < times, "the moment never came"


@pytest.mark.parametrize("times", nightly_except(lambda times: times == 1, [1, 99]))
@pytest.mark.parametrize(
    "keyed", nightly_except(lambda keyed: keyed, [False, True]), ids=lambda keyed: f"keyed={keyed}"
)
@pytest.mark.parametrize("moment", nightly_except(list(MOMENTS)[1::2].__contains__, MOMENTS))
def test_a_writer_that_leaves_one_snapshot_beside_a_sweep(
    paimon: PaimonLab, moment: str, keyed: bool, times: int
) -> None:
    """Every commit of the writer expires all but itself, and deletes what only they needed, while we look."""
    table = paimon.create(keyed=keyed, **ONE)
    start = iter(range(0, 10_000, 10))

    def commit() -> None:
        """New files and a compaction: what was needed a moment ago is gone."""
        paimon.maker.update(paimon.load(table), next(start), 10, OLD)
        paimon.maker.compact(paimon.load(table))
        paimon.maker.update(paimon.load(table), next(start), 10, OTHER)

    commit()
    orphan = paimon.folder(table) / ORPHAN
    orphan.write_bytes(b"x")
    age(paimon, table)
    with at(moment, times, commit):
        try:
            ended = paimon.lw.run("sweep", table, ANY)
        except Refused:  # a table that is another one whenever it is looked at, and nothing was changed
            assert times > 1
        else:
            assert ended.state is RunState.DONE, ended.reason
            assert ORPHAN in paimon.trash(table)
    assert len(paimon.lw.view(table).snapshots) == 1
    expected = sorted(f"{id_} u{id_} {OLD if id_ % 20 < 10 else OTHER}" for id_ in range(next(start)))
    assert paimon.rows(table) == expected
    paimon.lw.run("purge", table, AT_ONCE)
    assert paimon.rows(table) == expected
