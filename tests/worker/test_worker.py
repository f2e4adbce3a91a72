"""A worker over real tables: passes on schedule and on request, failures, suspension, cancel, draining."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from playwright.sync_api import Page, expect
from pyspark.sql import SparkSession

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.console.server import ConsoleServer
from lakewarden.jobs import runner as dispatch
from lakewarden.model.run import Job, RunState, Trigger
from lakewarden.rewrite.arrow import ArrowEngine
from lakewarden.state.process import current_owner
from lakewarden.state.requests import RequestState
from lakewarden.tables.iceberg.rewrite import IcebergRewrites
from lakewarden.worker.schedule_view import current_decision
from tests.support.browser import chromium, page
from tests.support.lab import Lab
from tests.support.ports import wait_until
from tests.support.spark import add_catalog
from tests.support.workers import passed, slot, with_worker, working

HOURLY = {"mode": "interval", "interval_seconds": 3600}


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """In a session of its own: the worker asks every catalog of its session."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    url = f"sqlite:///{tmp_path}/state.db"
    policy = {"rewrite_min_input_files": 2}
    with with_worker(
        alone, url, catalog, schedule=HOURLY, policy=policy, worker={"retry_max_seconds": 1}
    ) as lw:
        yield Lab(alone, catalog, tmp_path / "warehouse", lw)


@pytest.mark.main
def test_a_pass_on_schedule_then_one_on_request(lab: Lab) -> None:
    table = lab.messy(files=6, days=2)
    rows = lab.rows(table)
    with working(lab.lw):
        first = passed(lab.lw, table)
        assert (first.state, first.failures) == ("done", 0)
        assert len(lab.data_files(table)) == 2 and lab.rows(table) == rows
        runs = lab.lw.runs(table)
        # What had nothing to do is in the book and not in the journal.
        assert [run.job for run in runs] == ["compact"]
        assert runs[0].trigger.type == "schedule" and runs[0].lease_term == 1
        assert slot(lab.lw, table, "expire").state == "nothing-to-do"  # type: ignore[union-attr]

    asked = lab.lw.schedule.request(table, Trigger("manual", "ana", "OPS-1"))
    assert lab.lw.schedule.request(table, Trigger("manual", "bo")).id == asked.id
    with working(lab.lw):
        wait_until(lambda: lab.lw.schedule.request_by_id(asked.id).ended, "the request is done", 90)
        done = lab.lw.schedule.request_by_id(asked.id)
        assert done.state is RequestState.DONE and done.reason == "there was nothing to do"
        # Journaled even though there was nothing to do, and by who asked last.
        found = {run.id: run for run in lab.lw.runs(table)}
        assert len(done.run_ids) >= 5
        assert {found[each].trigger.operator for each in done.run_ids} == {"bo"}
        assert {found[each].state for each in done.run_ids} == {RunState.NOTHING_TO_DO}
    leader = lab.lw.schedule.leader()
    assert leader is not None and not leader.live, "it let go of its lease"


def test_a_table_that_fails_ten_times_is_suspended_and_resumed_on_its_page(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)

    def broken(*_: Any) -> Any:
        raise OSError("the disk says no")

    with patch.object(ArrowEngine, "write", broken), working(lab.lw):
        wait_until(lambda: table in lab.lw.schedule.suspended(), "the table is suspended", 120)
        held = lab.lw.schedule.suspended()[table]
        assert held.by == "worker" and "failed 10 times in a row" in held.reason
        assert "the disk says no" in held.reason and f"`lakewarden resume {table}`" in held.reason
        told = current_decision(lab.lw, clock.now()).of(table)
        assert told is not None and "suspended" in told.reason and "lakewarden resume" in told.reason
        assert sum(run.state is RunState.FAILED for run in lab.lw.runs(table)) == 10
        other = slot(lab.lw, table, "purge")
        assert other is not None and other.state == "nothing-to-do", "the others went on"
    with console_page(lab.lw) as opened:
        opened.goto(f"/tables/{table}")
        expect(opened.locator("main")).to_contain_text("failed 10 times in a row")
        expect(opened.locator("main")).to_contain_text("the disk says no")
        opened.get_by_role("button", name="Resume").click()
        expect(opened.get_by_text("Suspend it")).to_be_visible()
    assert not lab.lw.schedule.suspended()
    with working(lab.lw):
        wait_until(lambda: len(lab.data_files(table)) == 1, "it is compacted", 90)
        wait_until(lambda: _failures(lab.lw, table) == 0, "its failures are forgotten", 30)


def test_a_mount_that_is_gone_is_told_as_that_and_when_it_is_back_the_table_is_worked_on(
    lab: Lab, tmp_path: Path
) -> None:
    table = lab.messy(files=4, days=1)
    lab.lw.view(table)
    lab.warehouse.rename(tmp_path / "away")
    lab.lw.schedule.request(table, Trigger("manual", "ana"))
    with working(lab.lw):
        wait_until(lambda: _failures(lab.lw, table) > 0, "it was tried", 90)
        found = slot(lab.lw, table)
        assert found is not None and f"its warehouse {lab.warehouse} does not exist" in found.reason
        (tmp_path / "away").rename(lab.warehouse)
        lab.lw.schedule.request(table, Trigger("manual", "ana"))
        wait_until(lambda: len(lab.data_files(table)) == 1, "it is compacted", 90)


def test_a_run_that_somebody_began_by_hand_meanwhile_keeps_nothing_else_of_a_request_undone(lab: Lab) -> None:
    table, journal, real = lab.messy(files=4, days=1), lab.lw.journal, dispatch.prepare
    by_hand = replace(current_owner(), pid=1, started=psutil.Process(1).create_time())

    def prepare(job: Job, *rest: Any) -> Any:
        if job is Job.COMPACT and journal.get("theirs") is None:
            journal.start(
                run_id="theirs", table=table, job=job, owner=by_hand, trigger=Trigger("manual", "bo"),
                plan={}, policy={"keys": []}, now=clock.now(),
            )  # fmt: skip
        return real(job, *rest)

    asked = lab.lw.schedule.request(table, Trigger("manual", "ana"))
    with patch.object(dispatch, "prepare", prepare), working(lab.lw):
        wait_until(lambda: lab.lw.schedule.request_by_id(asked.id).ended, "the request ends", 90)
        found = lab.lw.schedule.request_by_id(asked.id)
        assert "theirs" not in found.run_ids and "run theirs is in progress" in found.reason
        done = {lab.lw.run_by_id(each)[0].job for each in found.run_ids}
        assert {"rewrite-manifests", "expire", "purge"} <= done
        theirs = journal.get("theirs")
        assert theirs is not None and theirs.state is RunState.RUNNING, "theirs is left alone"
        journal.finish("theirs", RunState.NOTHING_TO_DO, "", {}, (), clock.now(), by_hand)
        wait_until(lambda: len(lab.data_files(table)) == 1, "what it kept out is owed, and done", 90)
        assert _failures(lab.lw, table) == 0


@contextmanager
def console_page(lw: Lakewarden) -> Iterator[Page]:
    server = ConsoleServer(lw, port=0)
    try:
        with chromium() as browser, page(browser, server.start().address) as made:
            yield made
    finally:
        server.stop()


def _failures(lw: Lakewarden, table: str) -> int:
    found = slot(lw, table)
    return -1 if found is None else found.failures


def held_up(lab: Lab) -> tuple[threading.Event, threading.Event, Any]:
    """A compaction that waits right before its commit: begun, and may go on."""
    begun, go_on = threading.Event(), threading.Event()
    real = ArrowEngine.write

    def write(self: ArrowEngine, order: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return real(self, order)

    return begun, go_on, patch.object(ArrowEngine, "write", write)


@pytest.mark.main
def test_a_drain_finishes_what_runs_and_starts_nothing(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    begun, go_on, slow = held_up(lab)
    with slow, working(lab.lw) as worker:
        assert begun.wait(90)
        worker.drain()
        asked = lab.lw.schedule.request(table)
        assert worker.at_work() == (table,)
        go_on.set()
        wait_until(lambda: not worker.leading, "it has left", 60)
    assert len(lab.data_files(table)) == 1
    ended = slot(lab.lw, table)
    assert ended is not None and ended.state == "done"
    assert lab.lw.schedule.request_by_id(asked.id).state is RequestState.PENDING


def test_an_abort_stops_a_run_cleanly_and_the_next_worker_goes_on(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    rows = lab.rows(table)
    begun, go_on, slow = held_up(lab)
    with slow, working(lab.lw) as worker:
        asked = lab.lw.schedule.request(table)
        assert begun.wait(90)
        worker.abort()
        go_on.set()
        wait_until(lambda: not worker.leading, "it has left", 60)
    (run,) = [each for each in lab.lw.runs(table) if each.job == "compact"]
    assert run.state is RunState.INTERRUPTED and "the worker is shutting down" in run.reason
    assert lab.strays(table) == set()
    with working(lab.lw):
        wait_until(lambda: len(lab.data_files(table)) == 1, "the next one finishes", 90)
        wait_until(lambda: lab.lw.schedule.request_by_id(asked.id).ended, "and the request with it", 60)
    assert lab.rows(table) == rows
    assert slot(lab.lw, table).failures == 0  # type: ignore[union-attr]


@pytest.mark.main
def test_an_operator_cancels_a_run_from_another_process(lab: Lab) -> None:
    """The run is by hand here: a cancel reaches those too."""
    table = lab.messy(files=4, days=1)
    begun, go_on, slow = held_up(lab)
    ended: list[Any] = []
    with slow:
        thread = threading.Thread(target=lambda: ended.append(lab.lw.run("compact", table)))
        thread.start()
        assert begun.wait(60)
        (run,) = lab.lw.runs(table)
        wait_until(lambda: lab.lw.schedule.progress_of(run.id) is not None, "it tells how far it is", 30)
        moment = lab.lw.schedule.progress_of(run.id)
        assert moment is not None and moment.what == f"compact {table}" and moment.total_bytes > 0
        lab.lw.schedule.cancel(run.id, "ana")
        # The engine is cancelled once a second; nothing of it is under way while the test holds it.
        threading.Timer(2.5, go_on.set).start()
        thread.join(60)
    assert ended[0].state is RunState.INTERRUPTED and "cancelled by ana" in ended[0].reason
    assert len(lab.data_files(table)) == 4 and lab.strays(table) == set()
    with pytest.raises(Exception, match="it ended as interrupted"):
        lab.lw.schedule.cancel(run.id, "ana")


@pytest.mark.main
def test_a_stale_leader_cannot_commit(lab: Lab) -> None:
    """It stood still right before its commit; another leads since."""
    from datetime import timedelta

    from lakewarden.state.locks import Leases
    from lakewarden.state.process import current_owner

    table = lab.messy(files=4, days=1)
    leases = Leases(lab.lw.state)
    first = leases.take(current_owner(), timedelta(seconds=60))
    assert first is not None

    def another_leads() -> None:
        leases.release(first)
        assert leases.take(current_owner(), timedelta(seconds=60)) is not None

    real = IcebergRewrites.prepare_rewrite

    def prepare(self: IcebergRewrites, rewrite: Any) -> None:
        real(self, rewrite)
        another_leads()

    with (
        patch.object(IcebergRewrites, "prepare_rewrite", prepare),
        pytest.raises(Exception, match="this run has term"),
    ):
        lab.lw.run("compact", table, lease_term=first.term)
    assert len(lab.data_files(table)) == 4, "nothing was committed"
    (run,) = lab.lw.runs(table)
    assert run.state is RunState.RUNNING
    # The new leader need not wait for a minute of silence, although the process is alive.
    again = lab.lw.run("compact", table, lease_term=first.term + 1)
    assert again.state is RunState.DONE and lab.lw.run_by_id(run.id)[0].state is RunState.FAILED
    assert lab.strays(table) == set()


@pytest.mark.main
def test_the_fence_is_asked_again_right_before_the_commit(lab: Lab) -> None:
    from datetime import timedelta

    from lakewarden.state.locks import Leases
    from lakewarden.state.process import current_owner
    from lakewarden.state.runs import Journal

    table = lab.messy(files=4, days=1)
    leases = Leases(lab.lw.state)
    first = leases.take(current_owner(), timedelta(seconds=60))
    assert first is not None
    real = Journal.step

    def step(self: Journal, run_id: str, owner: Any, name: str, *rest: Any) -> None:
        real(self, run_id, owner, name, *rest)
        if name == "committing":
            leases.release(first)
            leases.take(current_owner(), timedelta(seconds=60))

    with patch.object(Journal, "step", step), pytest.raises(Exception, match="this run has term"):
        lab.lw.run("compact", table, lease_term=first.term)
    assert len(lab.data_files(table)) == 4, "it was turned away after it had said that it would commit"
    assert lab.strays(table) == set(), "and removed what it had written"
