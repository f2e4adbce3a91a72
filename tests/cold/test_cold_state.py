"""What is known of the colder tier: the same promises on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from sqlalchemy import text

from lakewarden.state import database
from lakewarden.state.cold import ColdFile, ColdFiles, ColdSnapshots
from lakewarden.state.database import State, migrate
from lakewarden.state.trash import TrashedFiles, take_back
from lakewarden.state.trash_batches import FileState
from tests.deletion.test_trash_state import ME, start
from tests.state.test_state import to_revision

pytestmark = [pytest.mark.services, pytest.mark.main]

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MANY = 1_203  # more than one statement's worth


def test_a_copy_from_made_to_let_go_and_back(state: State) -> None:
    files = ColdFiles(state)
    copies = [ColdFile(f"/t/{n}", f"s3://b/{n}", n, "c", "GLACIER_IR") for n in range(MANY)]
    files.add("u", copies, "r1", NOW)
    paths, cold = [each.path for each in copies], [each.cold_path for each in copies]
    assert len(files.among("u", paths)) == len(files.copies("u", cold)) == MANY
    assert files.among("other", paths) == {} and files.copies("other", cold) == {}
    found = files.copies("u", cold)["s3://b/7"]
    assert (found.size, found.storage_class, found.class_since, found.proven_at) == (
        7,
        "GLACIER_IR",
        NOW,
        None,
    )

    later = NOW + timedelta(days=1)
    files.prove("u", paths, later)
    files.classed("u", {each: f"etag-{each}" for each in cold}, "DEEP_ARCHIVE", later)
    found = files.among("u", ["file:/t/7"])["file:/t/7"]
    assert (found.storage_class, found.class_since, found.etag, found.proven_at) == (
        "DEEP_ARCHIVE", later, "etag-s3://b/7", later,
    )  # fmt: skip

    files.let_go("u", cold[1:], later)
    assert set(files.among("u", paths)) == {"/t/0"} and set(files.copies("u", cold)) == {"s3://b/0"}
    assert len(files.let_go_among("u", paths)) == MANY - 1
    files.take_back("u", cold[:2])
    assert set(files.among("u", paths)) == {"/t/0", "/t/1"}
    files.add("u", copies[2:3], "r2", later)
    again = files.among("u", paths)["/t/2"]
    assert (again.etag, again.proven_at) == (None, None), "a new copy is another object"


def test_when_a_snapshot_came_and_left(state: State) -> None:
    known, later = ColdSnapshots(state), NOW + timedelta(days=9)
    ids = [2**62 + each for each in range(MANY)]
    known.add("u", ids, "r1", NOW)
    known.add("other", ids[:1], "r1", later)
    assert known.handed("u") == dict.fromkeys(ids, NOW) and known.left("u") == frozenset()
    known.leave("u", ids[1:], later)
    assert known.handed("u") == {ids[0]: NOW} and known.left("u") == frozenset(ids[1:])
    known.add("u", ids[1:2], "r2", later)
    assert known.handed("u") == {ids[0]: NOW, ids[1]: later} and len(known.left("u")) == MANY - 2
    assert known.handed("other") == {ids[0]: later}


def test_of_a_delete_and_a_taking_back_one_gets_the_file(state: State) -> None:
    files = TrashedFiles(state)
    paths = [f"s3://b/{number}" for number in range(MANY)]
    size = len(paths)
    marked = pa.table(
        {"path": paths, "kind": ["data"] * size, "size": [1] * size, "stamp": pa.nulls(size, pa.string())}
    )
    files.trash("v1", "cold.db.t", "cu", "cold-retention", "why", marked, {}, NOW)
    files.enforce("v1", NOW)
    run = start(state, "purge-1", table="cold.db.t")
    (page,) = files.due("cu", {"cold-retention": timedelta(0)}, NOW)
    first = page["id"].to_pylist()[:2]
    assert files.begin_erasing(first, run, ME, NOW) == first
    assert take_back(state, "other", paths, "needed", NOW) == []
    assert sorted(take_back(state, "cu", paths, "needed", NOW)) == sorted(page["path"].to_pylist()[:2])
    assert files.begin_erasing(page["id"].to_pylist()[2:], run, ME, NOW) == []
    kept = files.list("cold.db.t", (FileState.KEPT,), 5_000)
    assert len(kept) == MANY - 2 and {each.note for each in kept} == {"needed"}


def test_hand_offs_from_before_are_remembered(url: str) -> None:
    """Their journal tells which snapshots and when, their copies of which table."""
    to_revision(url, "0010")
    old = State(database._engine(url))
    at = "2026-02-01 10:00:00"
    with old.write() as connection:
        connection.execute(
            text(
                "INSERT INTO runs (id, table_name, job, state, reason, started_at, beat_at, owner_host, owner_pid, "
                "owner_started, owner_token, trigger_type, plan, policy, counters, snapshot_ids, last_step, slot) "
                f"VALUES ('r1', 'lake.db.t', 'handoff', 'done', '', '{at}', '{at}', 'h', 1, 1.0, 't', 'manual', "
                "'{}', '{}', '{}', '[]', 2, 'handoff')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO run_steps (run_id, seq, name, at, detail) VALUES "
                f"""('r1', 1, 'handing', '{at}', '{{"snapshot_ids": [1, 2]}}'), """
                f"""('r1', 2, 'handed', '{at}', '{{"snapshot_ids": [1, 2]}}')"""
            )
        )
        connection.execute(
            text(
                "INSERT INTO cold_files (table_uuid, path, cold_path, size, checksum, run_id, copied_at) VALUES "
                f"('u', '/a', '/c/a', 1, 'x', 'r1', '{at}'), ('u', '/b', '/c/b', 1, 'x', 'r1', '{at}')"
            )
        )
    old.close()
    migrate(url)
    opened = State.open(url)
    handed = ColdSnapshots(opened).handed("u")
    assert set(handed) == {1, 2}
    assert handed[1].replace(tzinfo=None).isoformat(sep=" ") == at
    assert ColdFiles(opened).among("u", ["/a"])["/a"].storage_class is None
    opened.close()
