"""Old rows go without keeping the leader from its lease, and only those that nobody asks for: the same on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import Table, event, func, select

from lakewarden import clock
from lakewarden.config.schema import HealthConfig, PolicyConfig
from lakewarden.health.collect import Collector
from lakewarden.jobs.loads.adopt import JOB, LoadAdoption
from lakewarden.jobs.run_context import DeletingStep
from lakewarden.model.run import Owner, RunState, Trigger
from lakewarden.model.table import TableRef
from lakewarden.state import database, retention
from lakewarden.state.database import State
from lakewarden.state.fleet import BY_WORKER
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.holds import MIRROR, Heartbeats, Load, Loads, LoadState, Pin, Pins
from lakewarden.state.requests import Requests, RequestState
from lakewarden.state.retention import tidy
from lakewarden.state.runs import Journal, ProgressPoint, RunProgress
from lakewarden.state.schedule import GONE, PASS, SEEN, Suspension, TableSchedule, TableSchedules
from lakewarden.state.schema import (
    archived_snapshots,
    health_history,
    heartbeats,
    loads,
    pins,
    requests,
    run_cancels,
    run_progress,
    seen_tables,
    standings,
    suspensions,
    trash_batches,
    trashed,
    warnings,
)
from lakewarden.state.trash import TrashedFiles

pytestmark = pytest.mark.services

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TABLE = "lake.db.events"


@contextmanager
def told(state: State) -> Iterator[list[str]]:
    """What the database is told meanwhile: each statement's first word, and where transactions end."""
    said: list[str] = []

    def statement(_connection: Any, _cursor: Any, words: str, *_rest: Any) -> None:
        said.append(words.split()[0])

    def commit(_connection: Any) -> None:
        said.append("COMMIT")

    event.listen(state.engine, "before_cursor_execute", statement)
    event.listen(state.engine, "commit", commit)
    try:
        yield said
    finally:
        event.remove(state.engine, "before_cursor_execute", statement)
        event.remove(state.engine, "commit", commit)


def transactions(said: list[str]) -> list[list[str]]:
    return [list(words) for end, words in groupby(said, key=lambda each: each == "COMMIT") if not end]


def point(state: State, table: str, *moments: datetime) -> None:
    numbers = Numbers(files=1).to_dict()
    rows = [{"table_name": table, "at": at, "score": 1, "numbers": numbers} for at in moments]
    with state.write() as connection:
        connection.execute(health_history.insert(), rows)


def moments(state: State, table: str) -> list[datetime]:
    wanted = select(health_history.c.at).where(health_history.c.table_name == table)
    with state.read() as connection:
        return list(connection.execute(wanted.order_by(health_history.c.at)).scalars())


# ------------------------------------------------------------ thinning


def test_history_that_is_thin_already_is_read_and_not_written(state: State) -> None:
    point(state, TABLE, *(NOW - number * HOUR for number in range(100)))
    with state.write(), told(state) as said:  # SQLite has one writer: another would wait for this one
        assert HealthRecords(state).thin([(NOW, HOUR)]) == 0
    assert "SELECT" in said and "DELETE" not in said


def test_history_is_thinned_in_slices_chosen_before_they_are_written(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "SLICE", 20)
    for name in ("a", "b", "c"):
        point(state, f"lake.db.{name}", *(NOW - number * timedelta(minutes=15) for number in range(1, 97)))
    with told(state) as said:
        gone = HealthRecords(state).thin([(NOW, HOUR), (NOW - 12 * HOUR, 6 * HOUR)])
    assert gone == 3 * (96 - 12 - 2)
    writes = [each for each in transactions(said) if "DELETE" in each]
    assert len(writes) == -(-gone // 20), "each slice is a transaction of its own"
    assert not any("SELECT" in each for each in writes), "nothing is chosen while others wait"
    left = moments(state, "lake.db.b")
    assert left == moments(state, "lake.db.a") == moments(state, "lake.db.c")
    assert left == [
        NOW - 18 * HOUR - timedelta(minutes=15), NOW - 12 * HOUR - timedelta(minutes=15),
        *(NOW - number * HOUR - timedelta(minutes=15) for number in range(11, -1, -1)),
    ]  # fmt: skip


def test_at_most_so_many_go_at_once_and_the_next_call_goes_on(state: State) -> None:
    point(state, TABLE, *(NOW - number * timedelta(minutes=1) for number in range(1, 121)))
    records = HealthRecords(state)
    assert [records.thin([(NOW, HOUR)], most=100) for _ in range(3)] == [100, 18, 0]
    with state.read() as connection:
        assert connection.execute(select(func.count()).select_from(health_history)).scalar_one() == 2


# ------------------------------------------------------------ what is over, and what is gone

BEFORE = NOW - 90 * DAY
LONG, LATELY = BEFORE - DAY, BEFORE + DAY


def rows(state: State, table: Table, column: str = "table_name") -> list[str]:
    with state.read() as connection:
        return sorted(connection.execute(select(table.c[column])).scalars())


def add(state: State, table: Table, *those: dict[str, Any]) -> None:
    with state.write() as connection:
        connection.execute(table.insert(), list(those))


def ended_request(state: State, table: str, at: datetime) -> None:
    asked = Requests(state)
    filed = asked.file(table, Trigger("manual", "ana"), at)
    assert asked.claim(filed.id, 1, at) and asked.end(filed.id, 1, RequestState.DONE, (), "", at)


def known(state: State, table: str, gone: datetime | None) -> None:
    """A table with all that is known of it, dropped at that moment or there still."""
    state_ = "" if gone is None else GONE
    seen = TableSchedule(table, SEEN, LONG - 10 * DAY, gone, state_)
    TableSchedules(state).put_all(
        [seen, TableSchedule(table, PASS, LONG), TableSchedule(table, "compact", LONG)]
    )
    TableSchedules(state).suspend(Suspension(table, LONG, "ten failures", "the worker"))
    add(state, seen_tables, {"table_name": table, "uuid": table, "properties": {}, "seen_at": LONG})
    point(state, table, LONG if gone is None else gone)


@pytest.mark.main
def test_what_was_over_long_ago_goes_and_what_is_open_stays(state: State) -> None:
    for table, at in (("lake.db.old", LONG), ("lake.db.new", LATELY)):
        ended_request(state, table, at)
        HealthRecords(state).warn([(table, "small-files", "many")], at)
        HealthRecords(state).clear([(table, "small-files")], at)
    Requests(state).file("lake.db.waiting", Trigger("manual", "ana"), LONG)
    HealthRecords(state).warn([("lake.db.waiting", "orphans", "some")], LONG)
    assert tidy(state, BEFORE) == 2
    assert rows(state, requests) == rows(state, warnings) == ["lake.db.new", "lake.db.waiting"]
    assert tidy(state, BEFORE) == 0


def test_of_a_table_that_is_long_gone_only_the_record_stays(state: State) -> None:
    known(state, "lake.db.gone", LONG)
    known(state, "lake.db.lately", LATELY)
    known(state, "lake.db.there", None)
    known(state, "lake.db.left-out", LONG)  # by the worker's patterns: it is looked at all the same
    HealthRecords(state).put([
        TableHealth(each, "u", NOW, "v", 90, 1.0, Numbers(files=1)) for each in ("lake.db.there", "lake.db.left-out")
    ])  # fmt: skip
    stay = ["lake.db.lately", "lake.db.left-out", "lake.db.there"]
    assert tidy(state, BEFORE) == 3 + 1 + 1 + 1
    assert rows(state, suspensions) == rows(state, seen_tables) == stay
    assert rows(state, standings) == sorted(3 * stay)
    assert sorted(set(rows(state, health_history))) == stay
    assert tidy(state, BEFORE) == 0


def test_a_dropped_table_whose_past_is_archived_can_still_be_asked_about(state: State) -> None:
    known(state, "lake.db.gone", LONG)
    add(state, archived_snapshots, {
        "table_uuid": "lake.db.gone", "snapshot_id": 1, "table_name": "lake.db.gone", "sequence_number": 1, "committed_at": LONG,
        "operation": "append", "summary": {}, "run_id": "r", "archived_at": LONG,
    })  # fmt: skip
    tidy(state, BEFORE)
    assert rows(state, seen_tables) == ["lake.db.gone"] and rows(state, standings) == []


def test_what_says_that_a_table_is_gone_goes_last(state: State) -> None:
    for number in range(3):
        known(state, f"lake.db.t{number}", LONG)
    while left := rows(state, standings, "slot"):
        assert SEEN in left and tidy(state, BEFORE, most=2) > 0
    assert rows(state, suspensions) == rows(state, seen_tables) == rows(state, health_history) == []


# ------------------------------------------------------------ holds


def writers(state: State) -> list[str]:
    return sorted(each.writer for each in Heartbeats(state).list())


def test_writers_that_fell_silent_long_ago_are_forgotten(state: State) -> None:
    beats, minutes = Heartbeats(state), timedelta(minutes=10)
    for number in range(30):
        beats.beat(TABLE, f"pod-{number}", "h", (), minutes, LONG)
    beats.beat(TABLE, "spoke lately", "h", (), minutes, LATELY)
    beats.beat(TABLE, "was over lately", "h", (), 2 * DAY, LONG)
    beats.beat(TABLE, "said that it takes long", "h", (), 400 * DAY, LONG)
    assert tidy(state, BEFORE, most=20) == 20 and tidy(state, BEFORE, most=20) == 10
    assert writers(state) == ["said that it takes long", "spoke lately", "was over lately"]
    assert tidy(state, BEFORE) == 0


def test_a_writer_that_speaks_again_while_it_is_forgotten_is_heard(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    Heartbeats(state).beat(TABLE, "etl", "h", (), HOUR, LONG)

    def late(state: State, table: Table, *chosen: Any, **named: Any) -> int:
        if table is heartbeats:  # they have been chosen, and are not deleted yet
            Heartbeats(state).beat(TABLE, "etl", "h", (), HOUR, NOW)
        return database.take_out(state, table, *chosen, **named)

    monkeypatch.setattr(retention, "take_out", late)
    tidy(state, BEFORE)
    assert writers(state) == ["etl"]


def pinned(
    state: State, id_: str, until: datetime | None, *, table: str = TABLE, mirror: bool = False
) -> None:
    tag = MIRROR + id_ if mirror else None
    Pins(state).add(Pin(id_, table, f"uuid of {table}", 1, "bi", "", LONG - DAY, until, tag))


def test_pins_that_were_over_long_ago_are_forgotten_but_not_while_a_tag_may_mirror_them(state: State) -> None:
    pinned(state, "over", LONG)
    pinned(state, "over lately", LATELY)
    pinned(state, "for ever", None)
    pinned(state, "mirrored", LONG, mirror=True)
    assert tidy(state, BEFORE) == 1
    assert rows(state, pins, "id") == ["for ever", "mirrored", "over lately"]


def test_a_mirror_is_gone_with_its_table_but_not_with_the_name_of_one(state: State) -> None:
    for name, mirror in (("lake.db.dropped", True), ("lake.db.renamed", True), ("lake.db.kept", False)):
        known(state, name, LONG)
        pinned(state, name, LONG if mirror else None, table=name, mirror=mirror)
    new_name = TableHealth("lake.db.new", "uuid of lake.db.renamed", NOW, "v", 90, 1.0, Numbers(files=1))
    HealthRecords(state).put([new_name])
    tidy(state, BEFORE)
    assert rows(state, pins, "id") == ["lake.db.kept", "lake.db.renamed"]


def test_what_says_that_a_table_is_gone_stays_as_long_as_a_mirrored_pin_of_it(state: State) -> None:
    """Else nothing would ever tell again that the pin's tag is gone."""
    known(state, "lake.db.dropped", LONG)
    pinned(state, "long one", LATELY, table="lake.db.dropped", mirror=True)
    tidy(state, BEFORE)
    assert rows(state, pins, "id") == ["long one"]
    for _ in range(2):
        tidy(state, NOW + 10 * DAY)
    assert rows(state, pins, "id") == [] == rows(state, standings, "slot")


def loaded(state: State, id_: str, ended: datetime | None, as_: LoadState) -> None:
    load = Load(id_, TABLE, "u", "etl", "", LoadState.OPEN, ("s3://b/1.parquet",), (), LONG - DAY, LONG)
    Loads(state).begin(load)
    if ended is not None:
        assert Loads(state).end(load, as_, ended)


def batch_over(state: State, id_: str, batch: str, file: str) -> None:
    add(state, trash_batches, {
        "id": id_, "table_name": TABLE, "table_uuid": "u", "cause": "failed-load", "reason": "it failed", "state": batch,
        "made_at": LONG, "trashed_at": None if batch == "pending" else LONG, "detail": {},
    })  # fmt: skip
    add(state, trashed, {
        "batch_id": id_, "path": f"s3://b/{id_}", "kind": "data", "state": file, "note": "",
    })  # fmt: skip


def test_loads_that_ended_long_ago_are_forgotten_once_nothing_is_left_to_do_for_them(state: State) -> None:
    for id_, ended in (("adopted", LONG), ("adopted lately", LATELY), ("open", None)):
        loaded(state, id_, ended, LoadState.ADOPTED)
    failed = ("failed", "not yet trashed", "still there", "being deleted", "deleted", "brought back")
    for id_ in failed:
        loaded(state, id_, LONG, LoadState.FAILED)
    for id_, batch, file in (
        ("not yet trashed", "pending", "trashed"),
        ("still there", "active", "trashed"),
        ("being deleted", "active", "erasing"),
        ("deleted", "active", "erased"),
        ("brought back", "active", "restored"),
    ):
        batch_over(state, id_, batch, file)
    assert tidy(state, BEFORE) == 4
    left = ["adopted lately", "being deleted", "not yet trashed", "open", "still there"]
    assert rows(state, loads, "id") == left and tidy(state, BEFORE) == 0
    TrashedFiles(state).void("not yet trashed")
    assert tidy(state, BEFORE) == 1


class Adopted:
    """A table that shows the snapshot of every load."""

    def loads(self) -> Adopted:
        return self

    def find_adoption(self, _table: TableRef, _load_id: str) -> int:
        return 7


def begun(state: State, run_id: str, job: str, plan: dict[str, Any]) -> Owner:
    owner = Owner("h", 1, 1.0)
    Journal(state).start(
        run_id=run_id, table=TABLE, job=job, owner=owner, trigger=Trigger(), plan=plan, policy={}, now=LONG
    )
    return owner


def test_an_adoption_that_was_left_open_is_settled_though_its_load_is_forgotten(state: State) -> None:
    """Else no load could ever be adopted into that table again."""
    loaded(state, "load-1", LONG, LoadState.ADOPTED)
    owner = begun(state, "r", JOB, {"load": "load-1"})
    Journal(state).step("r", owner, DeletingStep.ADOPTING, {}, LONG)
    assert tidy(state, BEFORE) == 1
    loaded(state, "load-2", None, LoadState.OPEN)
    table: Any = Adopted()
    load, _ = LoadAdoption(state, Journal(state), lambda _: table, lambda _: table, lambda: table)._settled(
        "load-2"
    )
    run = Journal(state).get("r")
    assert load.id == "load-2" and run is not None and run.state is RunState.DONE


# ------------------------------------------------------------ runs, and tables that never were


def test_how_far_a_run_was_and_who_cancelled_it_is_forgotten_long_after_it_ended(state: State) -> None:
    journal, progress = Journal(state), RunProgress(state)
    for number, (run_id, ended) in enumerate((("old", LONG), ("lately", LATELY), ("open", None))):
        owner = begun(state, run_id, f"compact-{number}", {})
        progress.put(run_id, ProgressPoint("writing", 1, 2, "", LONG))
        progress.cancel(run_id, "ana", LONG)
        if ended is not None:
            journal.finish(run_id, RunState.INTERRUPTED, "cancelled by ana", {}, (), ended, owner)
    assert tidy(state, BEFORE) == 2
    assert rows(state, run_progress, "run_id") == rows(state, run_cancels, "run_id") == ["lately", "open"]
    assert len(journal.list(TABLE, 10)) == 3


def test_names_that_somebody_asked_for_and_nobody_ever_saw_are_forgotten(state: State) -> None:
    book = TableSchedules(state)
    for number in range(50):
        book.put(TableSchedule(f"lake.db.typo{number}", PASS, LONG, LONG, "failed", "no such table", 1))
    book.put(TableSchedule("lake.db.lately", PASS, LONG, LATELY, "failed"))
    book.put(TableSchedule("lake.db.at-work", PASS, LONG, None, "running"))
    book.put(TableSchedule("lake.db.left-out", PASS, LONG, LONG, "done"))  # by the worker's patterns
    HealthRecords(state).put([TableHealth("lake.db.left-out", "u", NOW, "v", 90, 1.0, Numbers(files=1))])
    book.put_all([TableSchedule(TABLE, SEEN, LONG), TableSchedule(TABLE, PASS, LONG, LONG, "done")])
    assert tidy(state, BEFORE) == 50
    assert sorted(set(rows(state, standings))) == [
        "lake.db.at-work", TABLE, "lake.db.lately", "lake.db.left-out",
    ]  # fmt: skip


def test_what_the_worker_suspended_in_vain_is_forgotten_and_what_an_operator_suspended_stays(
    state: State,
) -> None:
    book = TableSchedules(state)
    for name, by, since in (
        ("lake.db.typo", BY_WORKER, LONG),
        ("lake.db.lately", BY_WORKER, LATELY),
        ("lake.db.read", BY_WORKER, LONG),
        ("lake.db.by-ana", "ana", LONG),
    ):
        book.suspend(Suspension(name, since, "ten failures", by))
    add(state, seen_tables, {"table_name": "lake.db.read", "uuid": "u", "properties": {}, "seen_at": LONG})
    assert tidy(state, BEFORE) == 1
    assert rows(state, suspensions) == ["lake.db.by-ana", "lake.db.lately", "lake.db.read"]


# ------------------------------------------------------------ when


class NoTables:
    def catalogs(self) -> list[str]:
        return []

    def format_of(self, catalog: str) -> Any:
        raise AssertionError(catalog)

    def format_for(self, table: TableRef) -> Any:
        raise AssertionError(table)


def test_the_collector_tidies_up_and_at_most_once_an_hour(state: State) -> None:
    collector = Collector(state, NoTables(), PolicyConfig(), HealthConfig(keep_days=30))
    old, young = clock.now() - 31 * DAY, clock.now() - 29 * DAY
    ended_request(state, "lake.db.old", old)
    ended_request(state, "lake.db.young", young)
    collector.sweep()
    assert rows(state, requests) == ["lake.db.young"]
    ended_request(state, "lake.db.old", old)
    collector.sweep()
    assert rows(state, requests) == ["lake.db.old", "lake.db.young"]
