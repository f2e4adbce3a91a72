"""The state database: the same promises on SQLite and on a real PostgreSQL, with real processes that race and die."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import insert, text

from lakewarden.errors import Busy, ConfigError, NotSetUp, RunTaken, StateTooNew, Unreachable
from lakewarden.model.run import Owner, Run, RunState, Trigger
from lakewarden.state import database
from lakewarden.state.database import State, migrate
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.runs import Journal, current_owner, is_gone, new_run_id
from lakewarden.state.schema import HEAD, REVISIONS, VERSION_TABLE, metadata, run_steps, runs, table_health
from lakewarden.state.tables import DetailIndex, InputRow
from lakewarden.state.trash import TrashedFiles
from tests.support.postgres import Database

pytestmark = [pytest.mark.services, pytest.mark.main]

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 16, 0, 30, 12, 345678, tzinfo=UTC)
ME = Owner("here", 1, 1.25)
OTHER = Owner("there", 2, 1763253012.87)
TABLE = "lake.db.events"


def test_a_pool_that_is_used_up_is_an_outage_and_no_mistake(
    pg_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(database, "_MOST_CONNECTIONS", 1)
    monkeypatch.setattr(database, "_KEPT_CONNECTIONS", 1)
    state = State.open(pg_database.url.replace("postgresql+psycopg://", "postgresql://"))
    try:
        with state.read(), pytest.raises(Unreachable, match="connections are in use"), state.write():
            raise AssertionError("there was none left")
    finally:
        state.close()


@pytest.fixture
def journal(state: State) -> Journal:
    return Journal(state)


def start(
    journal: Journal, run_id: str = "r1", table: str = TABLE, job: str = "compact", owner: Owner = ME
) -> Run:
    return journal.start(
        run_id=run_id,
        table=table,
        job=job,
        owner=owner,
        trigger=Trigger("incident-response", "ana", "T-1"),
        plan={"actions": [{"files": 3}]},
        policy={"rewrite_branch": "main"},
        now=NOW,
    )


# A run as the first schema had it.
OLD_RUN = {
    "id": "r1",
    "table_name": TABLE,
    "job": "compact",
    "state": "running",
    "reason": "",
    "started_at": NOW,
    "beat_at": NOW,
    "owner_host": "here",
    "owner_pid": 1,
    "owner_started": 1.25,
    "owner_token": "",
    "trigger_type": "manual",
    "plan": {},
    "policy": {},
    "counters": {},
    "snapshot_ids": [],
    "last_step": 0,
}


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What each of several threads got, or the exception it met; they all begin at the same moment."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def one(index: int) -> None:
        barrier.wait(30)
        try:
            results[index] = act(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    command_line = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command_line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def to_revision(url: str, revision: str) -> None:
    """A database as an older version left it."""
    config = AlembicConfig()
    config.set_main_option("script_location", str(ROOT / "lakewarden/state/migrations"))
    config.set_main_option("path_separator", "os")
    state = State(database._engine(url))
    with state.write() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    state.close()


# --- the journal


def test_a_run_from_start_to_end(journal: Journal) -> None:
    run = start(journal)
    assert (run.state, run.started_at, run.ended_at, run.beat_at) == (RunState.RUNNING, NOW, None, NOW)
    assert (run.owner, run.trigger) == (ME, Trigger("incident-response", "ana", "T-1"))
    assert (run.plan, run.policy) == ({"actions": [{"files": 3}]}, {"rewrite_branch": "main"})
    journal.step("r1", ME, "planned", {"groups": 2}, NOW)
    journal.step("r1", ME, "committed", {"snapshot": 6342913400512931861}, NOW + timedelta(seconds=1))
    done = journal.finish(
        "r1",
        RunState.DONE,
        "rewrote 3 files",
        {"files": 3},
        [6342913400512931861],
        NOW + timedelta(seconds=2),
    )
    assert done == journal.get("r1")
    assert (done.state, done.reason, done.counters) == (RunState.DONE, "rewrote 3 files", {"files": 3})
    assert (done.snapshot_ids, done.ended_at) == ((6342913400512931861,), NOW + timedelta(seconds=2))
    assert [(each.seq, each.name, each.detail) for each in journal.steps("r1")] == [
        (1, "planned", {"groups": 2}),
        (2, "committed", {"snapshot": 6342913400512931861}),
    ]


def test_times_come_back_in_utc(journal: Journal) -> None:
    start(journal)
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    journal.step("r1", ME, "planned", {}, elsewhere)
    at = journal.steps("r1")[0].at
    assert (at, at.tzinfo) == (NOW, UTC)
    with pytest.raises(Exception, match="without a zone"):
        journal.step("r1", ME, "planned", {}, NOW.replace(tzinfo=None))
    assert len(journal.steps("r1")) == 1


def test_one_open_run_per_table_and_job(journal: Journal) -> None:
    start(journal)
    start(journal, "r2", job="rewrite-manifests")
    start(journal, "r3", table="lake.db.other")
    with pytest.raises(
        Busy,
        match=r"cannot start compact on lake\.db\.events: run r1 is in progress \(here pid 1, since 2026-11-16 00:30:12 UTC\)",
    ):
        start(journal, "r4", owner=OTHER)
    open_run = journal.open_run(TABLE, "compact")
    assert open_run is not None
    assert open_run.id == "r1"
    journal.finish("r1", RunState.FAILED, "x", {}, [], NOW)
    assert journal.open_run(TABLE, "compact") is None
    start(journal, "r4", owner=OTHER)


def test_jobs_that_rewrite_the_same_files_wait_for_each_other(journal: Journal) -> None:
    start(journal, job="compact-deletes")
    with pytest.raises(
        Busy, match=r"cannot start compact-deletes on lake\.db\.events: run r1 is in progress"
    ):
        start(journal, "r2", job="compact")
    journal.finish("r1", RunState.DONE, "", {}, [], NOW)
    start(journal, "r2", job="compact")


def test_of_many_that_start_at_once_one_wins(journal: Journal) -> None:
    results = at_once(8, lambda index: start(journal, f"r{index}"))
    winners = [each for each in results if isinstance(each, Run)]
    assert len(winners) == 1
    assert all(isinstance(each, Busy) for each in results if each is not winners[0])
    assert {each.parts["run_id"] for each in results if isinstance(each, Busy)} == {winners[0].id}
    assert [each.id for each in journal.list()] == [winners[0].id]


def test_a_used_run_id_is_not_taken_for_a_busy_table(journal: Journal) -> None:
    start(journal)
    journal.finish("r1", RunState.DONE, "", {}, [], NOW)
    with pytest.raises(Exception, match=r"(?i)unique"):
        start(journal)


def test_a_step_needs_the_run_open_and_owned(journal: Journal) -> None:
    start(journal)
    with pytest.raises(RunTaken, match="cannot continue run r1: here pid 1 took it over"):
        journal.step("r1", OTHER, "committed", {}, NOW)
    with pytest.raises(RunTaken, match="no such run"):
        journal.step("r9", ME, "committed", {}, NOW)
    journal.finish("r1", RunState.DONE, "", {}, [], NOW)
    with pytest.raises(RunTaken, match="it ended as done at 2026-11-16 00:30:12 UTC") as caught:
        journal.step("r1", ME, "committed", {}, NOW)
    assert caught.value.exit_code == 11
    assert journal.steps("r1") == ()


def test_the_first_ending_stays(journal: Journal) -> None:
    start(journal)
    first = journal.finish("r1", RunState.DONE, "good", {"n": 1}, [7], NOW)
    again = journal.finish("r1", RunState.FAILED, "late", {}, [], NOW + timedelta(hours=1))
    assert again == first == journal.get("r1")
    with pytest.raises(RunTaken, match="no such run"):
        journal.finish("r9", RunState.DONE, "", {}, [], NOW)
    with pytest.raises(ValueError, match="running"):
        journal.finish("r1", RunState.RUNNING, "", {}, [], NOW)


def test_beats(journal: Journal) -> None:
    start(journal)
    later = NOW + timedelta(seconds=30)
    assert journal.beat("r1", later)
    assert journal.get("r1").beat_at == later  # type: ignore[union-attr]
    assert not journal.beat("r1", later, OTHER)
    assert journal.beat("r1", later, ME)
    journal.finish("r1", RunState.DONE, "", {}, [], later)
    assert not journal.beat("r1", later)


def test_who_lost_the_run_can_do_nothing_with_it(journal: Journal) -> None:
    seen = start(journal)
    assert journal.take_over(seen, OTHER, NOW + timedelta(minutes=5))
    with pytest.raises(RunTaken, match="there pid 2 took it over"):
        journal.step("r1", ME, "committed", {}, NOW)
    with pytest.raises(RunTaken):
        journal.finish("r1", RunState.DONE, "", {}, [], NOW, owner=ME)
    journal.step("r1", OTHER, "recovered", {}, NOW)
    assert journal.finish("r1", RunState.DONE, "", {}, [], NOW, owner=OTHER).owner == OTHER


def test_a_run_that_was_driven_since_is_not_taken_over(journal: Journal) -> None:
    seen = start(journal)
    journal.beat("r1", NOW + timedelta(seconds=1))
    assert not journal.take_over(seen, OTHER, NOW)
    journal.finish("r1", RunState.DONE, "", {}, [], NOW)
    assert not journal.take_over(journal.get("r1") or seen, OTHER, NOW)


def test_of_many_that_take_over_at_once_one_wins(journal: Journal) -> None:
    seen = start(journal)
    # At the very moment of the last beat: the owner alone tells whether another was faster.
    results = at_once(8, lambda index: journal.take_over(seen, Owner("there", index, 0.5), NOW))
    assert sorted(results) == [False] * 7 + [True]
    assert journal.get("r1").owner.pid == results.index(True)  # type: ignore[union-attr]


def test_listing_is_newest_first_and_bounded(journal: Journal) -> None:
    for index in range(5):
        start(journal, f"r{index}", table=f"lake.db.t{index % 2}")
        journal.finish(f"r{index}", RunState.DONE, "", {}, [], NOW)
    assert [each.id for each in journal.list(limit=3)] == ["r4", "r3", "r2"]
    assert [each.id for each in journal.list("lake.db.t1")] == ["r3", "r1"]
    assert journal.get("r9") is None


def test_run_ids_sort_and_differ() -> None:
    ids = [new_run_id(NOW + timedelta(seconds=index)) for index in range(20)]
    assert ids == sorted(ids)
    assert ids[0].startswith("20261116-003012-")
    assert len({new_run_id(NOW) for _ in range(50)}) == 50


# --- processes that write at once, or die

APPEND = """
import sys
from lakewarden import clock
from lakewarden.model.run import Owner, Trigger
from lakewarden.state.database import State
from lakewarden.state.runs import Journal
url, table = sys.argv[1:]
journal, owner = Journal(State.open(url)), Owner("child", 1, 1.0)
journal.start(run_id=table, table=table, job="compact", owner=owner, trigger=Trigger(), plan={}, policy={}, now=clock.now())
print("ready", flush=True)
sys.stdin.readline()
for index in range(60):
    journal.step(table, owner, f"s{index}", {"index": index}, clock.now())
"""


def test_processes_append_at_once(url: str, journal: Journal) -> None:
    children = [child(APPEND, url, f"lake.db.t{index}") for index in range(3)]
    for each in children:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in children:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    assert [each.wait(60) for each in children] == [0, 0, 0]
    for index in range(3):
        steps = journal.steps(f"lake.db.t{index}")
        assert [(each.seq, each.name) for each in steps] == [(n + 1, f"s{n}") for n in range(60)]
    for each in children:
        each.communicate()


DIE = """
import sys
from sqlalchemy import insert
from lakewarden import clock
from lakewarden.model.run import Trigger
from lakewarden.state.database import State
from lakewarden.state.runs import Journal, current_owner
from lakewarden.state.schema import run_steps
state = State.open(sys.argv[1])
journal, owner, now = Journal(state), current_owner(), clock.now()
journal.start(run_id="r1", table="lake.db.events", job="compact", owner=owner, trigger=Trigger(), plan={}, policy={}, now=now)
journal.step("r1", owner, "planned", {}, now)
with state.write() as connection:
    connection.execute(insert(run_steps).values(run_id="r1", seq=99, name="half", at=now, detail={}))
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.crash
def test_a_killed_process_leaves_a_journal_the_next_one_picks_up(url: str, journal: Journal) -> None:
    process = child(DIE, url)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    alive = journal.get("r1")
    assert alive is not None
    assert alive.beat_at is not None
    assert not is_gone(alive, alive.beat_at + timedelta(days=1))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(alive, alive.beat_at), "dead, though its parent has not collected it yet"
    process.communicate()

    seen = journal.open_run(TABLE, "compact")
    assert seen is not None
    assert [each.name for each in journal.steps("r1")] == ["planned"]
    assert is_gone(seen, seen.started_at)
    me = current_owner()
    assert journal.take_over(seen, me, NOW)
    journal.step("r1", me, "recovered", {}, NOW)
    assert [(each.seq, each.name) for each in journal.steps("r1")] == [(1, "planned"), (2, "recovered")]


def test_whether_an_owner_is_gone(journal: Journal) -> None:
    run, me = start(journal), current_owner()
    long_after = NOW + timedelta(hours=1)
    assert not is_gone(run, NOW + timedelta(seconds=59))
    assert is_gone(run, NOW + timedelta(seconds=61))
    assert not is_gone(run, NOW + timedelta(seconds=61), ttl=timedelta(minutes=5))
    assert not is_gone(replace(run, owner=me), long_after)
    reused = replace(run, owner=replace(me, started=me.started - 500))
    assert not is_gone(reused, NOW)
    assert is_gone(reused, long_after)


def test_the_owner_is_this_process() -> None:
    me = current_owner()
    assert me.pid == os.getpid()
    assert me.host.startswith(socket.gethostname())
    assert me.same_process(current_owner())
    assert me != current_owner(), "each driver has a token of its own"


# --- the schema


def test_the_tables_are_what_the_revisions_make(state: State) -> None:
    with state.read() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, metadata) == []


def test_the_known_revisions_are_those_that_exist() -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", str(ROOT / "lakewarden/state/migrations"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert [each.revision for each in reversed(list(scripts.walk_revisions()))] == list(REVISIONS)
    assert scripts.get_current_head() == HEAD


def test_opening_again_changes_nothing(url: str, journal: Journal) -> None:
    start(journal)
    again = State.open(url)
    assert Journal(again).get("r1") == journal.get("r1")
    again.close()
    assert migrate(url).before == HEAD


PORTRAIT = {
    "format": "iceberg",
    "holds": [
        {"kind": "tag", "name": "month-end", "holder": ""},
        {"kind": "pin", "name": "p1", "holder": "bi"},
    ],
    "snapshots": [
        {"id": 8, "at": NOW.isoformat(), "operation": "append", "inputs": "lake.db.raw@7"},
        {"id": 9, "at": NOW.isoformat(), "operation": "append", "inputs": ""},
    ],
}


def test_what_all_portraits_are_asked_for_is_filled_from_those_there_are(url: str) -> None:
    to_revision(url, "0013")
    old = State(database._engine(url))
    with old.write() as connection:
        connection.execute(
            insert(table_health).values(
                table_name=TABLE, table_uuid="u", at=NOW, version="v", score=1, debt=0, numbers={}, error="",
                portrait=PORTRAIT,
            )
        )  # fmt: skip
    old.close()
    migrate(url)
    state = State.open(url)
    assert [(table, each["name"]) for table, each in DetailIndex(state).holds()] == [
        (TABLE, "month-end"),
        (TABLE, "p1"),
    ]
    assert DetailIndex(state).inputs() == (InputRow(TABLE, 8, NOW, "append", "lake.db.raw@7"),)
    state.close()


def test_what_was_doomed_is_in_the_trash_after_an_upgrade(url: str) -> None:
    """Words of jobs, steps, states and keys follow; paths and reasons that contain the old words stay as they are."""
    to_revision(url, "0019")
    old = State(database._engine(url))
    odd = '/lake/doomed/x "doomed": 1'
    with old.write() as connection:
        counters = {"files_doomed": 2, "path": odd}
        connection.execute(insert(runs).values({**OLD_RUN, "job": "reap", "counters": counters}))
        step = {"run_id": "r1", "seq": 1, "name": "doomed", "at": NOW, "detail": {"reap_run_id": odd}}
        connection.execute(insert(run_steps).values(step))
        for statement in (
            (
                "INSERT INTO verdicts (id, table_name, table_uuid, cause, reason, state, made_at, detail)"
                " VALUES ('r1', 't', 'u', 'expire', '', 'active', '2026-11-16 00:00:00', '{}')"
            ),
            (
                "INSERT INTO doomed (verdict_id, path, kind, state, reap_run_id, note)"
                " VALUES ('r1', '/lake/doomed/x', 'data', 'doomed', 'r2', '')"
            ),
        ):
            connection.execute(text(statement))
    old.close()
    migrate(url)
    state = State.open(url)
    run = Journal(state).get("r1")
    assert run is not None and (run.job, run.counters) == ("purge", {"files_trashed": 2, "path": odd})
    assert [(each.name, each.detail) for each in Journal(state).steps("r1")] == [
        ("trashed", {"purge_run_id": odd})
    ]
    with state.read() as connection:
        rows = connection.execute(text("SELECT path, state, purge_run_id FROM trash")).all()
    assert [tuple(each) for each in rows] == [("/lake/doomed/x", "trashed", "r2")]
    state.close()


def test_a_verdict_is_a_deletion_batch_after_an_upgrade(url: str) -> None:
    """Tables, columns and keys follow; values that contain the old word stay as they are."""
    to_revision(url, "0020")
    old = State(database._engine(url))
    odd = '/lake/verdict/x "verdict": 1'
    with old.write() as connection:
        plan = {"actions": [{"verdict": "r0", "reason": odd}]}
        connection.execute(insert(runs).values({**OLD_RUN, "plan": plan}))
        step = {
            "run_id": "r1",
            "seq": 1,
            "name": "trashed",
            "at": NOW,
            "detail": {"verdict": "r1", "of": odd},
        }
        connection.execute(insert(run_steps).values(step))
        for statement in (
            (
                "INSERT INTO verdicts (id, table_name, table_uuid, cause, reason, state, made_at, detail)"
                " VALUES ('r1', 't', 'u', 'expire', '', 'active', '2026-11-16 00:00:00', '{}')"
            ),
            (
                "INSERT INTO trash (verdict_id, path, kind, state, note)"
                " VALUES ('r1', '/lake/verdict/x', 'data', 'trashed', '')"
            ),
        ):
            connection.execute(text(statement))
    old.close()
    migrate(url)
    state = State.open(url)
    run = Journal(state).get("r1")
    assert run is not None and run.plan == {"actions": [{"batch": "r0", "reason": odd}]}
    assert [each.detail for each in Journal(state).steps("r1")] == [{"batch": "r1", "of": odd}]
    with state.read() as connection:
        joined = "SELECT b.table_name, f.path FROM trash f JOIN trash_batches b ON b.id = f.batch_id"
        rows = connection.execute(text(joined)).all()
    assert [tuple(each) for each in rows] == [("t", "/lake/verdict/x")]
    batch = TrashedFiles(state).batch("r1")
    assert batch is not None and (batch.table, batch.cause) == ("t", "expire")
    state.close()


def test_rows_beside_a_portrait_are_those_of_the_newest(state: State) -> None:
    records, details = HealthRecords(state), DetailIndex(state)
    look = TableHealth(TABLE, "u", NOW, "v", 1, 0.0, Numbers(), portrait=PORTRAIT)
    records.put([look, replace(look, table="lake.db.other")])
    assert len(details.holds()) == 4
    assert {each.table for each in details.inputs_naming("lake.db.raw@")} == {TABLE, "lake.db.other"}
    assert details.inputs_naming("lake.db.r_w@") == ()  # a name, not a pattern
    records.put([replace(look, portrait={**PORTRAIT, "holds": [], "snapshots": []})])
    assert {table for table, _ in details.holds()} == {"lake.db.other"}
    records.forget(["lake.db.other"])
    assert details.holds() == () and details.inputs() == ()


def test_questions_of_one_look_see_one_moment_and_share_a_connection(url: str, state: State) -> None:
    other = State.open(url)
    with state.one_look():
        with state.read() as first:
            before = len(Journal(state).list(None, 10))
        start(Journal(other))
        with state.read() as second, state.one_look():
            assert first is second
        assert len(Journal(state).list(None, 10)) == before == 0
        with pytest.raises(AssertionError, match="cannot write inside one_look"), state.write():
            pass
    assert len(Journal(state).list(None, 10)) == 1
    with state.read() as third:
        assert third is not first
    other.close()


def test_a_newer_database_is_refused(url: str, state: State) -> None:
    with state.write() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0999'"))
    for use in (State.open, migrate):
        with pytest.raises(
            StateTooNew, match=f"it has schema 0999, this Lakewarden supports up to {HEAD}"
        ) as caught:
            use(url)
        assert caught.value.exit_code == 12
    with state.read() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() == "0999"


def test_an_older_database_is_upgraded_with_its_rows(url: str) -> None:
    to_revision(url, REVISIONS[0])
    old = State(database._engine(url))
    with old.write() as connection:
        connection.execute(insert(runs).values(OLD_RUN))
    old.close()
    if url.startswith("postgresql"):
        with pytest.raises(NotSetUp, match=f"it has schema 0001, this Lakewarden needs {HEAD}") as caught:
            State.open(url)
        assert "lakewarden migrate" in caught.value.hint
        report = migrate(url)
        assert (report.before, report.after) == ("0001", HEAD)
    state = State.open(url)
    assert Journal(state).get("r1") is not None
    assert StoredPolicies(state).get(TABLE) == {}
    with pytest.raises(Busy, match="run r1"):
        start(Journal(state), "r2", job="compact-deletes")
    state.close()


def test_many_may_open_an_empty_database_at_once(url: str) -> None:
    states = at_once(6, lambda _: State.open(url))
    assert all(isinstance(each, State) for each in states), states
    start(Journal(states[0]))
    assert all(Journal(each).get("r1") is not None for each in states)
    for each in states:
        each.close()


def test_many_may_change_a_new_file_to_wal_at_once(tmp_path: Path) -> None:
    """SQLite fails this one change at once instead of waiting: about one try in a hundred."""
    for number in range(150):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        states = at_once(6, lambda _, url=url: database._use_wal(State(database._engine(url))))
        assert states == [None] * 6


def test_a_failing_transaction_leaves_nothing(state: State, journal: Journal) -> None:
    start(journal)

    def half() -> None:
        with state.write() as connection:
            connection.execute(insert(run_steps).values(run_id="r1", seq=1, name="half", at=NOW, detail={}))
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        half()
    assert journal.steps("r1") == ()


def test_what_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1") as caught:
        State.open("postgresql://lw:hunter2@127.0.0.1:1/lw")
    assert "hunter2" not in caught.value.message + repr(caught.value) + str(caught.value.to_dict())
    assert caught.value.retry
    with pytest.raises(Unreachable, match="unable to open"):
        State.open(f"sqlite:///{tmp_path}/none/state.db")
    (tmp_path / "text.db").write_text("this is no database, just a long enough line of text" * 50)
    with pytest.raises(Unreachable, match="not a database"):
        State.open(f"sqlite:///{tmp_path}/text.db")


@pytest.mark.parametrize(
    "wrong",
    ["mysql://u:hunter2@h/d", "sqlite://", "sqlite:///:memory:", "nonsense", "postgresql://u:hunter2@h:x/d"],
)
def test_a_wrong_address_is_a_configuration_error(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"read state\.url in") as caught:
        State.open(wrong)
    assert "hunter2" not in caught.value.message


def test_a_wrong_password_is_not_shown(pg_database: Any) -> None:
    with pytest.raises(Unreachable, match="authentication failed") as caught:
        State.open(pg_database.url.replace(pg_database.password, "hunter2"))
    assert "hunter2" not in caught.value.message


def test_sqlite_is_safe_and_concurrent(tmp_path: Path) -> None:
    state = State.open(f"sqlite:///{tmp_path}/state.db")
    with state.read() as connection:
        pragmas = [
            connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "foreign_keys", "synchronous")
        ]
        busy = connection.execute(text("PRAGMA busy_timeout")).scalar()
    assert pragmas == ["wal", 1, 2]
    assert busy == database.BUSY_SECONDS * 1000


def test_opening_what_is_up_to_date_needs_no_alembic(url: str, state: State) -> None:
    script = "import sys; from lakewarden.state.database import State; State.open(sys.argv[1]); print('alembic' in sys.modules)"
    done = child(script, url)
    assert done.communicate(timeout=60)[0].strip() == "False"


# --- stored policies


def test_policies_are_set_unset_and_reset(state: State) -> None:
    policies = StoredPolicies(state)
    assert policies.get(TABLE) == {}
    policies.set(
        TABLE,
        {"rewrite_enabled": False, "rewrite_zorder_columns": ["a", "b"], "rewrite_where": None},
        "ana",
        NOW,
    )
    policies.set(TABLE, {"rewrite_enabled": True, "delete_compaction_ratio": 0.5}, None, NOW)
    policies.set("lake.db.other", {"rewrite_enabled": False}, "ben", NOW)
    assert policies.get(TABLE) == {
        "delete_compaction_ratio": 0.5,
        "rewrite_enabled": True,
        "rewrite_where": None,
        "rewrite_zorder_columns": ["a", "b"],
    }
    policies.unset(TABLE, ["rewrite_where", "rewrite_enabled", "not_there"])
    assert set(policies.get(TABLE)) == {"delete_compaction_ratio", "rewrite_zorder_columns"}
    policies.reset(TABLE)
    assert policies.get(TABLE) == {}
    assert policies.get("lake.db.other") == {"rewrite_enabled": False}


def test_setting_is_all_or_nothing(state: State) -> None:
    policies = StoredPolicies(state)
    with pytest.raises(Exception, match=r"(?i)json"):
        policies.set(TABLE, {"a": 1, "b": object()}, "ana", NOW)
    assert policies.get(TABLE) == {}


def test_two_operators_at_once_both_count(state: State) -> None:
    policies = StoredPolicies(state)
    results = at_once(
        6, lambda index: policies.set(TABLE, {"shared": index, f"k{index}": index, "z": index}, "ana", NOW)
    )
    assert results == [None] * 6
    stored = policies.get(TABLE)
    assert {f"k{index}" for index in range(6)} <= set(stored)
    assert stored["shared"] == stored["z"]
