"""Changelogs that outlive their snapshots: kept, read and expired as by Paimon's own expiry of a copy of the same table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakewarden.model.run import RunState
from tests.support.nightly import nightly_except
from tests.support.paimon import PaimonLab, files_below
from tests.support.paimon_races import age

AT_ONCE = {"delete_grace_hours": 0}
SNAPSHOTS = {
    "snapshot.num-retained.min": "2",
    "snapshot.num-retained.max": "2",
    "snapshot.time-retained": "1 ms",
    "write-only": "true",
}
# The same in the operator's words: a table's own options may only keep more.
AS_PAIMON = {"snapshot_min_retained": 2, "snapshot_max_retained": 2, "snapshot_retention_hours": 0}
TERMS = {
    "at most so many": {
        "changelog.num-retained.min": "3",
        "changelog.num-retained.max": "6",
        "changelog.time-retained": "1 d",
    },
    "at least so many": {
        "changelog.num-retained.min": "5",
        "changelog.num-retained.max": "9",
        "changelog.time-retained": "1 ms",
    },
    "all of them": {"changelog.num-retained.max": "99", "changelog.time-retained": "1 d"},
}
PRODUCERS = {
    "input": (True, {"changelog-producer": "input"}),
    "lookup": (True, {"changelog-producer": "lookup"}),
    "full-compaction": (True, {"changelog-producer": "full-compaction"}),
    "none": (True, {}),
    "none, append": (False, {"compaction.min.file-num": "2"}),
}
ALWAYS = [
    ("at most so many", "input"),
    ("at most so many", "none"),
    ("at least so many", "lookup"),
    ("all of them", "none, append"),
]
EVERY = [(term, producer) for term in TERMS for producer in PRODUCERS]


def made(lab: PaimonLab, producer: str, term: str) -> str:
    """Rows that are written, changed and deleted, and merged now and then: a dozen snapshots."""
    keyed, options = PRODUCERS[producer]
    table = lab.create(keyed=keyed, **options, **SNAPSHOTS, **TERMS[term])
    for round_ in range(3):
        for start in (0, 10):
            lab.maker.write(lab.load(table), round_ * 30 + start, 20, "2024-01-01", False)
        if keyed:
            lab.maker.update(lab.load(table), round_ * 30 + 5, 5, "2024-01-01")
            lab.delete(table, round_ * 30, 2)
        lab.maker.compact(lab.load(table).copy({"write-only": "false"}))
    lab.lw.set_policy(table, AS_PAIMON)
    return table


def changelogs(paths: set[str]) -> set[str]:
    return {each for each in paths if each.startswith(("changelog/changelog-", "snapshot/snapshot-"))}


def but_hints(paths: set[str]) -> set[str]:
    """Without them: Paimon writes its own also where nothing changed."""
    return {each for each in paths if not each.endswith(("EARLIEST", "LATEST"))}


def first(paths: set[str]) -> int:
    return min(int(each.rpartition("-")[2]) for each in changelogs(paths))


def told(lab: PaimonLab, loaded: Any, start: int) -> list[str]:
    found: list[str] = json.loads(lab.maker.changes(loaded, start))
    return found


@pytest.mark.parametrize(("term", "producer"), nightly_except(ALWAYS.__contains__, EVERY))
def test_the_same_go_as_by_paimons_own_expiry(paimon: PaimonLab, term: str, producer: str) -> None:
    table = made(paimon, producer, term)
    rows = paimon.rows(table)
    with paimon.twin(table) as (twin, folder):
        paimon.maker.ownExpireByOptions(twin)
        expected = files_below(folder)
        start = first(expected)
        changes = told(paimon, twin, start)
    assert any(each.startswith("changelog/") for each in expected)
    plan = paimon.lw.plan("expire", table)
    run = paimon.lw.run("expire", table)
    assert run.state is RunState.DONE, run.reason
    there = paimon.on_disk(table)
    assert changelogs(there) == changelogs(expected)
    gone = run.counters["changelogs_expired"]
    assert gone == sum(len(each.ids) for each in plan.actions if hasattr(each, "ids"))
    assert bool(gone) == (term != "all of them")
    assert any("changelog" in each.reason for each in plan.skipped)
    paimon.lw.run("purge", table, AT_ONCE)
    left = paimon.on_disk(table)
    if producer.startswith(
        "none"
    ):  # Paimon keeps lists of what was there before, and files until their removal expires
        assert but_hints(left) <= but_hints(expected)
        assert all(each.startswith(("manifest/", "dt=")) for each in but_hints(expected) - left)
    else:
        assert but_hints(left) == but_hints(expected)
    if gone:
        assert (paimon.folder(table) / "changelog/EARLIEST").read_text("utf-8") == str(start)
    assert told(paimon, paimon.load(table), start) == changes
    assert paimon.rows(table) == rows
    assert paimon.lw.run("expire", table).state is RunState.NOTHING_TO_DO


def test_a_consumer_keeps_its_changelog_and_all_after_it(paimon: PaimonLab) -> None:
    table = made(paimon, "input", "all of them")
    assert paimon.lw.run("expire", table).state is RunState.DONE
    paimon.maker.consumer(paimon.load(table), "etl", 4)
    paimon.maker.alter(paimon._opened, "events", "changelog.time-retained", "2 ms")
    paimon.append(table, 3, start=9_000, days=1)
    plan = paimon.lw.plan("expire", table)
    assert "consumer etl reads on from it" in {each.reason for each in plan.skipped}
    assert paimon.lw.run("expire", table).state is RunState.DONE
    assert first(paimon.on_disk(table)) == 4
    assert told(paimon, paimon.load(table), 4)


def test_paimons_own_expiry_goes_on_where_ours_stopped(paimon: PaimonLab) -> None:
    table = made(paimon, "none", "at most so many")
    assert paimon.lw.run("expire", table).state is RunState.DONE
    paimon.lw.run("purge", table, AT_ONCE)
    paimon.append(table, 4, start=9_000, days=1)
    rows = paimon.rows(table)
    paimon.maker.ownExpireByOptions(paimon.load(table))
    assert paimon.rows(table) == rows
    assert told(paimon, paimon.load(table), first(paimon.on_disk(table)))
    plan = paimon.lw.plan("expire", table)
    assert plan.empty, plan.actions


def test_changelogs_that_no_writer_produced_stay_when_the_option_changes(paimon: PaimonLab) -> None:
    """What is read as a changelog is told by the option of now; what was kept for one, by that of then."""
    table = made(paimon, "none", "all of them")
    assert paimon.lw.run("expire", table).state is RunState.DONE
    paimon.lw.run("purge", table, AT_ONCE)
    changes = told(paimon, paimon.load(table), 1)
    paimon.maker.alter(paimon._opened, "events", "changelog-producer", "input")
    age(paimon, table)
    assert paimon.lw.plan("sweep", table).empty
    paimon.maker.alter(paimon._opened, "events", "changelog-producer", "none")
    assert told(paimon, paimon.load(table), 1) == changes
