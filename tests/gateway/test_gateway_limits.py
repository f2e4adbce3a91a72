"""What the gateway keeps in memory for its clients does not grow with what they send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from lakewarden.gateway import metrics as counts
from lakewarden.gateway import server as bodies
from lakewarden.gateway.judge import Rule
from lakewarden.gateway.metrics import NEW, OTHER, Counts
from lakewarden.gateway.responses import EarlyResponse
from lakewarden.gateway.server import Bodies
from lakewarden.gateway.upstream import Upstream
from lakewarden.state.audit_log import Rejections
from lakewarden.state.database import State


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = State.open(f"sqlite:///{tmp_path}/state.db")
    yield opened
    opened.close()


def test_names_that_clients_send_are_bounded(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_MOST_TABLES", 2)
    made = Counts(state)
    for table in ("a", "A", "aA", "a", None, "AA"):
        made.refused(table, {Rule.LINEAGE}, "no")
    made.flush()
    assert {each.table: each.count for each in Rejections(state).list()} == {"a": 2, "A": 1, OTHER: 2, NEW: 1}
    assert b"aA" not in made.shown()


def test_what_cannot_be_counted_now_is_counted_later_whatever_went_wrong(state: State) -> None:
    made = Counts(state)
    made.refused("a", {Rule.LINEAGE}, "no")
    with patch.object(Rejections, "add", side_effect=RuntimeError("nobody foresaw it")):
        made.flush()
    made.flush()
    assert [(each.table, each.count) for each in Rejections(state).list()] == [("a", 1)]


def sent(*parts: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    left = list(parts)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    return receive


def status(made: Bodies, *parts: bytes) -> int:
    async def read() -> int:
        try:
            async with made.whole(sent(*parts)):
                return 200
        except EarlyResponse as ended:
            return ended.answer.status

    return asyncio.run(read())


def test_a_body_comes_within_its_time_and_all_of_them_within_their_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "MOST_BYTES", 100)
    made = Bodies(0.05)
    assert status(made, b"x" * 10) == 408
    assert status(made, b"x" * 60, b"x" * 60) == 503
    assert status(made, b"x" * 90) == 408, "what was held is let go of"


async def dribble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b" ")
        await asyncio.sleep(0.1)


def test_a_catalog_has_its_time_for_the_whole_answer() -> None:
    async def ask() -> None:
        async with await asyncio.start_server(dribble, "127.0.0.1", 0) as server:
            upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 1)
            try:
                async with asyncio.timeout(10):
                    with pytest.raises(httpx.ReadTimeout, match="not all of the answer"):
                        await upstream.whole("POST", b"/v1/x", [(b"host", b"x")], b"{}")
                    with pytest.raises(httpx.ReadTimeout, match="not all of the answer"):
                        await upstream.table(b"/v1/x", [(b"host", b"x")])
            finally:
                await upstream.close()

    asyncio.run(ask())
