"""What a purge plans and what it leaves, from values alone; and whether a file is still the one that was marked."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.deletion.holds import Holds
from lakewarden.errors import Refused
from lakewarden.jobs.purge.execute import DueFile, by_root, change
from lakewarden.jobs.purge.plan import check, plan
from lakewarden.model.actions import EraseFiles
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.plan import Plan
from lakewarden.state.trash_batches import FAILED_LOAD, BatchFiles, BatchState, FileState, Tally, TrashBatch
from lakewarden.storage.objects import Stat
from lakewarden.tables.places import Places
from tests.support.tables import NOW, TABLE, policy, view

HOUR = timedelta(hours=1)


def batch_files(
    age: timedelta = 25 * HOUR,
    *,
    cause: str = "expire",
    state: BatchState = BatchState.ACTIVE,
    uuid: str = "u",
    snapshots: list[int] | None = None,
    **tallies: int,
) -> BatchFiles:
    since = NOW - age if state is BatchState.ACTIVE else None
    detail = {} if snapshots is None else {"snapshot_ids": snapshots}
    batch = TrashBatch(f"run-{age}-{cause}", str(TABLE), uuid, cause, "why", state, NOW - age, since, detail)
    counted = tallies or {"trashed": 3}
    return BatchFiles(batch, {FileState(name): Tally(files, files * 10) for name, files in counted.items()})


def made(
    *batches: BatchFiles, holds: Holds | None = None, handed_off: set[int] | None = None, **call: object
) -> Plan:
    return plan(view(), batches, policy(**call), holds or Holds(), {}, NOW, handed_off)


def erased(made: Plan) -> int:
    return sum(action.files for action in made.actions if isinstance(action, EraseFiles))


def test_only_what_is_past_its_grace() -> None:
    found = made(batch_files(25 * HOUR), batch_files(23 * HOUR), batch_files(24 * HOUR))
    assert erased(found) == 6
    assert [(each.count, each.reason) for each in found.skipped] == [
        (3, "in the trash until 2024-03-15 13:00 UTC: delete_grace_hours=24 (default)")
    ]


def test_a_failed_load_waits_as_long_as_an_orphan() -> None:
    assert erased(made(batch_files(100 * HOUR, cause=FAILED_LOAD), delete_grace_hours=0)) == 0
    assert erased(made(batch_files(168 * HOUR, cause=FAILED_LOAD), delete_grace_hours=0)) == 3


def test_what_is_not_in_force_or_waits_for_hand_off_stays() -> None:
    pending = made(batch_files(900 * HOUR, state=BatchState.PENDING))
    assert pending.empty and "has not ended" in pending.skipped[0].reason
    asked = {"handoff_enabled": True, "handoff_catalog": "cold"}
    waiting = made(batch_files(900 * HOUR, snapshots=[7, 8]), handed_off={8}, **asked)
    assert waiting.empty and "snapshot 7 is not in the colder tier" in waiting.skipped[0].reason
    assert not made(batch_files(900 * HOUR, snapshots=[7, 8]), handed_off={7, 8}, **asked).empty


def test_what_is_settled_is_not_looked_at() -> None:
    found = made(batch_files(erased=5, missing=1, kept=2, restored=4))
    assert found.empty and not found.skipped and found.reason == "no file is in the trash"


def test_files_a_dead_run_left_marked_are_due_again() -> None:
    assert erased(made(batch_files(trashed=2, erasing=1))) == 3


@pytest.mark.parametrize(
    ("snapshots", "pinned", "stays"), [([7], 7, True), ([8], 7, False), (None, 7, True), ([7], 8, False)]
)
def test_a_pin_on_a_snapshot_that_is_gone(snapshots: list[int] | None, pinned: int, stays: bool) -> None:
    pin = Hold(HoldKind.PIN, "p", "report", snapshot_id=pinned)
    found = made(batch_files(snapshots=snapshots), holds=Holds((pin,)))
    assert found.empty == stays


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5), st.booleans()), max_size=8))
def test_planned_and_skipped_together_are_everything_trashed(rows: list[tuple[int, int, bool]]) -> None:
    batches = [
        batch_files(age * HOUR, trashed=files, state=BatchState.ACTIVE if active else BatchState.PENDING)
        for age, files, active in rows
    ]
    found = made(*batches)
    assert erased(found) + sum(each.count for each in found.skipped) == sum(files for _, files, _ in rows)
    assert erased(found) == sum(files for age, files, active in rows if active and age >= 24)


def test_files_of_another_table_of_that_name_are_refused() -> None:
    with pytest.raises(Refused, match="another table of that name"):
        check(view(), [batch_files(uuid="old")])
    check(view(), [batch_files(uuid="old", erased=3)])
    check(view(), [batch_files()])


# ------------------------------------------------------------ is it still that file


def due(size: int | None = 10, stamp: str | None = None) -> DueFile:
    return DueFile(1, "/t/a", size, stamp, "v", NOW)


def stat(size: int = 10, modified: datetime = NOW - HOUR, stamp: str = "s") -> Stat:
    return Stat(size, modified, stamp)


def test_the_file_that_was_marked() -> None:
    assert not change(due(), stat())
    assert not change(due(size=None), stat(size=99))
    assert change(due(stamp="s"), stat(modified=NOW + HOUR)), (
        "uploaded again with the same bytes it has the same stamp"
    )


def test_another_file_under_the_old_name() -> None:
    assert "10 bytes then, 11 now" in change(due(), stat(size=11))
    assert "written again" in change(due(), stat(modified=NOW + timedelta(seconds=1)))
    assert "written again" in change(due(stamp="s"), stat(stamp="t"))


def test_folders_go_up_to_the_tables_own() -> None:
    table = replace(view(), location="file:/wh/t", properties={"write.data.path": "/far/data"})
    folders = {"/wh/t/data/d=1", "/wh/t/metadata", "/far/data/d=1/x", "/wh/t/old/d=1", "/elsewhere/d=1"}
    assert "/far/data" not in by_root(table, folders, Places())
    assert by_root(table, folders, Places(confirmed=("/far",))) == {
        "file:/wh/t/data": ["/wh/t/data/d=1"],
        "file:/wh/t/metadata": ["/wh/t/metadata"],
        "/far/data": ["/far/data/d=1/x"],
        "file:/wh/t": ["/wh/t/old/d=1"],
    }
