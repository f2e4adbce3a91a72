"""What ages, what leaves the colder tier, and what a recall asks for: decided from values alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.cli.tiers import RecallReport
from lakewarden.deletion.holds import Holds
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.jobs.cold import retention as cold_retention
from lakewarden.jobs.cold import transition as ageing
from lakewarden.jobs.cold.locate import COLD, LIVE, SnapshotLocation, SnapshotQuestion
from lakewarden.jobs.cold.recall import ArchivedFiles, recall, shelf, with_archive_state
from lakewarden.jobs.cold.table import NOT_KNOWN, Cold
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.prices import PRICES
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Silent
from lakewarden.model.table import Counters, Ref, Snapshot, TableRef, TableView
from lakewarden.policy.resolve import Layers, Policy, resolve
from lakewarden.state.cold import ColdFile
from lakewarden.storage.archive import ObjectArchive, StoredObject
from lakewarden.tables.iceberg.cold import without
from lakewarden.tables.interface import ColdHome, ColdTier

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TABLE, FROZEN = TableRef("lake", ("db",), "t"), TableRef("cold", ("db",), "t")


def policy(**values: object) -> Policy:
    return resolve(TABLE, Layers(call=values))


def view(ref: TableRef, ids: Iterable[int], tags: dict[str, int] | None = None) -> TableView:
    snapshots = tuple(Snapshot(each, None, each, NOW - timedelta(days=99), "append", {}) for each in ids)
    refs = tuple(Ref(name, "tag", id_) for name, id_ in (tags or {}).items())
    return TableView(
        ref, "iceberg", 2, "u", "/t", "/m", None, snapshots, refs, 0, "{}", (), 0, (), 0, {},
        Counters(1, 0, 1, 1, 1, 1),
    )  # fmt: skip


def cold(handed: dict[int, int], *unknown: int, tags: dict[str, int] | None = None) -> Cold:
    """By snapshot, how many days ago it was handed off."""
    ids = (*handed, *unknown)
    at = {each: NOW - timedelta(days=days) for each, days in handed.items()}
    home = ColdHome(FROZEN, "s3://b/t", frozenset(ids))
    return Cold(home, view(FROZEN, ids, tags), cast("ColdTier", None), at)


def copy(name: str, kind: str | None = "GLACIER_IR", size: int = 10, proven: bool = True) -> ColdFile:
    return ColdFile(f"/t/{name}", f"s3://b/t/{name}", size, "c", kind, NOW, "e", NOW if proven else None)


# ------------------------------------------------------------ ageing


@given(st.dictionaries(st.integers(1, 50), st.integers(0, 60), max_size=20), st.sets(st.integers(51, 60)))
def test_every_cold_snapshot_is_old_or_skipped(days: dict[int, int], unknown: set[int]) -> None:
    handed = {each: NOW - timedelta(days=ago) for each, ago in days.items()}
    ids = [*days, *unknown]
    old, skipped = ageing.due(ids, handed, timedelta(days=30), NOW, "why")
    assert set(old) == {each for each, ago in days.items() if ago >= 30}
    assert len(old) + sum(count for _, count, _, _ in skipped) == len(ids)
    assert {reason: count for _, count, _, reason in skipped}[NOT_KNOWN] == len(unknown)


def test_what_is_there_does_not_age_again() -> None:
    told = policy(handoff_retention_hours="30d")
    copies = [copy("a"), copy("b", proven=False), copy("c", "DEEP_ARCHIVE"), copy("d", None)]
    found = ageing.plan(copies, 3, [], told, PRICES, NOW)
    assert found.action is not None
    assert [each.path for each in found.files] == ["/t/a", "/t/b", "/t/d"]
    assert (found.action.files, found.action.bytes, found.action.unread_bytes) == (3, 30, 10)
    done = Reason(ReasonKind.SETTLED, "it is in DEEP_ARCHIVE already")
    assert ("cold file", 1, 10, done) in found.skipped
    after = [copy(each.cold_path[-1], "DEEP_ARCHIVE") for each in copies]
    assert ageing.plan(after, 3, [], told, PRICES, NOW).action is None, "planned again, nothing is left"


# ------------------------------------------------------------ the end of retention


def test_why_a_cold_snapshot_stays() -> None:
    told = policy(cold_retention_hours="30d", protected_tags="audit-*")
    have = cold({1: 40, 2: 40, 3: 40, 4: 40, 5: 10}, 6, tags={"audit-1": 3, "plain": 1})
    pin = Hold(HoldKind.PIN, "p", "ana", snapshot_id=2)
    over, skipped = cold_retention.plan(have, view(TABLE, [4]), Holds((pin,)), told, NOW)
    assert over == [1]
    reasons = [reason.text for _, _, _, reason in skipped]
    assert reasons[0] == "pinned by ana" and "audit-1 is protected" in reasons[1]
    assert (
        "live table still has it" in reasons[2]
        and "cold_retention_hours" in reasons[3]
        and reasons[4] == NOT_KNOWN.text
    )


def metadata(ids: list[int], tags: dict[str, int]) -> dict[str, Any]:
    refs = {name: {"snapshot-id": id_, "type": "tag"} for name, id_ in tags.items()}
    return {
        "table-uuid": "u",
        "schemas": [{"schema-id": 0}],
        "last-updated-ms": 99,
        "snapshots": [{"snapshot-id": each, "timestamp-ms": each} for each in ids],
        "snapshot-log": [{"snapshot-id": each, "timestamp-ms": each} for each in ids],
        "current-snapshot-id": ids[-1],
        "refs": {**refs, "main": {"snapshot-id": ids[-1], "type": "branch"}},
        "metadata-log": [],
    }


@given(st.lists(st.integers(1, 99), min_size=1, max_size=9, unique=True), st.data())
def test_metadata_without_some_snapshots_names_none_of_them(ids: list[int], more: st.DataObject) -> None:
    gone = frozenset(more.draw(st.sets(st.sampled_from(ids))))
    never = {"snapshot-id": 100, "timestamp-ms": 100}  # one that the cold table knows of, and does not have
    before = metadata(ids, {f"t{each}": each for each in ids})
    before["snapshot-log"].append(never)
    made = without(before, gone, "/m1")
    left = [each for each in ids if each not in gone]
    assert [each["snapshot-id"] for each in made["snapshots"]] == left
    assert made["snapshot-log"] == before["snapshot-log"], "no moment is answered with another one's rows"
    assert {each["snapshot-id"] for each in made["refs"].values()} == set(left)
    assert made["current-snapshot-id"] == (left[-1] if left else -1)
    assert ("main" in made["refs"]) == bool(left)
    assert made["metadata-log"] == [{"timestamp-ms": 99, "metadata-file": "/m1"}]
    assert made["schemas"] == [{"schema-id": 0}]


# ------------------------------------------------------------ recall


class Shelves:
    """Takes note of what it is asked for."""

    def __init__(self, *found: StoredObject | None) -> None:
        self.found, self.asked = list(found), list[str]()

    def look(self, paths: list[str]) -> list[StoredObject | None]:
        return self.found

    def recall(self, paths: list[str], days: int, speed: str) -> list[bool]:
        self.asked += paths
        return [True] * len(paths)


def deep(name: str, until: timedelta | None = None, restoring: bool = False) -> StoredObject:
    from lakewarden import clock

    end = None if until is None else clock.now() + until
    return StoredObject(f"s3://b/{name}", 1 << 30, "e", "DEEP_ARCHIVE", restoring, end)


FOUND = SnapshotLocation(SnapshotQuestion(snapshot_id=7), COLD, FROZEN, 7, NOW, "it was handed off")
OPTIONS: dict[str, Any] = {"table": str(TABLE), "days": 3, "speed": "Standard", "wait": False}


def test_only_what_is_not_on_its_way_is_asked_for() -> None:
    found = ArchivedFiles(
        5, (deep("a"), deep("b", restoring=True), deep("c", timedelta(days=9)), deep("d", timedelta(hours=9)))
    )
    shelves = Shelves()
    done = recall(FOUND, lambda: found, lambda: cast("ObjectArchive", shelves), PRICES, Silent(), **OPTIONS)
    assert shelves.asked == ["s3://b/a", "s3://b/d"], "the last would be taken back too early"
    assert (done.archived, done.asked, done.restoring, done.readable) == (4, 2, 1, 2)
    assert done.dollars == pytest.approx(2 * (0.10 / 1000 + 0.02))
    assert done.ready_by is not None and done.where.tier == "deep" and not done.ready
    told = RecallReport(str(TABLE), done, NOW).to_dict()
    assert told["files_in_progress"] == 1 and "in at most" in told["told"]


def test_nothing_to_recall_is_said() -> None:
    done = recall(
        FOUND, lambda: ArchivedFiles(5), lambda: cast("ObjectArchive", None), PRICES, Silent(), **OPTIONS
    )
    assert done.ready and done.where == FOUND
    assert "nothing to recall" in RecallReport(str(TABLE), done, NOW).told()


def test_wrong_calls() -> None:
    for wrong in ({"days": 0}, {"speed": "Expedited"}):
        with pytest.raises(UsageError):
            recall(
                FOUND,
                lambda: ArchivedFiles(5),
                lambda: cast("ObjectArchive", None),
                PRICES,
                Silent(),
                **{**OPTIONS, **wrong},
            )


def test_what_is_known_to_be_readable_is_not_asked_after() -> None:
    paths = ["s3://b/t/a", "s3://b/t/b", "s3://b/t/c", "/local"]
    known = {paths[0]: copy("a"), paths[1]: copy("b", "DEEP_ARCHIVE")}
    asked: list[list[str]] = []

    class Looking(Shelves):
        def look(self, paths: list[str]) -> list[StoredObject | None]:
            asked.append(paths)
            return [deep("b"), StoredObject("c", 1, "e", "GLACIER_IR")]

    found = shelf(paths, known, lambda: cast("ObjectArchive", Looking()))
    assert (
        asked == [paths[1:3]] and found.files == 4 and [each.path for each in found.archived] == ["s3://b/b"]
    )
    with pytest.raises(LakewardenError, match="names it, but it does not exist"):
        shelf(paths[1:2], known, lambda: cast("ObjectArchive", Shelves(None)))


def test_the_tier_of_a_moment() -> None:
    recalled = with_archive_state(
        FOUND, ArchivedFiles(2, (deep("a", timedelta(days=2)), deep("b", timedelta(days=1)))), str(TABLE)
    )
    assert recalled.tier == "recalled" and recalled.until is not None and "until" in recalled.reason
    assert (
        with_archive_state(
            FOUND, ArchivedFiles(2, (deep("a", timedelta(days=2)), deep("b"))), str(TABLE)
        ).tier
        == "deep"
    )
    live = SnapshotLocation(SnapshotQuestion(snapshot_id=7), LIVE, TABLE, 7, NOW, "the table has it")
    assert with_archive_state(live, ArchivedFiles(0), str(TABLE)) is live
