"""What expires stays readable in the colder tier, whatever the table is made of, and no live file goes without its proof."""

from __future__ import annotations

import pytest

from lakewarden.errors import Refused
from lakewarden.model.run import RunState
from tests.conformance.lakes import DAYS, Lake


def policy(lake: Lake) -> dict[str, object]:
    return {
        "snapshot_retention_hours": 0,
        "snapshot_min_retained": 1,
        "delete_grace_hours": 0,
        "handoff_enabled": True,
        "handoff_catalog": lake.cold,
    }


@pytest.mark.main
def test_hand_offs_add_up_and_are_read_by_id_and_time(lake: Lake) -> None:
    asked = policy(lake)
    lake.create()
    snapshots, rows = {}, {}
    for turn in range(3):
        lake.append(3, first=1_000 * turn)
        lake.compact_elsewhere()
        snapshots |= {each.id: each for each in lake.view().snapshots}
        rows |= {each.id: lake.rows(each.id) for each in lake.view().snapshots}
        waiting = lake.run("expire", **asked)
        assert waiting.state is RunState.NOTHING_TO_DO, "it waits for the hand-off"
        run = lake.do("handoff", **asked)
        assert run.counters["files_copied"] > 0
        assert lake.run("handoff", **asked).state is RunState.NOTHING_TO_DO
        lake.do("expire", **asked)
    lake.age()
    assert not lake.do("purge", **asked).counters["files_held"]
    head = lake.head()
    assert lake.rows() == rows[head]
    lake.folder.rename(lake.folder.with_name("away"))
    for id_ in snapshots.keys() - {head}:
        assert lake.cold_rows(id_) == rows[id_]
        assert lake.cold_rows(as_of=snapshots[id_].committed_at) == rows[id_]


def test_a_damaged_copy_keeps_the_live_file_and_the_tier_is_read_only(lake: Lake) -> None:
    asked = policy(lake)
    lake.create()
    lake.append(6)
    lake.drop_day(DAYS[0])
    lake.do("handoff", **asked)
    lake.do("expire", **asked)
    lake.age()
    live = {path.name for path in lake.folder.rglob("*.parquet")}
    due = {name.rpartition("/")[2] for name in lake.trash()} & live
    copy = next(path for path in sorted(lake.cold_folder.rglob("*.parquet")) if path.name in due)
    whole = copy.read_bytes()
    copy.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    run = lake.do("purge", **asked)
    assert run.counters["files_held"] == 1 and "differs from what was copied" in run.reason
    assert copy.name in {path.name for path in lake.folder.rglob("*.parquet")}
    copy.write_bytes(whole)
    assert lake.do("purge", **asked).counters["files_erased"] == 1
    frozen = lake.lw.run("purge", f"{lake.cold}.db.events", asked)
    assert frozen.state is RunState.NOTHING_TO_DO, "only what its own retention trashed"
    for job in ("compact", "expire", "sweep", "handoff"):
        with pytest.raises(Refused, match="read only"):
            lake.lw.run(job, f"{lake.cold}.db.events", asked)
