"""The console through a real browser, over a real table: a pin that holds, and a run that is watched and stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from unittest.mock import patch

import pytest
from playwright.sync_api import Page, expect

from lakewarden.console.server import ConsoleServer
from lakewarden.errors import Stopped
from lakewarden.jobs.run_context import Stop
from lakewarden.model.hold import HoldKind
from lakewarden.model.run import Run, RunState
from tests.support.browser import chromium, page
from tests.support.lab import Lab

_LONG = 60_000


@pytest.fixture
def opened(lab: Lab) -> Iterator[Page]:
    server = ConsoleServer(lab.lw, port=0)
    try:
        with chromium() as browser, page(browser, server.start().address) as made:
            yield made
    finally:
        server.stop()


@contextmanager
def compacting(lab: Lab, table: str) -> Iterator[tuple[threading.Event, Future[Run]]]:
    """A compaction that stands before its commit until it is let go."""
    go = threading.Event()

    def wait() -> None:
        assert go.wait(120), "nobody let the run go"

    with lab.before_commit(wait), ThreadPoolExecutor(1) as threads:
        try:
            yield go, threads.submit(lab.lw.run, "compact", table)
        finally:
            go.set()


def test_a_pin_made_by_hand_holds(lab: Lab, opened: Page) -> None:
    table = lab.messy(files=3)
    lab.lw.health.look([table])
    opened.goto(f"/tables/{table}#holds")
    opened.get_by_text("Pin a snapshot").click()
    opened.get_by_label("For how long").fill("2h")
    opened.get_by_label("What for").fill("month end")
    opened.get_by_role("button", name="Pin", exact=True).click()
    expect(opened.locator("#holds")).to_contain_text("month end", timeout=_LONG)
    (held,) = [each for each in lab.lw.holds.of(table).holds if each.kind is HoldKind.PIN]
    assert (held.holder, held.purpose) == ("local", "month end")
    opened.goto("/holds")
    opened.get_by_role("button", name=f"Unpin {held.name}").click()
    expect(opened.locator("main")).not_to_contain_text("month end")
    assert not [each for each in lab.lw.holds.of(table).holds if each.kind is HoldKind.PIN]


@pytest.mark.main
def test_a_run_is_watched_from_beginning_to_end(lab: Lab, opened: Page) -> None:
    table = lab.messy(files=10)
    lab.lw.health.look([table])
    with compacting(lab, table) as (go, ended):
        opened.goto(f"/tables/{table}")
        link = opened.locator("#running a.mono")
        while not link.count():
            assert not ended.done(), ended.result()
            opened.reload()
        link.click()
        expect(opened.get_by_role("button", name="Cancel")).to_be_visible()
        expect(opened.locator("#run")).to_contain_text("10 → ")
        go.set()
        expect(opened.locator("#run .chip").first).to_have_text("done", timeout=_LONG)
        run = ended.result(60)
    expect(opened.locator("#run")).to_contain_text("committed")
    expect(opened.locator("#run")).to_contain_text(str(run.snapshot_ids[0]))


def test_a_run_is_stopped(lab: Lab, opened: Page) -> None:
    """It stands at its first commit while it is told; of its other groups none is committed any more."""
    table = lab.messy(files=12, days=4)
    lab.lw.health.look([table])
    before, heard, ask = lab.rows(table), threading.Event(), Stop.ask

    def hear(stop: Stop, reason: str) -> None:
        ask(stop, reason)
        heard.set()

    with patch.object(Stop, "ask", hear), compacting(lab, table) as (go, ended):
        opened.goto("/runs?state=running")
        link = opened.locator("#runs td.head a")
        while not link.count():
            assert not ended.done(), ended.result()
            opened.reload()
        link.click()
        opened.once("dialog", lambda said: said.accept())
        opened.get_by_role("button", name="Cancel").click()
        expect(opened.get_by_role("button", name="Stopping")).to_be_disabled()
        assert heard.wait(60)
        go.set()
        expect(opened.locator("#run .chip").first).to_have_text("interrupted", timeout=_LONG)
        with suppress(Stopped):
            ended.result(60)
    assert lab.lw.runs(table, 1)[0].state is RunState.INTERRUPTED
    assert lab.rows(table) == before
