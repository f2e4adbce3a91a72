"""Where a moment of a table's past can be read."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from lakewarden.errors import UsageError
from lakewarden.jobs.cold.locate import SnapshotQuestion, where
from lakewarden.model.table import Ref, Snapshot, TableRef
from tests.support.tables import NOW, view

COLD = TableRef("cold", ("db",), "events")


PARENTS = {40: 30, 30: 20, 20: 15, 15: 10, 38: 30}


def snapshot(id_: int) -> Snapshot:
    return Snapshot(id_, PARENTS.get(id_), id_, NOW - timedelta(days=100 - id_), "append", {})


# 38 is of a branch.
LIVE = replace(
    view(),
    current_snapshot_id=40,
    snapshots=tuple(map(snapshot, (30, 38, 40))),
    refs=(Ref("now", "tag", 40), Ref("dev", "branch", 38), Ref("main", "branch", 40)),
)
TIER = replace(LIVE, ref=COLD, snapshots=tuple(map(snapshot, (10, 20))), refs=(Ref("old", "tag", 10),))
EXPIRED = tuple(map(snapshot, (10, 15, 20)))


def at(days: float) -> datetime:
    return NOW - timedelta(days=100 - days)


@pytest.mark.parametrize(
    ("asked", "tier", "id_"),
    [
        (SnapshotQuestion(snapshot_id=40), "live", 40),
        (SnapshotQuestion(snapshot_id=20), "cold", 20),
        (SnapshotQuestion(snapshot_id=15), "gone", 15),
        (SnapshotQuestion(snapshot_id=99), "gone", None),
        (SnapshotQuestion(as_of=at(35)), "live", 30),
        (SnapshotQuestion(as_of=at(39)), "live", 30),
        (SnapshotQuestion(as_of=at(50)), "live", 40),
        (SnapshotQuestion(as_of=at(25)), "cold", 20),
        (SnapshotQuestion(as_of=at(17)), "gone", 15),
        (SnapshotQuestion(as_of=at(12)), "cold", 10),
        (SnapshotQuestion(as_of=at(5)), "gone", None),
        (SnapshotQuestion(tag="now"), "live", 40),
        (SnapshotQuestion(tag="old"), "cold", 10),
        (SnapshotQuestion(tag="other"), "gone", None),
    ],
    ids=str,
)
def test_who_has_it(asked: SnapshotQuestion, tier: str, id_: int | None) -> None:
    found = where(asked, LIVE, TIER, EXPIRED)
    assert (found.tier, found.snapshot_id) == (tier, id_)
    assert found.table == {"live": LIVE.ref, "cold": COLD, "gone": None}[tier]
    assert found.query == (f"SELECT * FROM {found.table} VERSION AS OF {id_}" if found.table else "")
    assert found.reason and found.to_dict()["tier"] == tier


def test_without_a_colder_tier() -> None:
    assert (
        where(SnapshotQuestion(snapshot_id=20), LIVE, None, EXPIRED).reason
        == "snapshot 20 expired, and was not handed off"
    )


def test_one_way_to_say_it() -> None:
    for wrong in ({}, {"snapshot_id": 1, "tag": "x"}):
        with pytest.raises(UsageError, match="exactly one of"):
            SnapshotQuestion(**wrong)


def test_a_parent_that_nobody_knows() -> None:
    """Another tool expired 15 and 20, and nobody wrote them down: 10 may have been the current one, or not any more."""
    cold = replace(TIER, snapshots=(snapshot(10),))
    for days in (12, 25):
        found = where(SnapshotQuestion(as_of=at(days)), LIVE, cold)
        assert (found.tier, found.query) == ("gone", "")
        assert "snapshots between 10 and 30 expired without a record" in found.reason
    assert where(SnapshotQuestion(as_of=at(35)), LIVE, cold).snapshot_id == 30


def numbered(id_: int, parent: int | None = None) -> Snapshot:
    return replace(snapshot(id_), parent_id=parent)


# Paimon's: numbered without gaps, tags with copies of their own; what the first parent of a table was, its metadata does not say.
IN_ORDER = replace(
    LIVE,
    in_order=True,
    snapshots=(numbered(39), numbered(40, 39)),
    refs=(
        Ref("main", "branch", 40),
        Ref("both", "tag", 38, has_copy=True),
        Ref("alone", "tag", 5, has_copy=True),
    ),
)
OF_IT = replace(IN_ORDER, ref=COLD, snapshots=(numbered(30), numbered(37), numbered(38, 37)), refs=())


@pytest.mark.parametrize(
    ("asked", "tier", "id_", "version"),
    [
        (SnapshotQuestion(as_of=at(38.5)), "cold", 38, "38"),
        (SnapshotQuestion(as_of=at(39)), "live", 39, "39"),
        (SnapshotQuestion(as_of=at(33)), "gone", None, ""),
        (SnapshotQuestion(tag="both"), "cold", 38, "38"),
        (SnapshotQuestion(tag="alone"), "live", 5, "'alone'"),
    ],
    ids=str,
)
def test_where_snapshots_are_numbered_in_order(
    asked: SnapshotQuestion, tier: str, id_: int | None, version: str
) -> None:
    found = where(asked, IN_ORDER, OF_IT)
    assert (found.tier, found.snapshot_id) == (tier, id_)
    assert found.query.rpartition(" ")[2] == version
