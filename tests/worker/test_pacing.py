"""Budgets, quiet windows and back-off around real runs. Rates, not seconds, are what is asserted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lakewarden import Lakewarden
from lakewarden.jobs import quiet_windows as pauses
from lakewarden.model.run import Run, RunState
from tests.support.lab import Lab

SCHEDULE = {"type": "schedule"}
MANUAL = {"type": "manual", "operator": "ana"}


def run(
    lab: Lab,
    table: str,
    budgets: dict[str, Any],
    trigger: dict[str, str] = MANUAL,
    task_memory_mb: int = 512,
    **policy: object,
) -> Run:
    config = {
        "state": {"url": str(lab.lw.config.state.url)},
        "budgets": budgets,
        "engine": {"task_memory_mb": task_memory_mb},
    }
    with Lakewarden(config, spark=lab.spark, environ={}) as lw:
        return lw.run("compact", table, policy=policy, trigger=trigger)


@pytest.fixture
def wide(lab: Lab) -> str:
    """A few megabytes that do not compress."""
    table = lab.create("id bigint, noise binary, d date", "d", **{"write.distribution-mode": "none"})
    noise = "unhex(concat_ws('', transform(sequence(1, 32), n -> sha2(concat(id, '-', n), 256))))"
    for first in range(0, 4000, 500):
        lab.sql(
            f"insert into {table} select id, {noise}, date_add(date'2024-03-01', cast(id % 2 as int)) "
            f"from range({first}, {first + 500}, 1, 1)"
        )
    return table


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_budget_holds_over_the_whole_run(lab: Lab, wide: str, tasks: int) -> None:
    before = lab.rows(wide)
    done = run(lab, wide, {"read_mb_per_s": 2, "max_tasks": tasks})
    assert done.state is RunState.DONE, done.reason
    assert done.counters["throttled_seconds"] > 0
    assert 0 < done.counters["read_mb_per_s"] <= 2 * 1.05
    assert lab.rows(wide) == before
    assert lab.strays(wide) == set()


def test_ordering_rows_keeps_to_the_budget_too(lab: Lab, wide: str) -> None:
    done = run(lab, wide, {"write_mb_per_s": 3}, rewrite_strategy="sort", rewrite_sort_columns="id desc")
    assert done.state is RunState.DONE, done.reason
    assert 0 < done.counters["write_mb_per_s"] <= 3 * 1.05


def test_rows_that_go_from_task_to_task_keep_to_the_budget_too(lab: Lab, wide: str) -> None:
    before = lab.rows(wide)
    order = {
        "rewrite_strategy": "sort",
        "rewrite_sort_columns": "id desc",
        "rewrite_where": "d = date'2024-03-01'",
    }
    done = run(lab, wide, {"read_mb_per_s": 1}, task_memory_mb=1, **order)
    assert done.state is RunState.DONE, done.reason
    assert done.counters["groups_exchanged"] == 1
    assert done.counters["throttled_seconds"] > 1
    assert 0 < done.counters["read_mb_per_s"] <= 1.05
    assert lab.rows(wide) == before
    assert lab.strays(wide) == set()


@pytest.mark.main
def test_a_scheduled_run_waits_for_its_window_and_a_manual_one_does_not(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    always = {"pause_compaction": ["00:00-24:00"]}
    waiting = run(lab, table, always, SCHEDULE)
    assert waiting.state is RunState.NOTHING_TO_DO
    assert "pause_compaction" in waiting.reason
    assert run(lab, table, always).state is RunState.DONE


def test_a_window_that_begins_lets_groups_in_flight_finish(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.messy(files=8, days=4)
    before = lab.rows(table)
    started = []

    def check(self: pauses.Windows, now: Any) -> None:
        """Asked when a unit is handed in, and again when its first task is about to start: the second may start no more."""
        if threading.current_thread().name.startswith("lakewarden-lane"):
            started.append(now)
            if len(started) > 1:
                raise pauses.Paused("paused now ([budgets] pause_compaction)")

    monkeypatch.setattr(pauses.Windows, "check", check)
    done = run(lab, table, {"max_tasks": 1, "pause_compaction": ["00:00-00:01"]}, SCHEDULE)
    assert done.state is RunState.PARTIAL, done.reason
    assert "paused now" in done.reason
    assert done.counters["groups_done"] == 1
    assert lab.rows(table) == before
    assert lab.strays(table) == set()
    monkeypatch.undo()
    assert run(lab, table, {}).state is RunState.DONE


@contextmanager
def latency(values: list[float]) -> Iterator[str]:
    """A server that answers as Prometheus does: these values, one after the other, the last for ever."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            value = values.pop(0) if len(values) > 1 else values[0]
            body = {"status": "success", "data": {"resultType": "scalar", "result": [1, str(value)]}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def test_slow_queries_make_a_run_wait(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    with latency([9.0, 9.0, 0.1]) as url:
        settings = {
            "backoff_url": url,
            "backoff_query": "p99",
            "backoff_above": 1.0,
            "backoff_poll_seconds": 1,
        }
        done = run(lab, table, settings)
    assert done.state is RunState.DONE, done.reason
    assert done.counters["backoff_seconds"] >= 1
