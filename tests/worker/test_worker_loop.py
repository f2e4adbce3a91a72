"""The worker's loop over a real state database, without Spark: what goes wrong around it, and how it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import httpx
import pytest

from lakewarden import Lakewarden, clock
from lakewarden.cli.worker import company
from lakewarden.config.schema import BudgetsConfig, ScheduleConfig
from lakewarden.errors import NoSuchTable, NotSetUp, Outage, Unreachable
from lakewarden.jobs.run_context import Stop
from lakewarden.model.run import Job, Owner, Run, RunState, Trigger
from lakewarden.model.table import TableRef
from lakewarden.services.connections import Connections
from lakewarden.services.schedule import JobEnded
from lakewarden.state.database import State
from lakewarden.state.fleet import BY_WORKER
from lakewarden.state.locks import Leases
from lakewarden.state.requests import RequestState
from lakewarden.state.schedule import PASS, SEEN, Suspension, TableSchedule, TableSchedules
from lakewarden.worker import passes as pass_
from lakewarden.worker.daemon import PeriodicTask, PeriodicTasks, Worker
from lakewarden.worker.passes import Pass, PassResult
from lakewarden.worker.schedule import (
    DueTable,
    ScheduleRules,
    ScheduleSnapshot,
    TrackedTable,
    WaitingTable,
    WaitReason,
    decide,
)
from lakewarden.worker.spark_session import Session, SparkProbe
from lakewarden.worker.tables import LEFT_OPEN, NOT_KEPT, RUNNING, Tables
from tests.support.ports import answers, free_port, wait_until
from tests.support.workers import QUICK, running, slot, working

NAME = "lake.db.events"
AWAY = Unreachable(what="the state database x", reason="connection refused", kind=Outage.STATE)


@pytest.fixture(autouse=True)
def _the_tests_own_spark_lives() -> Iterator[None]:
    """Workers without a Spark let go of this process's, which other tests share."""
    with patch("lakewarden.spark.session.abandon_session"), patch("lakewarden.worker.spark_session.end_jvm"):
        yield


@pytest.fixture
def lw(tmp_path: Path) -> Iterator[Lakewarden]:
    config = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "worker": {**QUICK, "lease_seconds": 30, "max_failures": 2},
        "catalogs": {"lake": {"type": "hadoop", "warehouse": str(tmp_path)}},
    }
    with (
        Lakewarden(config, environ={}) as made,
        patch.object(Worker, "_ready", lambda self: True),
        patch.object(Worker, "_discover", lambda self, over: None),
    ):
        yield made


def outcome(turn: Pass, state: RunState, reason: str = "", trouble: Exception | None = None) -> PassResult:
    now = clock.now()
    run = Run("", turn.table, Job.COMPACT, state, reason, now, now, Owner("h", 1, 1.0), Trigger())
    return PassResult(turn, now, now, () if trouble else (JobEnded(Job.COMPACT, now, run),), trouble)


def test_a_request_that_a_short_outage_left_is_done_by_the_same_leader(lw: Lakewarden) -> None:
    """The lease outlived the outage: no other leader comes to take the request over."""
    done: list[Pass] = []

    def do(_: Any, turn: Pass, *rest: Any, **named: Any) -> PassResult:
        done.append(turn)
        return outcome(turn, RunState.DONE, trouble=AWAY if len(done) == 1 else None)

    asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
    with patch.object(pass_, "do", do), working(lw):
        wait_until(lambda: lw.schedule.request_by_id(asked.id).ended, "the request ends", 30)
        leader = lw.schedule.leader()
    assert leader is not None and leader.term == 1
    assert lw.schedule.request_by_id(asked.id).state is RequestState.DONE
    assert [each.request.id for each in done if each.request] == [asked.id] * 2


@pytest.mark.parametrize("places", [1, 2])
def test_requests_without_end_leave_a_place_to_who_is_due(lw: Lakewarden, places: int) -> None:
    """Pipelines that ask again after each load, and a table that has been due for two days."""
    lw.config = lw.config.model_copy(
        update={"worker": lw.config.worker.model_copy(update={"parallel_tables": places})}
    )
    pipelines, turns = ("lake.db.a", "lake.db.b"), list[str]()

    def do(_: Any, turn: Pass, *rest: Any, **named: Any) -> PassResult:
        turns.append(turn.table)
        if turn.request is not None:
            lw.schedule.request(turn.table, Trigger("manual", "ana"))
        return outcome(turn, RunState.DONE)

    TableSchedules(lw.state).put(TableSchedule(NAME, SEEN, clock.now() - timedelta(days=2)))
    for each in pipelines:
        lw.schedule.request(each, Trigger("manual", "ana"))
    with patch.object(pass_, "do", do), working(lw):
        wait_until(lambda: len(turns) >= 5, "they have their turns", 60)
    assert NAME in turns[:3] and set(turns) == {NAME, *pipelines}, turns


def test_requests_have_all_places_where_nobody_else_is_due(lw: Lakewarden) -> None:
    """A table that is due and was asked for comes by its request, and is not done twice."""
    both, turns = threading.Barrier(2), list[Pass]()

    def do(_: Any, turn: Pass, *rest: Any, **named: Any) -> PassResult:
        turns.append(turn)
        if turn.request is not None:  # both at once, or the second never comes
            both.wait(30)
        return outcome(turn, RunState.DONE)

    tables = (NAME, "lake.db.a")
    TableSchedules(lw.state).put_all(
        [TableSchedule(each, SEEN, clock.now() - timedelta(days=2)) for each in tables]
    )
    asked = [lw.schedule.request(each, Trigger("manual", "ana")) for each in tables]
    with patch.object(pass_, "do", do), working(lw):
        wait_until(lambda: all(lw.schedule.request_by_id(each.id).ended for each in asked), "they end", 30)
    first = [each.request.id for each in turns[:2] if each.request is not None]
    assert sorted(first) == sorted(each.id for each in asked), turns


def test_a_look_that_fails_is_told_once_and_the_next_one_goes_on(
    lw: Lakewarden, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def chores(self: PeriodicTasks, over: Any) -> None:
        looks.append(1)
        if len(looks) <= 2:
            raise KeyError("nobody thought of it")

    asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
    with (
        caplog.at_level("INFO", "lakewarden.worker"),
        patch.object(pass_, "do", lambda _, turn, *rest, **named: outcome(turn, RunState.DONE)),
        patch.object(PeriodicTasks, "do", chores),
        working(lw),
    ):
        wait_until(lambda: lw.schedule.request_by_id(asked.id).ended, "the request ends", 30)
    said = [getattr(each, "event", "") for each in caplog.records]
    assert said.count("look-failed") == 1 and said.count("look-failed-over") == 1


def test_a_table_backs_off_even_if_what_came_of_its_turn_cannot_be_written_down(lw: Lakewarden) -> None:
    TableSchedules(lw.state).put(TableSchedule(NAME, SEEN, clock.now()))
    real, turns = Tables.change, list[Pass]()

    def change(self: Tables, table: str, into: Any, lease_term: int | None) -> Any:
        if any("\0" in each.reason for each in into(self.of(table))):
            raise ValueError("a text cannot have a NUL")
        return real(self, table, into, lease_term)

    def do(_: Any, turn: Pass, *rest: Any, **named: Any) -> PassResult:
        turns.append(turn)
        return outcome(turn, RunState.FAILED, reason="odd \0 odd")

    def ended() -> bool:
        found = slot(lw, NAME)
        return found is not None and found.state != RUNNING

    with patch.object(Tables, "change", change), patch.object(pass_, "do", do), working(lw):
        wait_until(ended, "the turn is written down", 30)
    found = slot(lw, NAME, PASS)
    assert found is not None and found.failures >= 1 and found.retry_at is not None
    assert "cannot be written down (ValueError)" in found.reason


def test_an_operators_suspension_stays_as_it_was_said(lw: Lakewarden) -> None:
    TableSchedules(lw.state).put(TableSchedule(NAME, PASS, clock.now(), clock.now(), "failed", failures=5))
    TableSchedules(lw.state).suspend(Suspension(NAME, clock.now(), "backfill until Friday", "ana"))
    asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
    with (
        patch.object(pass_, "do", lambda _, turn, *rest, **named: outcome(turn, RunState.FAILED)),
        working(lw),
    ):
        wait_until(lambda: lw.schedule.request_by_id(asked.id).ended, "the request ends", 30)
    assert lw.schedule.suspended()[NAME].reason == "backfill until Friday"


def test_a_table_resumed_in_the_middle_of_its_turn_has_no_failures_but_that_one(lw: Lakewarden) -> None:
    now = clock.now()
    before = TableSchedule(NAME, PASS, now, now, "failed", "why", 5, now)
    TableSchedules(lw.state).put_all([TableSchedule(NAME, SEEN, now), before])

    def do(_: Any, turn: Pass, *rest: Any, **named: Any) -> PassResult:
        lw.schedule.resume(NAME)
        return outcome(turn, RunState.FAILED)

    asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
    with patch.object(pass_, "do", do), working(lw):
        wait_until(lambda: lw.schedule.request_by_id(asked.id).ended, "the request ends", 30)
    found = slot(lw, NAME)
    assert found is not None and found.failures == 1 and not lw.schedule.suspended()


def test_a_table_resumed_between_two_looks_begins_its_turn_without_failures(lw: Lakewarden) -> None:
    """The leader's book still had them: it looks every few seconds at what others changed."""
    now, seen = clock.now(), list[int]()
    TableSchedules(lw.state).put(TableSchedule(NAME, PASS, now, now, "failed", failures=5))

    def do(_: Any, turn: Pass, *rest: Any, **named: Any) -> PassResult:
        found = slot(lw, NAME)
        seen.append(-1 if found is None else found.failures)
        return outcome(turn, RunState.DONE)

    with patch.object(pass_, "do", do), working(lw) as worker:
        wait_until(lambda: worker._term is not None, "it leads", 30)
        lw.schedule.resume(NAME)
        asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
        wait_until(lambda: lw.schedule.request_by_id(asked.id).ended, "the request ends", 30)
    assert seen == [0]


def test_a_failure_is_counted_once_though_its_suspension_had_to_wait(lw: Lakewarden) -> None:
    now, real, tries = clock.now(), TableSchedules.suspend, list[Suspension]()
    TableSchedules(lw.state).put(TableSchedule(NAME, PASS, now, now, "failed", failures=1))

    def suspend(self: TableSchedules, suspension: Suspension) -> None:
        tries.append(suspension)
        if len(tries) <= 2:
            raise AWAY
        real(self, suspension)

    asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
    with (
        patch.object(pass_, "do", lambda _, turn, *rest, **named: outcome(turn, RunState.FAILED)),
        patch.object(TableSchedules, "suspend", suspend),
        working(lw),
    ):
        wait_until(lambda: lw.schedule.request_by_id(asked.id).ended, "the request ends", 30)
    found = slot(lw, NAME)
    assert len(tries) == 3 and found is not None and found.failures == 2
    assert "it failed 2 times in a row" in lw.schedule.suspended()[NAME].reason


def test_a_turn_that_ended_while_the_database_was_away_is_no_failure_of_its_table(
    lw: Lakewarden, caplog: pytest.LogCaptureFixture
) -> None:
    """The same process leads again, and knows that it ended; one that was killed in the middle counts."""
    lw.config = lw.config.model_copy(
        update={"worker": lw.config.worker.model_copy(update={"lease_seconds": 3})}
    )
    begun, away, failures = threading.Event(), threading.Event(), list[int]()
    real = State._translated

    @contextmanager
    def translated(self: State) -> Iterator[None]:
        if away.is_set():
            raise AWAY
        with real(self):
            yield

    def do(_: Any, turn: Pass, api_term: int, stop: Any, **named: Any) -> PassResult:
        if begun.is_set():
            found = slot(lw, NAME)
            failures.append(-1 if found is None else found.failures)
            return outcome(turn, RunState.DONE)
        away.set()
        begun.set()
        wait_until(lambda: stop.asked, "it is told to stop", 30)
        return replace(outcome(turn, RunState.FAILED, trouble=AWAY), stopped=True)

    TableSchedules(lw.state).put(TableSchedule(NAME, SEEN, clock.now() - timedelta(days=1)))
    with (
        caplog.at_level("INFO", "lakewarden.worker"),
        patch.object(pass_, "do", do),
        patch.object(State, "_translated", translated),
        working(lw) as worker,
    ):
        assert begun.wait(30)
        wait_until(lambda: not worker.at_work() and not worker.leading, "it has stopped", 60)
        away.clear()
        wait_until(lambda: len(failures) > 0, "it has its turn again", 60)
    said = [each for each in caplog.records if getattr(each, "event", "") == "pass-left-open"]
    assert failures[0] == 0 and len(said) == 1 and NOT_KEPT in said[0].getMessage()


def lives(lw: Lakewarden, *deadly: str) -> list[str]:
    """A worker from its start until its first look as the leader is over: the tables whose turns it began.

    Turns of the deadly ones die with their worker: nothing of them is written down.
    """
    begun, real = list[str](), Worker._keep

    def do(_: Any, turn: Pass, *rest: Any, **named: Any) -> PassResult:
        begun.append(turn.table)
        return outcome(turn, RunState.DONE)

    def keep(self: Worker, lead: Any, ended: PassResult, term: int) -> bool:
        return ended.turn.table in deadly or real(self, lead, ended, term)

    def pause(self: Worker, seconds: float) -> None:
        clock.sleep(0.01)
        if self._term is not None:
            self.drain()

    with (
        patch.object(pass_, "do", do),
        patch.object(Worker, "_keep", keep),
        patch.object(Worker, "_pause", pause),
    ):
        Worker(lw).run()
    return begun


def wait_is_over(lw: Lakewarden, table: str) -> None:
    TableSchedules(lw.state).change(table, lambda last: [replace(last, retry_at=clock.now())] if last else [])


def crash_safe(lw: Lakewarden, max_failures: int) -> None:
    lw.config = lw.config.model_copy(
        update={
            "worker": lw.config.worker.model_copy(update={"retry_seconds": 600, "max_failures": max_failures})
        }
    )


def test_a_request_whose_pass_kills_the_worker_backs_off_and_ends_as_failed(lw: Lakewarden) -> None:
    crash_safe(lw, max_failures=3)
    asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
    assert lives(lw, NAME) == [NAME]
    assert lives(lw, NAME) == [NAME], "the first time it may have been chance"
    TableSchedules(lw.state).put(TableSchedule("lake.db.other", SEEN, clock.now() - timedelta(days=2)))
    assert lives(lw, NAME) == ["lake.db.other"], "it leaves the others their turns"
    assert NAME not in lives(lw, NAME), "for as long as the table backs off, whoever leads"
    assert lw.schedule.request_by_id(asked.id).state is RequestState.CLAIMED
    wait_is_over(lw, NAME)
    assert NAME in lives(lw, NAME)
    assert NAME not in lives(lw, NAME)
    found = lw.schedule.request_by_id(asked.id)
    assert (
        found.state is RequestState.FAILED
        and f"3 times in a row, the last time with: {LEFT_OPEN}" in found.reason
    )
    assert lw.schedule.suspended()[NAME].by == BY_WORKER
    again = lw.schedule.request(NAME, Trigger("manual", "ana"))
    assert NAME not in lives(lw, NAME), "who asks anew waits as well: a pipeline asks after each load"
    wait_is_over(lw, NAME)
    assert NAME in lives(lw, NAME)
    assert NAME not in lives(lw, NAME) and lw.schedule.request_by_id(again.id).state is RequestState.FAILED
    lw.schedule.resume(NAME)
    lw.schedule.request(NAME, Trigger("manual", "ana"))
    assert NAME in lives(lw, NAME), "once somebody has looked it is heard at once"


def test_a_table_that_kills_the_worker_again_and_again_is_suspended(
    lw: Lakewarden, caplog: pytest.LogCaptureFixture
) -> None:
    crash_safe(lw, max_failures=2)
    TableSchedules(lw.state).put(TableSchedule(NAME, SEEN, clock.now() - timedelta(days=2)))
    assert lives(lw, NAME) == [NAME] and not lw.schedule.suspended()
    assert lives(lw, NAME) == [NAME] and not lw.schedule.suspended()
    with caplog.at_level("INFO", "lakewarden.worker"):
        assert lives(lw, NAME) == []
    assert [getattr(each, "event", "") for each in caplog.records].count("suspended") == 1
    assert lw.schedule.suspended()[NAME].by == BY_WORKER
    wait_is_over(lw, NAME)
    assert lives(lw, NAME) == [], "until somebody looks"
    lw.schedule.resume(NAME)
    assert lives(lw) == [NAME] and not lw.schedule.suspended()


def test_a_worker_that_died_before_it_could_suspend_left_that_to_the_next(lw: Lakewarden) -> None:
    crash_safe(lw, max_failures=2)
    now = clock.now()
    left = TableSchedule(NAME, PASS, now, now, "failed", LEFT_OPEN, 2, now, left_open=2)
    TableSchedules(lw.state).put_all([TableSchedule(NAME, SEEN, now - timedelta(days=2)), left])
    assert lives(lw, NAME) == [] and NAME in lw.schedule.suspended()


def test_a_worker_that_is_gone_once_after_a_night_without_the_catalog_suspends_nothing(
    lw: Lakewarden,
) -> None:
    """A catalog that does not answer is no table's failing, however often; and turns hang in it, so that is when workers die."""
    crash_safe(lw, max_failures=3)
    now = clock.now()
    asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
    assert lives(lw, NAME) == [NAME]
    TableSchedules(lw.state).change(NAME, lambda last: [replace(last, failures=12)] if last else [])
    TableSchedules(lw.state).put(TableSchedule(NAME, SEEN, now - timedelta(days=2)))
    assert lives(lw) == [NAME], "the first time it may have been chance"
    assert not lw.schedule.suspended() and lw.schedule.request_by_id(asked.id).state is RequestState.DONE
    found = slot(lw, NAME)
    assert found is not None and (found.failures, found.left_open) == (0, 0)


def test_who_has_a_turn_beside_a_table_that_kills_the_worker_is_not_blamed_for_it(lw: Lakewarden) -> None:
    lw.config = lw.config.model_copy(
        update={"worker": lw.config.worker.model_copy(update={"parallel_tables": 2})}
    )
    crash_safe(lw, max_failures=4)
    other, now = "lake.db.other", clock.now()
    since = now - timedelta(days=2)
    TableSchedules(lw.state).put_all([TableSchedule(NAME, SEEN, since), TableSchedule(other, SEEN, since)])
    assert sorted(lives(lw, NAME, other)) == sorted(lives(lw, NAME, other)) == [NAME, other]
    lives(lw)  # both were found in the middle twice
    seen = list[tuple[str, ...]]()
    for _ in range(6):
        for each in (NAME, other):
            wait_is_over(lw, each)
        begun = lives(lw, NAME)
        assert len(begun) <= 1, "neither has company"
        seen.append(tuple(begun))
    assert (other,) in seen and (NAME,) in seen
    assert set(lw.schedule.suspended()) == {NAME}


def turned(
    lw: Lakewarden,
    turn: Pass,
    began: datetime,
    long: Job,
    cold: str | None = None,
    *,
    staged: bool = False,
    state: RunState = RunState.DONE,
) -> tuple[PassResult, list[str]]:
    """What came of a turn that began then, and what it ran: every job ends so, and the long one takes three hours."""
    at, ran = [began], list[str]()

    def run(job: Job, table: TableRef, *rest: Any, **named: Any) -> Run:
        ran.append(f"{job} {table}")
        at[0] += timedelta(hours=3) if job is long else timedelta(0)
        owner = Owner("h", 1, 1.0)
        return Run(f"r{len(ran)}", str(table), job, state, "", at[0], at[0], owner, Trigger())

    found = None if cold is None else TableRef.parse(cold)
    with (
        patch.object(clock, "now", lambda: at[0]),
        patch.object(lw.schedule, "_run_job", run),
        patch.object(lw.schedule, "jobs_of", lambda *_: turn.jobs),
        patch.object(lw.schedule, "_trashed_cold", lambda *_: found),
    ):
        return pass_.do(lw, turn, 1, Stop(), staged=staged), ran


@pytest.mark.parametrize("staged", [False, True])
def test_a_window_that_begins_in_the_middle_of_a_turn_keeps_the_rest_of_it_out(
    lw: Lakewarden, staged: bool
) -> None:
    lw.config = lw.config.model_copy(update={"budgets": BudgetsConfig(pause_expiry=("Mon-Fri 09:00-17:00",))})
    jobs = (Job.COMPACT, Job.REWRITE_MANIFESTS, Job.EXPIRE, Job.PURGE)
    began = datetime(2026, 3, 3, 8, 59, tzinfo=UTC)  # a Tuesday
    ended, ran = turned(lw, Pass(NAME, jobs), began, Job.COMPACT, staged=staged)
    assert ran == [f"compact {NAME}", f"rewrite-manifests {NAME}"]
    assert not ended.failed and ended.state is RunState.DONE
    assert "expire: paused Mon–Fri 09:00–17:00 UTC ([budgets] pause_expiry); purge: paused" in ended.reason
    slots = {each.slot: each for each in pass_.standings(ended, None, lw.config.worker)}
    book, tracked = ScheduleSnapshot({NAME: slots}), TrackedTable(NAME, began - timedelta(days=1), jobs)
    rules = ScheduleRules(ScheduleConfig(interval_seconds=24 * 3600), budgets=lw.config.budgets)
    waits = decide([tracked], book, rules, ended.at).of(NAME)
    assert (
        isinstance(waits, WaitingTable)
        and waits.why is WaitReason.WINDOW
        and waits.jobs == (Job.EXPIRE, Job.PURGE)
    )
    assert waits.next_at == began.replace(hour=17, minute=0)
    due = decide([tracked], book, rules, waits.next_at).of(NAME)
    assert isinstance(due, DueTable) and due.jobs == (Job.EXPIRE, Job.PURGE)


def test_a_window_that_begins_during_a_purge_keeps_that_of_the_cold_table_out(lw: Lakewarden) -> None:
    lw.config = lw.config.model_copy(update={"budgets": BudgetsConfig(pause_expiry=("09:00-17:00",))})
    began = datetime(2026, 3, 3, 8, 59, tzinfo=UTC)
    ended, ran = turned(lw, Pass(NAME, (Job.PURGE,)), began, Job.PURGE, "lake.db.cold")
    assert ran == [f"purge {NAME}"]
    before = TableSchedule(NAME, PASS, began, began, "failed", "purge: no", 9)
    slots = {each.slot: each for each in pass_.standings(ended, before, lw.config.worker)}
    assert (slots["purge"].state, slots["purge"].retry_at) == ("skipped", ended.at)
    assert slots[PASS].failures == 9, "what was not begun has not done better than before"


@pytest.mark.parametrize("state", [RunState.NOTHING_TO_DO, RunState.PARTIAL])
def test_a_compaction_that_a_window_cut_short_is_owed(lw: Lakewarden, state: RunState) -> None:
    """While it planned, or in the middle: it ends as one that had nothing, or not all, to do."""
    lw.config = lw.config.model_copy(update={"budgets": BudgetsConfig(pause_compaction=("09:00-17:00",))})
    began = datetime(2026, 3, 3, 8, 59, tzinfo=UTC)
    for hour, owed in ((8, True), (5, False)):
        ended, _ = turned(lw, Pass(NAME, (Job.COMPACT,)), began.replace(hour=hour), Job.COMPACT, state=state)
        slots = {each.slot: each for each in pass_.standings(ended, None, lw.config.worker)}
        assert slots["compact"].retry_at == (ended.at if owed else None)


def test_a_window_that_begins_in_the_middle_keeps_compaction_owed_and_nothing_out_that_was_asked_for(
    lw: Lakewarden,
) -> None:
    windows = ("09:00-17:00",)
    lw.config = lw.config.model_copy(
        update={"budgets": BudgetsConfig(pause_compaction=windows, pause_expiry=windows)}
    )
    began = datetime(2026, 3, 3, 8, 59, tzinfo=UTC)
    jobs = (Job.EXPIRE_PARTITIONS, Job.COMPACT, Job.REWRITE_MANIFESTS, Job.EXPIRE, Job.PURGE)
    ended, ran = turned(lw, Pass(NAME, jobs), began, Job.EXPIRE_PARTITIONS)
    assert ran == [f"expire-partitions {NAME}", f"rewrite-manifests {NAME}"]
    slots = {each.slot: each for each in pass_.standings(ended, None, lw.config.worker)}
    assert slots["compact"].retry_at == ended.at and "pause_compaction" in slots["compact"].reason
    asked = lw.schedule.request(NAME, Trigger("manual", "ana"))
    _, ran = turned(lw, Pass(NAME, jobs, request=asked), began, Job.EXPIRE_PARTITIONS, "lake.db.cold")
    assert ran == [*(f"{job} {NAME}" for job in jobs), "purge lake.db.cold"]


def test_a_spark_that_cannot_be_started_is_tried_again_from_the_beginning(tmp_path: Path) -> None:
    """Whatever it says: a JVM that died while its session began tells of sockets, and nothing may be built upon it."""

    class Failing(Connections):
        reopened = 0

        @property
        def lake(self) -> Any:
            raise ConnectionRefusedError("no JVM answers")

        def reopen_lake(self) -> None:
            self.reopened += 1

    with opened(Failing, {"state": {"url": f"sqlite:///{tmp_path}/state.db"}}) as lw:
        failing = cast(Failing, lw.connections)
        worker = Worker(lw)
        assert not worker._ready()
        wait_until(lambda: not worker._session.starting, "it has failed", 30)
        assert failing.reopened == 1
        assert not worker._ready() and not worker._session.starting, "not at every look"
        with patch("lakewarden.worker.spark_session._RETRY_SECONDS", 0.0):
            assert not worker._ready()
        wait_until(lambda: failing.reopened == 2, "it is tried again", 30)


def opened(kind: type[Connections], config: Any) -> Lakewarden:
    """Lakewarden with these connections."""
    with patch("lakewarden.client.Connections", kind):
        return Lakewarden(config, environ={})


class _NoJava(Connections):
    @property
    def lake(self) -> Any:
        raise NotSetUp(what="Spark", reason="there is no Java")


class _WithSpark(Connections):
    has_lake = True
    lake_lives = True


def test_a_leader_that_cannot_start_spark_leaves_the_lease_to_one_that_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"state": {"url": f"sqlite:///{tmp_path}/state.db"}, "worker": QUICK}

    def said(event: str) -> list[str]:
        return [each.getMessage() for each in caplog.records if getattr(each, "event", "") == event]

    with (
        caplog.at_level("INFO", "lakewarden.worker"),
        patch("lakewarden.worker.spark_session.PATIENCE_SECONDS", 1.0),
        patch.object(Worker, "_discover", lambda self, over: None),
        opened(_NoJava, config) as poor,
        opened(_WithSpark, config) as rich,
        working(poor) as without,
    ):
        wait_until(lambda: without.leading, "it leads", 30)
        with working(rich) as healthy:
            wait_until(lambda: healthy.leading, "the standby leads", 60)
            assert not without.leading
            (why,) = said("leading-no-more")
            assert "it has had no Spark for 1 seconds" in why and "there is no Java" in why
        wait_until(lambda: without.leading, "nobody else is there: it goes on trying", 60)
    assert len(said("spark-not-ready")) == 1


def test_a_worker_ends_at_once_while_spark_starts(tmp_path: Path) -> None:
    """A start on a cluster that does not answer hangs for as long as that lasts."""
    begun, answer = threading.Event(), threading.Event()

    class Hanging(Connections):
        reopened = 0

        @property
        def lake(self) -> Any:
            begun.set()
            assert answer.wait(120)
            return None

        def reopen_lake(self) -> None:
            self.reopened += 1

    config = {"state": {"url": f"sqlite:///{tmp_path}/state.db"}, "worker": QUICK}
    with opened(Hanging, config) as lw:
        with working(lw) as worker:
            assert begun.wait(30)
        assert not answer.is_set() and not worker.busy(), "it has ended, and waits for nothing"
        leader = lw.schedule.leader()
        assert leader is not None and not leader.live, "the lease is let go"
        answer.set()
        hanging = cast(Hanging, lw.connections)
        wait_until(lambda: hanging.reopened == 1, "what came of the start is let go", 30)


def test_a_chore_hears_that_the_worker_leaves_and_is_waited_for(lw: Lakewarden) -> None:
    """Else it goes on over a Spark that is being stopped, and writes down every table as unreadable."""
    begun, heard = threading.Event(), threading.Event()

    def look(over: Callable[[], bool]) -> None:
        begun.set()
        wait_until(over, "it should end", 30)
        heard.set()

    with (
        patch.object(Connections, "has_lake", True),
        patch.object(Connections, "lake_lives", True),
        working(lw, chores=[PeriodicTask("health", 3600.0, look)]) as worker,
    ):
        assert begun.wait(30) and worker.busy() and not heard.is_set()
    assert heard.is_set() and not worker.busy()


def test_a_jvm_that_stands_still_holds_nobody_up_and_is_ended(tmp_path: Path) -> None:
    """What waits for its answers would wait for ever, and the loop with it, deaf to SIGTERM."""
    answer, ended, asked = threading.Event(), list[bool](), list[bool]()

    def stuck(_: Any) -> bool:
        asked.append(True)
        return answer.wait(60)

    with (
        Lakewarden({"state": {"url": f"sqlite:///{tmp_path}/state.db"}}, environ={}) as lw,
        patch.object(Connections, "has_lake", True),
        patch.object(Connections, "lake_lives", property(stuck)),
        patch("lakewarden.worker.spark_session.end_jvm", lambda: ended.append(True)),
        patch.object(Worker, "busy", lambda self: True),
    ):
        worker = Worker(lw)
        assert worker._ready() and not ended, "it may be at its garbage"
        with patch.object(worker._session._pulse, "_patience", 0.0):
            assert not worker._ready() and ended == [True]
        assert len(asked) == 1, "one question at a time"
        answer.set()
        wait_until(worker._ready, "it answers again", 10)


class _DeadSpark(Connections):
    """Its JVM is gone, and says so to every thread that comes to it."""

    let_go = 0

    @property
    def has_lake(self) -> bool:
        return not self.let_go

    @property
    def lake(self) -> Any:
        raise ConnectionRefusedError("no JVM answers")

    def revive_lake(self) -> None:
        self.let_go += 1

    reopen_lake = revive_lake


def let_go(lw: Lakewarden) -> int:
    return cast(_DeadSpark, lw.connections).let_go


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Lakewarden]:
    config = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "worker": {**QUICK, "lease_seconds": 30},
        "catalogs": {"lake": {"type": "hadoop", "warehouse": str(tmp_path)}},
        "console": {"port": free_port()},
    }
    with opened(_DeadSpark, config) as made:
        yield made


@contextmanager
def another_leads(lw: Lakewarden) -> Iterator[None]:
    leases = Leases(lw.state)
    taken = leases.take(Owner("elsewhere", 1, 1.0), timedelta(hours=1))
    assert taken is not None
    yield
    leases.release(taken)


def test_a_standbys_spark_that_died_makes_way_when_its_console_needs_one(dead: Lakewarden) -> None:
    worker: Worker
    _, attendants, address = company(dead, lambda: worker.revive_spark())
    worker = Worker(dead, (), attendants, address)
    with another_leads(dead), running(worker):
        wait_until(lambda: answers(dead.config.console.port), "its console answers", 30)
        httpx.get(f"{address}/api/v1/tables/{NAME}/show")
        assert let_go(dead) == 1 and not worker.leading
        httpx.get(f"{address}/api/v1/tables/{NAME}/show")
        assert let_go(dead) == 1, "and not again, where there is none"


def test_a_spark_that_turns_or_a_leader_stand_on_is_left_to_the_loop(dead: Lakewarden) -> None:
    worker = Worker(dead)
    with patch.object(Worker, "busy", lambda self: True):
        worker.revive_spark()
    with patch.object(Worker, "leading", True):
        worker.revive_spark()
    with patch.object(Session, "starting", True):
        worker.revive_spark()
    assert let_go(dead) == 0
    worker.revive_spark()
    assert let_go(dead) == 1


def test_a_new_leader_sees_at_once_that_the_spark_of_its_console_died(dead: Lakewarden) -> None:
    worker = Worker(dead)
    with patch.object(Session, "_start"):
        assert not worker._ready()
    assert let_go(dead) == 1


def test_a_spark_that_somebody_starts_is_not_ended_for_one_that_died(tmp_path: Path) -> None:
    """A console finds its Spark dead, and before it lets go of it a new leader does, and starts another."""
    asked, opened, happened = threading.Event(), threading.Event(), list[str]()

    def is_dead(_: Any) -> bool:
        asked.set()
        opened.wait(0.5)  # the leader's has so long to come in between
        return False

    def opening(*_: Any) -> Any:
        happened.append("opened")
        opened.set()
        return SimpleNamespace(spark=None, attend=lambda: None, close=lambda: None)

    with (
        Lakewarden({"state": {"url": f"sqlite:///{tmp_path}/state.db"}}, environ={}) as lw,
        patch("lakewarden.lake.Lake", opening),
        patch("lakewarden.spark.session.is_alive", is_dead),
        patch("lakewarden.spark.session.abandon_session", lambda: happened.append("abandoned")),
    ):
        _ = lw.lake
        opened.clear()
        happened.clear()
        reviving = threading.Thread(target=lw.connections.revive_lake, daemon=True)
        reviving.start()
        assert asked.wait(30)
        lw.connections.reopen_lake()
        _ = lw.lake
        reviving.join(30)
        assert happened[-1] == "opened" and lw.connections.has_lake, happened


def test_a_name_that_was_only_asked_for_is_not_known_unless_it_is_suspended(lw: Lakewarden) -> None:
    """A pass that failed on a mistyped name would let the next who mistypes it suspend nothing, and not hear of it."""
    book, now = TableSchedules(lw.state), clock.now()
    book.put(TableSchedule("lake.db.evnets", PASS, now, now, "failed", "no such table", 1))
    with pytest.raises(NoSuchTable):
        lw.schedule.suspend("lake.db.evnets", "backfill", "ana")
    assert not lw.schedule.resume("lake.db.evnets") and [
        each.failures for each in book.of("lake.db.evnets")
    ] == [0]
    book.suspend(Suspension("lake.db.orders", now, "it failed ten times in a row", "worker"))
    assert lw.schedule.resume("lake.db.orders") and not lw.names.knows("lake.db.orders")
    book.put(TableSchedule(NAME, SEEN, now))
    assert lw.names.knows(NAME)


class _GoneLake:
    """Of a JVM that died before this thread first called it."""

    spark = None

    def attend(self) -> None:
        raise ConnectionRefusedError("no JVM answers")


def test_a_spark_that_died_before_its_first_question_is_not_taken_for_one_that_takes_its_time(
    tmp_path: Path,
) -> None:
    """Else turns begin on it for two minutes, and count as failures of their tables."""
    with Lakewarden({"state": {"url": f"sqlite:///{tmp_path}/state.db"}}, environ={}) as lw:
        lw.connections._lake = cast(Any, _GoneLake())
        with patch.object(Connections, "reopen_lake", lambda self: setattr(self, "_lake", None)):
            assert not lw.connections.lake_lives and not Worker(lw)._ready() and not lw.connections.has_lake


def test_a_question_that_fails_is_answered_and_the_next_is_asked() -> None:
    answers = [True, False]

    def ask() -> bool:
        if not answers:
            raise ConnectionRefusedError("no JVM answers")
        return answers.pop()

    pulse = SparkProbe(ask)
    assert [pulse.beats() for _ in range(4)] == [False, True, False, False]
    pulse.end()


def test_sessions_that_died_leave_no_thread_behind(tmp_path: Path) -> None:
    class Dying(Connections):
        has_lake, lake_lives, reopened = True, False, 0
        lake = None

        def reopen_lake(self) -> None:
            self.reopened += 1

    before = set(threading.enumerate())

    def left() -> list[str]:
        return [each.name for each in threading.enumerate() if each not in before]

    with opened(Dying, {"state": {"url": f"sqlite:///{tmp_path}/state.db"}}) as lw:
        dying, session = cast(Dying, lw.connections), Session(lw)
        while dying.reopened < 5:
            assert not session.ready(busy=lambda: False)
        session.leave()
        wait_until(lambda: "lakewarden-pulse" not in left(), "no pulse is left", 10)


def test_a_turn_that_lasts_too_long_is_told_once(lw: Lakewarden, caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def do(_: Any, turn: Pass, *rest: Any, **named: Any) -> PassResult:
        begun.set()
        assert go_on.wait(60)
        return outcome(turn, RunState.DONE)

    def said() -> int:
        return [getattr(each, "event", "") for each in caplog.records].count("pass-takes-long")

    lw.schedule.request(NAME, Trigger("manual", "ana"))
    with (
        patch.object(pass_, "do", do),
        patch("lakewarden.worker.daemon._LONG", timedelta(0)),
        working(lw) as worker,
    ):
        assert begun.wait(30)
        wait_until(lambda: said() == 1, "it is told", 30)
        worker._notice_ended()
        go_on.set()
    assert said() == 1
