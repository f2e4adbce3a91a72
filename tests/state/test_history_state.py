"""Folded history in the state database: nothing lost, nothing doubled, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from lakewarden.errors import LakewardenError
from lakewarden.lineage.history import EntrySource, HistoryQuery, TableHistory, month_of
from lakewarden.model.table import Snapshot, TableRef
from lakewarden.state.database import State, _engine, migrate
from lakewarden.state.history import Detail, FoldLost, HistoryIndex, SnapshotArchive
from lakewarden.state.schema import archived_snapshots, history_details
from tests.state.test_state import to_revision
from tests.support.lineage import START, snapshots, view_of

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[2]
NOW = START + timedelta(days=800)
UUID, TABLE = "u", "lake.db.events"


@pytest.fixture
def made(state: State) -> list[Snapshot]:
    found = snapshots(120, days=90)
    SnapshotArchive(state).add(view_of([]), found, "expire-1", NOW)
    return found


def fold(state: State, made: list[Snapshot], month: str, run: str = "fold-1") -> int:
    ids = [each.id for each in made if month_of(each.committed_at) == month]
    done = TableHistory(state).fold(month, ids, table=TABLE, table_uuid=UUID, run_id=run, now=NOW)
    return done.entries


def told(state: State, wanted: HistoryQuery | None = None) -> list[Snapshot]:
    return [
        each.snapshot for each in TableHistory(state).entries(TABLE, UUID, None, wanted or HistoryQuery())
    ]


def archived(state: State) -> int:
    with state.read() as connection:
        return connection.execute(select(func.count()).select_from(archived_snapshots)).scalar_one()


@pytest.mark.main
def test_a_folded_month_says_exactly_what_the_archive_said(state: State, made: list[Snapshot]) -> None:
    before = told(state)
    assert before == made[::-1]
    assert fold(state, made, "2024-01") == sum(month_of(each.committed_at) == "2024-01" for each in made)
    assert told(state) == before
    fold(state, made, "2024-02")
    fold(state, made, "2024-03")
    assert told(state) == before
    assert archived(state) == 0
    assert {each.source for each in TableHistory(state).entries(TABLE, UUID, None)} == {EntrySource.DETAIL}


@pytest.mark.main
def test_ranges_add_up_to_what_they_stand_for(state: State, made: list[Snapshot]) -> None:
    fold(state, made, "2024-02")
    (detail,) = HistoryIndex(state).details(UUID)
    members = [each for each in made if month_of(each.committed_at) == "2024-02"]
    assert detail.entries == sum(each.entries for each in detail.ranges) == len(members)
    assert sum(each.rows for each in detail.ranges) == sum(int(s.summary["added-records"]) for s in members)
    assert sum(each.bytes for each in detail.ranges) == sum(
        int(s.summary["added-files-size"]) for s in members
    )
    by_key = {(each.operation, each.writer): each for each in detail.ranges}
    ours = [each for each in members if each.summary.get("writer.id") == "lakewarden"]
    compactions = by_key["compaction", "lakewarden"]
    assert (compactions.entries, compactions.with_inputs) == (len(ours), len(ours))
    assert (compactions.first_id, compactions.last_id) == (ours[0].id, ours[-1].id)
    assert (compactions.min_id, compactions.max_id) == (min(s.id for s in ours), max(s.id for s in ours))
    assert (compactions.first_at, compactions.last_at) == (ours[0].committed_at, ours[-1].committed_at)
    overwrites = [each for key, each in by_key.items() if key[0] == "overwrite"]
    assert sum(each.with_operator for each in overwrites) == sum(each.entries for each in overwrites) > 0


def test_a_month_is_folded_anew_with_what_came_since(state: State, made: list[Snapshot]) -> None:
    first = [each for each in made if month_of(each.committed_at) == "2024-01"]
    fold(state, first[:10], "2024-01", "fold-1")
    fold(state, first[10:], "2024-01", "fold-2")
    (detail,) = HistoryIndex(state).details(UUID)
    assert (detail.id, detail.entries) == ("fold-2-2024-01", len(first))
    assert told(state) == made[::-1]


def test_an_entry_that_is_archived_again_is_told_once_and_folded_once(
    state: State, made: list[Snapshot]
) -> None:
    fold(state, made, "2024-01")
    SnapshotArchive(state).add(view_of([]), made[:5], "expire-2", NOW)
    assert told(state) == made[::-1]
    assert fold(state, made[:5], "2024-01", "fold-2") == 5
    assert told(state) == made[::-1]
    (detail,) = HistoryIndex(state).details(UUID)
    assert detail.entries == sum(month_of(each.committed_at) == "2024-01" for each in made)


def test_live_snapshots_win_and_other_tables_are_not_mixed_in(state: State, made: list[Snapshot]) -> None:
    SnapshotArchive(state).add(view_of([], uuid="another"), snapshots(7, 3, seed=5), "expire-9", NOW)
    found = TableHistory(state).entries(TABLE, UUID, view_of(made[-4:]))
    assert [each.snapshot for each in found] == made[::-1]
    assert [each.source for each in found[:5]] == [EntrySource.LIVE] * 4 + [EntrySource.ARCHIVE]
    assert len(TableHistory(state).entries(TABLE, "another", None)) == 7


def test_questions_open_only_details_that_can_answer(state: State, made: list[Snapshot]) -> None:
    for month in ("2024-01", "2024-02", "2024-03"):
        fold(state, made, month)
    history = TableHistory(state)
    history.ranges(UUID)
    assert history.opened == 0
    since = START + timedelta(days=60)
    found = history.entries(TABLE, UUID, None, HistoryQuery(operation="overwrite", since=since))
    assert [each.snapshot for each in found] == [
        each for each in made[::-1] if each.operation == "overwrite" and each.committed_at >= since
    ]
    assert history.opened == 1
    history.entries(TABLE, UUID, None, HistoryQuery(operation="nobody-did-this"))
    assert history.opened == 1
    for each in made[::17]:
        (one,) = history.entries(TABLE, UUID, None, HistoryQuery(ids=frozenset({each.id})))
        assert one.snapshot == each


def test_a_month_that_is_folded_anew_while_it_is_read_is_read_again(
    state: State, made: list[Snapshot]
) -> None:
    first = [each for each in made if month_of(each.committed_at) == "2024-01"]
    fold(state, first[:10], "2024-01", "fold-1")
    history, times = TableHistory(state), list[int]()

    class Late(HistoryIndex):
        def details(self, table_uuid: str) -> tuple[Detail, ...]:
            found = super().details(table_uuid)
            times.append(1)
            if len(times) == 1:
                fold(state, first[10:], "2024-01", "fold-2")
            return found

    history._index = Late(state)
    assert [each.snapshot for each in history.entries(TABLE, UUID, None)] == made[::-1]
    assert len(times) == 2


@pytest.mark.main
def test_two_who_fold_at_once_lose_and_double_nothing(state: State, made: list[Snapshot]) -> None:
    """Both read the same entries before either writes: one wins, the other is told so."""
    both, real, outcomes = threading.Barrier(2, timeout=30), HistoryIndex.fold, []

    class Waiting(HistoryIndex):
        def fold(self, *arguments: object) -> None:
            both.wait()
            real(self, *arguments)  # type: ignore[arg-type]

    def compete(run: str) -> None:
        history = TableHistory(state)
        history._index = Waiting(state)
        ids = [each.id for each in made if month_of(each.committed_at) == "2024-01"]
        try:
            history.fold("2024-01", ids, table=TABLE, table_uuid=UUID, run_id=run, now=NOW)
            outcomes.append("folded")
        except FoldLost:
            outcomes.append("lost")

    threads = [threading.Thread(target=compete, args=(f"fold-{number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["folded", "lost"]
    assert told(state) == made[::-1]
    assert len(HistoryIndex(state).details(UUID)) == 1


def test_a_fold_that_takes_what_is_not_there_changes_nothing(state: State, made: list[Snapshot]) -> None:
    fold(state, made, "2024-01")
    with pytest.raises(FoldLost):
        fold(state, made, "2024-01", "fold-2")
    assert told(state) == made[::-1]


def test_an_id_that_was_given_again_is_told_as_the_newer_commit(state: State, made: list[Snapshot]) -> None:
    """Paimon counts on from where a table was rolled back to."""
    other = replace(
        made[-1], committed_at=made[-1].committed_at + timedelta(hours=1), summary={"writer.id": "x"}
    )
    SnapshotArchive(state).add(view_of([]), [other], "expire-2", NOW)
    assert told(state) == [other, *made[-2::-1]]


def test_a_copy_of_a_table_takes_nothing_from_it(state: State) -> None:
    """Copies of a Paimon table have its uuid and count on from where they were made: each commit stays, folded or not."""
    copy = TableRef.parse("lake.db.copy")
    shared, own = snapshots(2, days=2)
    other = replace(own, committed_at=own.committed_at + timedelta(hours=1), summary={"writer.id": "x"})
    SnapshotArchive(state).add(view_of([]), [shared, own], "expire-1", NOW)
    SnapshotArchive(state).add(view_of([], ref=copy), [shared, other], "expire-2", NOW)
    history = TableHistory(state)
    for _ in range(2):
        of_copy = history.entries(str(copy), UUID, None)
        assert told(state) == [own, shared]
        assert [each.snapshot for each in of_copy] == [other, shared]
        assert [each.to_dict()["written_as"] for each in of_copy] == [str(copy), TABLE]
        if archived(state):
            assert fold(state, [shared, own], "2024-01") == 3
    assert [each.entries for each in HistoryIndex(state).details(UUID)] == [3]


def test_what_an_earlier_version_wrote_down_is_there(url: str) -> None:
    to_revision(url, "0009")
    older = State(_engine(url))
    with older.write() as connection:
        connection.exec_driver_sql(
            f"insert into archived_snapshots values ('{UUID}', 7, '{TABLE}', 6, 7, '2024-01-02 00:00:00.000000', "
            "'append', '{\"writer.id\": \"etl\"}', 'expire-1', '2024-02-02 00:00:00.000000')"
        )
    older.close()
    migrate(url)
    state = State.open(url)
    (found,) = told(state)
    state.close()
    assert (found.id, found.parent_id, found.sequence_number, found.operation) == (7, 6, 7, "append")
    assert found.summary == {"writer.id": "etl"}
    assert month_of(found.committed_at) == "2024-01"


def test_the_odd_entry_holds_no_month_up(state: State) -> None:
    """Half a surrogate pair and a zero character, which any writer can put into a summary; and moments at the calendar's end."""
    plain, odd = snapshots(2, days=2)
    odd = replace(odd, summary={"writer.id": "a\ud800b\0", "note\udfff": "x"})
    last = replace(plain, id=9, committed_at=datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC))
    first = replace(plain, id=8, committed_at=datetime(999, 5, 1, tzinfo=UTC))
    SnapshotArchive(state).add(view_of([]), [plain, odd, last, first], "expire-1", NOW)
    for month in ("2024-01", "9999-12", "0999-05"):
        fold(state, [plain, odd, last, first], month)
    kept = replace(odd, summary={"writer.id": "a\\ud800b\\x00", "note\\udfff": "x"})
    assert told(state) == [last, kept, plain, first]


def test_an_id_that_no_snapshot_can_have_is_not_found(state: State, made: list[Snapshot]) -> None:
    fold(state, made, "2024-01")
    assert told(state, HistoryQuery(ids=frozenset({10**30, made[0].id}))) == [made[0]]


def test_a_damaged_detail_is_an_error_and_never_an_answer(state: State, made: list[Snapshot]) -> None:
    fold(state, made, "2024-01")
    with state.write() as connection:
        content = connection.execute(select(history_details.c.content)).scalar_one()
        broken = bytes(content[:-1]) + b"!"
        connection.execute(history_details.update().values(content=broken))
    with pytest.raises(LakewardenError, match="sha256"):
        told(state)
    with state.read() as connection:
        assert connection.execute(text("select count(*) from history_ranges")).scalar_one() > 0


# Folds a month in a process of its own, which dies before the transaction, when all of it is written, or after it.
CHILD = """
import os, signal, sys
from sqlalchemy import Engine, event
from lakewarden.lineage.history import TableHistory
from lakewarden.state.database import State, _engine, migrate
from lakewarden.state.history import HistoryIndex
from tests.state.test_history_state import NOW, TABLE, UUID
url, when, ids = sys.argv[1], sys.argv[2], [int(each) for each in sys.argv[3].split(",")]
state, real = State.open(url), HistoryIndex.fold
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def fold(self, *arguments):
    if when == "before":
        die()
    if when == "inside":
        event.listen(Engine, "commit", die)
    real(self, *arguments)
    die()
HistoryIndex.fold = fold
TableHistory(state).fold("2024-01", ids, table=TABLE, table_uuid=UUID, run_id="fold-1", now=NOW)
"""


@pytest.mark.parametrize("when", ["before", "inside", "after"])
def test_a_process_that_dies_leaves_the_archive_or_the_detail(
    state: State, made: list[Snapshot], when: str
) -> None:
    url = state.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    ids = ",".join(str(each.id) for each in made if month_of(each.committed_at) == "2024-01")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, url, when, ids],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert told(state) == made[::-1]
    assert len(HistoryIndex(state).details(UUID)) == (when == "after")
    if when != "after":
        fold(state, made, "2024-01", "fold-2")
    assert told(state) == made[::-1]
