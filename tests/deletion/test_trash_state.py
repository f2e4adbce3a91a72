"""Files in the trash in the state database: the same promises on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import select, update

from lakewarden import clock
from lakewarden.errors import Refused, RunTaken
from lakewarden.model.run import Owner, RunState, Trigger
from lakewarden.state.database import State
from lakewarden.state.runs import Journal
from lakewarden.state.schema import trash_batches, trashed
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import FAILED_LOAD, BatchState, FileState

pytestmark = [pytest.mark.services, pytest.mark.main]

NOW = datetime(2026, 11, 16, 0, 30, 12, 345678, tzinfo=UTC)
DAY = timedelta(hours=24)
GRACES = {"expire": DAY}
TABLE, UUID = "lake.db.events", "11111111-aaaa"
ME, OTHER = Owner("here", 1, 1.25, "me"), Owner("there", 2, 2.5, "other")


@pytest.fixture
def files(state: State) -> TrashedFiles:
    return TrashedFiles(state)


@pytest.fixture
def run(state: State) -> str:
    return start(state, "purge-1")


def start(state: State, run_id: str, owner: Owner = ME, table: str = TABLE) -> str:
    Journal(state).start(
        run_id=run_id, table=table, job="purge", owner=owner, trigger=Trigger(), plan={}, policy={}, now=NOW
    )
    return run_id


def finish(state: State, run_id: str, owner: Owner = ME) -> None:
    Journal(state).finish(run_id, RunState.DONE, "", {}, [], NOW, owner)


def rows(*paths: str, size: int | None = 10, stamp: str | None = None) -> pa.Table:
    count = len(paths)
    return pa.table(
        {
            "path": pa.array(paths, pa.string()),
            "kind": pa.array(["data"] * count, pa.string()),
            "size": pa.array([size] * count, pa.int64()),
            "stamp": pa.array([stamp] * count, pa.string()),
        }
    )


def trash(
    files: TrashedFiles, *paths: str, batch: str = "v1", cause: str = "expire", uuid: str = UUID
) -> None:
    files.trash(batch, TABLE, uuid, cause, "because", rows(*paths), {"snapshots": [7]}, NOW)


def trashed_now(files: TrashedFiles, *paths: str, batch: str = "v1", **more: str) -> None:
    trash(files, *paths, batch=batch, **more)
    files.enforce(batch, NOW)


def due(files: TrashedFiles, now: datetime = NOW + DAY, page: int = 50_000) -> list[dict[str, Any]]:
    return [row for table in files.due(UUID, GRACES, now, page) for row in table.to_pylist()]


def ids(files: TrashedFiles) -> list[int]:
    return [row["id"] for row in due(files)]


def states(state: State) -> dict[str, str]:
    with state.read() as connection:
        return {row.path: row.state for row in connection.execute(select(trashed))}


# ------------------------------------------------------------ deletion batches


def test_a_pending_batch_counts_for_nothing(files: TrashedFiles, state: State, run: str) -> None:
    trash(files, "/t/a", "/t/b")
    assert due(files, NOW + 100 * DAY) == []
    assert [batch.id for batch in files.pending(TABLE)] == ["v1"]
    with state.read() as connection:
        every = [row.id for row in connection.execute(select(trashed))]
    assert files.begin_erasing(every, run, ME, NOW) == []


def test_the_grace_runs_from_the_moment_the_batch_is_in_force(files: TrashedFiles) -> None:
    trash(files, "/t/a", "/t/b")
    later = NOW + timedelta(hours=5)
    assert files.enforce("v1", later).trashed_at == later
    assert files.enforce("v1", later + DAY).trashed_at == later, "enforcing again moves nothing"
    assert files.pending(TABLE) == ()
    assert due(files, later + DAY - timedelta(microseconds=1)) == []
    (a, b) = due(files, later + DAY)
    assert (a["path"], a["size"], a["stamp"], a["batch_id"], a["trashed_at"]) == (
        "/t/a",
        10,
        None,
        "v1",
        later,
    )
    assert b["path"] == "/t/b"


def test_many_files_are_written_in_parts(
    files: TrashedFiles, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakewarden.state.trash.PAGE", 2)
    five = rows(*(f"/t/{each}" for each in "abcda"))
    tally = files.trash("v1", TABLE, UUID, "expire", "because", five, {}, NOW)
    assert (tally.files, tally.bytes) == (4, 40), "one of them was told twice"
    # Who took the run over has settled its deletion batch while the first process was still at it.
    real, left = State.write, iter([True, True, False])

    @contextmanager
    def settled(self: State) -> Iterator[Any]:
        if not next(left):
            with real(self) as other:
                other.execute(update(trash_batches).where(trash_batches.c.id == "v2").values(state="void"))
        with real(self) as connection:
            yield connection

    monkeypatch.setattr(State, "write", settled)
    with pytest.raises(Refused, match="v2: it is void"):
        files.trash("v2", TABLE, UUID, "expire", "because", five, {}, NOW)
    monkeypatch.undo()
    assert len(states(state)) == 4
    with state.read() as connection:
        of_second = select(trashed.c.path).where(trashed.c.batch_id == "v2")
        assert len(connection.execute(of_second).all()) == 2, "nothing was added to it after that"


def test_causes_have_graces_of_their_own(files: TrashedFiles) -> None:
    trashed_now(files, "/t/a")
    trashed_now(files, "/t/load", batch="load-1", cause=FAILED_LOAD)
    graces = {"expire": DAY, FAILED_LOAD: 7 * DAY}
    found = [table.column("path").to_pylist() for table in files.due(UUID, graces, NOW + DAY)]
    assert found == [["/t/a"]]
    assert len(list(files.due(UUID, graces, NOW + 7 * DAY))) == 2
    assert list(files.due(UUID, {}, NOW + 100 * DAY)) == [], "a cause nobody gave a grace is never due"


def test_trashing_again_after_a_crash_replaces_what_was_pending(files: TrashedFiles, state: State) -> None:
    trash(files, "/t/a", "/t/b")
    trash(files, "/t/b", "/t/c")
    assert sorted(states(state)) == ["/t/b", "/t/c"]
    files.enforce("v1", NOW)
    with pytest.raises(Refused, match="is active"):
        trash(files, "/t/d")
    assert sorted(states(state)) == ["/t/b", "/t/c"]


def test_a_file_restored_while_pending_stays_restored(files: TrashedFiles, state: State) -> None:
    trash(files, "/t/a", "/t/b")
    assert files.restore(TABLE, path="/t/a", now=NOW).files == 1
    trashed_now(files, "/t/a", "/t/b")
    assert states(state) == {"/t/a": "restored", "/t/b": "trashed"}
    assert [row["path"] for row in due(files)] == ["/t/b"]


def test_a_void_batch_trashed_nothing(files: TrashedFiles, state: State) -> None:
    trash(files, "/t/a")
    files.void("v1")
    files.void("v1")
    assert states(state) == {}
    assert list(files.trashed_paths(UUID)) == []
    with pytest.raises(Refused, match="void"):
        files.enforce("v1", NOW)
    with pytest.raises(Refused, match="no such deletion batch"):
        files.enforce("v2", NOW)
    trashed_now(files, "/t/b")
    assert [row["path"] for row in due(files)] == ["/t/b"], "a run may judge anew"


def test_a_batch_in_force_cannot_be_voided(files: TrashedFiles) -> None:
    trashed_now(files, "/t/a")
    with pytest.raises(Refused, match="is active") as refused:
        files.void("v1")
    assert "lakewarden restore" in refused.value.hint
    assert len(due(files)) == 1


def test_an_object_is_under_one_batch_however_it_is_spelled(files: TrashedFiles) -> None:
    trashed_now(files, "s3://b/t/a", "s3a://b/t/a", "/t/x", "file:/t/x", "file:///t/x")
    trashed_now(files, "s3n://b/t/a", "/t//x", "/t/new", batch="v2")
    assert sorted(row["path"] for row in due(files)) == ["/t//x", "/t/new", "s3n://b/t/a"]
    kept = files.list(TABLE, (FileState.KEPT,))
    assert {each.path for each in kept} == {"s3://b/t/a", "/t/x"}
    assert {each.note for each in kept} == {"deletion batch v2 has it now: it was needed until then"}


def test_the_grace_of_a_file_that_was_needed_again_begins_anew(files: TrashedFiles) -> None:
    """It was trashed, came back into the table, and left it again: who read it then has a whole grace too."""
    trashed_now(files, "/t/a", "/t/b")
    trash(files, "/t/a", batch="v2")
    assert [row["path"] for row in due(files)] == ["/t/a", "/t/b"], "a pending deletion batch takes nothing"
    files.enforce("v2", NOW + DAY / 2)
    assert [row["path"] for row in due(files)] == ["/t/b"]
    assert [(row["path"], row["batch_id"]) for row in due(files, NOW + DAY * 1.5)] == [
        ("/t/b", "v1"),
        ("/t/a", "v2"),
    ]


def test_what_a_run_is_deleting_stays_under_its_batch(files: TrashedFiles, run: str) -> None:
    trashed_now(files, "/t/a")
    moved = files.begin_erasing(ids(files), run, ME, NOW)
    trashed_now(files, "/t/a", batch="v2")
    assert due(files) == []
    files.finish_erasing(run, NOW, erased=moved)
    (receipt,) = files.receipts(TABLE)
    assert receipt.batch.id == "v1"


def test_a_path_that_was_erased_can_be_trashed_again(files: TrashedFiles, run: str) -> None:
    trashed_now(files, "/t/a")
    moved = files.begin_erasing(ids(files), run, ME, NOW)
    files.finish_erasing(run, NOW, erased=moved)
    trashed_now(files, "/t/a", batch="v2")
    assert [row["batch_id"] for row in due(files)] == ["v2"]


# ------------------------------------------------------------ erasing


def test_each_erased_file_has_one_receipt(files: TrashedFiles, state: State, run: str) -> None:
    trashed_now(files, "/t/a", "/t/b", "/t/c", "/t/d")
    a, b, c, d = files.begin_erasing(ids(files), run, ME, NOW)
    files.finish_erasing(run, NOW, erased=[a], missing=[b], failed={c: "403 denied", d: "503 slow"})
    assert states(state) == {"/t/a": "erased", "/t/b": "missing", "/t/c": "trashed", "/t/d": "trashed"}
    receipts = {each.path: each for each in files.receipts(TABLE)}
    assert set(receipts) == {"/t/a", "/t/b"}
    assert receipts["/t/a"].run_id == run
    assert receipts["/t/a"].ended_at == NOW
    assert receipts["/t/a"].batch.reason == "because"
    notes = {each.path: each.note for each in files.list(TABLE)}
    assert notes == {"/t/c": "not deleted: 403 denied", "/t/d": "not deleted: 503 slow"}

    files.finish_erasing(run, NOW + DAY, erased=[a, b], failed={a: "no"})
    assert {each.ended_at for each in files.receipts(TABLE)} == {NOW}, "a receipt never changes"
    assert files.begin_erasing([a, b], run, ME, NOW) == []
    assert files.restore(TABLE, path="/t/a", now=NOW).gone == 1
    assert states(state)["/t/a"] == "erased"


def test_only_the_run_that_is_open_and_ours_may_begin(files: TrashedFiles, state: State, run: str) -> None:
    trashed_now(files, "/t/a")
    with pytest.raises(RunTaken):
        files.begin_erasing(ids(files), run, OTHER, NOW)
    with pytest.raises(RunTaken):
        files.begin_erasing(ids(files), "no-run", ME, NOW)
    finish(state, run)
    with pytest.raises(RunTaken, match="ended"):
        files.begin_erasing(ids(files), run, ME, NOW)
    with pytest.raises(RunTaken):
        files.keep(ids(files), "named again", run, ME, NOW)
    assert states(state) == {"/t/a": "trashed"}


def test_what_a_dead_run_was_deleting_is_settled_once(files: TrashedFiles, state: State, run: str) -> None:
    trashed_now(files, "/t/a", "/t/b")
    first, second = ids(files)
    files.begin_erasing([first], run, ME, NOW)
    assert files.erasing("another-uuid") == {}
    assert files.erasing(UUID) == {run: {first: "/t/a"}}
    finish(state, run)
    files.finish_erasing(run, NOW, failed={first: "it stopped"})
    assert files.erasing(UUID) == {} and files.receipts_of(run) == 0
    assert files.list(TABLE)[0].note == "not deleted: it stopped"

    # The dead run was only slow: what it still says about the row is not heard.
    again = start(state, "purge-2")
    assert files.begin_erasing([first, second], again, ME, NOW) == [first, second]
    files.finish_erasing(run, NOW, erased=[first])
    assert states(state)["/t/a"] == "erasing"
    files.finish_erasing(again, NOW, missing=[first], erased=[second])
    assert [each.run_id for each in files.receipts(TABLE)] == [again, again]


def test_a_batch_settled_late_leaves_what_another_had_deleted_meanwhile(
    files: TrashedFiles, state: State, run: str
) -> None:
    trash(files, "/t/a", "/t/b", batch="late")
    trashed_now(files, "file:/t/a")
    (gone,) = files.begin_erasing(ids(files), run, ME, NOW)
    files.finish_erasing(run, NOW + DAY, erased=[gone])
    files.enforce("late", NOW + 2 * DAY)
    assert [each.path for each in files.list(TABLE)] == ["/t/b"]
    assert [each.path for each in files.receipts(TABLE)] == ["file:/t/a"]


def test_what_is_kept_is_never_due_again(files: TrashedFiles, run: str) -> None:
    trashed_now(files, "/t/a", "/t/b")
    a, b = ids(files)
    assert files.keep([a], "named again by lake.db.other", run, ME, NOW) == 1
    assert files.note_missing([b], run, ME, NOW) == 1
    assert due(files) == []
    (kept,) = files.list(TABLE, (FileState.KEPT,))
    assert (kept.path, kept.note) == ("/t/a", "named again by lake.db.other")
    assert [(each.path, each.state) for each in files.receipts(TABLE)] == [("/t/b", FileState.MISSING)]


# ------------------------------------------------------------ restoring


def test_restore_is_for_good(files: TrashedFiles, state: State, run: str) -> None:
    trashed_now(files, "/t/a", "/t/b", "/t/dir/a")
    every = ids(files)
    done = files.restore(TABLE, path="file:/t/a", now=NOW)
    assert (done.files, done.bytes, done.erasing, done.gone) == (1, 10, 0, 0)
    assert files.begin_erasing(every, run, ME, NOW) == every[1:]
    assert [each.to_pylist() for each in files.restored_paths(UUID)] == [["/t/a"]]
    assert files.restore(TABLE, path="/t/nothing", now=NOW).files == 0
    assert files.restore(TABLE, path="/t/b", now=NOW).erasing == 1, "it is being deleted: too late"
    assert states(state)["/t/b"] == "erasing"


def test_restore_of_a_run_and_of_everything(files: TrashedFiles) -> None:
    trashed_now(files, "/t/a")
    trashed_now(files, "/t/b", "/t/c", batch="v2")
    trash(files, "/t/d", batch="v3")
    assert files.restore(TABLE, batch_id="v2", now=NOW).files == 2
    assert [row["path"] for row in due(files)] == ["/t/a"]
    assert files.restore("lake.db.other", now=NOW).files == 0
    assert files.restore(TABLE, now=NOW).files == 2
    files.enforce("v3", NOW)
    assert due(files) == []


def test_a_name_with_wildcards_restores_only_itself(files: TrashedFiles) -> None:
    trashed_now(files, "/t/a_b%", "/t/axbc", "/t/a_bx%")
    assert files.restore(TABLE, path="/t/a_b%", now=NOW).files == 1
    assert sorted(row["path"] for row in due(files)) == ["/t/a_bx%", "/t/axbc"]


def test_a_restore_and_a_delete_that_meet_share_no_file(files: TrashedFiles, state: State, run: str) -> None:
    trashed_now(files, *(f"/t/{number:04d}" for number in range(400)))
    every = ids(files)
    taken: list[int] = []
    restored: list[str] = []

    def erase() -> None:
        for at in range(0, 400, 20):
            taken.extend(files.begin_erasing(every[at : at + 20], run, ME, NOW))

    def restore() -> None:
        for number in range(399, -1, -20):
            path = f"/t/{number:04d}"
            if files.restore(TABLE, path=path, now=NOW).files:
                restored.append(path)

    in_parallel(erase, restore)
    assert len(taken) + len(restored) == 400
    assert sorted(states(state).values()) == ["erasing"] * len(taken) + ["restored"] * len(restored)


def test_two_batches_that_come_into_force_together_share_no_file(files: TrashedFiles) -> None:
    names = [f"/t/{number}" for number in range(200)]
    for batch in ("v1", "v2"):
        trash(files, *names, batch=batch)
    in_parallel(lambda: files.enforce("v1", NOW), lambda: files.enforce("v2", NOW))
    assert sorted(row["path"] for row in due(files)) == sorted(names)


def in_parallel(*acts: Callable[[], object]) -> None:
    problems: list[BaseException] = []
    barrier = threading.Barrier(len(acts))

    def one(act: Callable[[], object]) -> None:
        barrier.wait(30)
        try:
            act()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=one, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems


# ------------------------------------------------------------ looking


def test_totals_by_batch(files: TrashedFiles, run: str) -> None:
    trashed_now(files, "/t/a", "/t/b", "/t/c")
    files.finish_erasing(run, NOW, erased=files.begin_erasing(ids(files)[:1], run, ME, NOW))
    trash(files, "/t/z", batch="v2", uuid="22222222-bbbb")
    first, second = files.batches(TABLE)
    assert (first.live.files, first.live.bytes) == (2, 20)
    assert first.tally(FileState.ERASED).files == 1
    assert first.batch.detail == {"snapshots": [7]}
    assert second.batch.state is BatchState.PENDING
    # A table that was renamed keeps its uuid; its deletion batches are found under the new name.
    assert files.batches("lake.db.renamed") == ()
    assert [each.batch.id for each in files.batches("lake.db.renamed", UUID)] == ["v1"]


def test_receipts_newest_first_and_since(files: TrashedFiles, run: str) -> None:
    trashed_now(files, "/t/a", "/t/b")
    a, b = files.begin_erasing(ids(files), run, ME, NOW)
    files.finish_erasing(run, NOW, erased=[a])
    files.finish_erasing(run, NOW + DAY, erased=[b])
    assert [each.path for each in files.receipts(TABLE)] == ["/t/b", "/t/a"]
    assert [each.path for each in files.receipts(TABLE, since=NOW + DAY)] == ["/t/b"]
    assert [each.path for each in files.receipts(TABLE, limit=1)] == ["/t/b"]


def test_sizes_that_are_not_known(files: TrashedFiles) -> None:
    files.trash("v1", TABLE, UUID, "expire", "", rows("/t/a", size=None, stamp="etag"), {}, NOW)
    files.enforce("v1", NOW)
    ((row),) = due(files)
    assert (row["size"], row["stamp"]) == (None, "etag")
    assert files.batches(TABLE)[0].live.bytes == 0


def test_fifty_thousand_files_in_well_under_a_second_each_way(files: TrashedFiles, run: str) -> None:
    names = [f"s3://bucket/lake/db/events/data/day={n % 30}/part-{n:08d}.parquet" for n in range(50_000)]
    table = rows(*names)
    started = clock.monotonic()
    files.trash("v1", TABLE, UUID, "expire", "", table, {}, NOW)
    trashing = clock.monotonic() - started
    files.enforce("v1", NOW)
    pages = [page.num_rows for page in files.due(UUID, GRACES, NOW + DAY, page=20_000)]
    assert pages == [20_000, 20_000, 10_000]
    every = ids(files)
    started = clock.monotonic()
    moved = files.begin_erasing(every[:10_000], run, ME, NOW)
    files.finish_erasing(run, NOW, erased=moved)
    erasing = clock.monotonic() - started
    assert len(moved) == 10_000
    assert len(every) - 10_000 == len(ids(files))
    # Generous, because tests share their machine: a statement per row would take minutes.
    assert trashing < 10 and erasing < 10
