"""Calls of the REST API that read and change a real table."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from lakewarden.console import queries
from lakewarden.console.server import ConsoleServer
from lakewarden.model.hold import HoldKind
from tests.support.lab import Lab

pytestmark = pytest.mark.main

API = "/api/v1"


@pytest.fixture
def client(lab: Lab) -> Iterator[httpx.Client]:
    server = ConsoleServer(lab.lw, port=0)
    try:
        with httpx.Client(base_url=server.start().address, timeout=300) as made:
            yield made
    finally:
        server.stop()


def test_what_needs_the_table_is_told(lab: Lab, client: httpx.Client) -> None:
    table = lab.messy(files=3)
    shown = client.get(f"{API}/tables/{table}/show").json()
    assert shown["table"] == table and shown["counters"]["data_files"] == 6
    assert {each["job"] for each in shown["due"]} >= {"compact", "expire"}
    assert client.get(f"{API}/tables/{table}/plan/compact").json()["job"] == "compact"
    assert client.get(f"{API}/tables/{table}/plan/nosuch").status_code == 400
    assert client.get(f"{API}/tables/{table}/cost").json()["table"] == table
    snapshot = shown["current_snapshot_id"]
    assert client.get(f"{API}/tables/{table}/where", params={"snapshot": snapshot}).json()["tier"] == "live"
    live = client.get(f"{API}/tables/{table}/history", params={"live": True}).json()
    assert live["counts"]["live"] == 3
    assert client.get(f"{API}/tables/{table}/history").json()["counts"]["live"] == 0
    assert client.get(f"{API}/tables/{table}_gone/show").status_code == 404


def test_a_pin_made_over_http_holds_and_is_taken_away(lab: Lab, client: httpx.Client) -> None:
    table = lab.messy(files=2)
    made = client.post(f"{API}/tables/{table}/pins", json={"purpose": "month end", "ttl": "2h"})
    assert made.status_code == 201, made.text
    (held,) = [each for each in lab.lw.holds.of(table).holds if each.kind is HoldKind.PIN]
    assert (held.name, held.holder, held.purpose) == (made.json()["pin"], "local", "month end")
    told = client.get(f"{API}/tables/{table}/holds").json()["holds"]
    assert [each["name"] for each in told if each["kind"] == "pin"] == [held.name]
    gone = client.post(f"{API}/tables/{table}/pins", json={"snapshot": 1})
    assert gone.status_code in (400, 403), gone.text
    assert client.request("DELETE", f"{API}/pins/{held.name}").json()["removed"] is True
    assert not [each for each in lab.lw.holds.of(table).holds if each.kind is HoldKind.PIN]
    outcomes = [(each.action, each.outcome) for each in queries.operator_actions(lab.lw)]
    assert outcomes == [("unpin", "done"), ("pin", "refused"), ("pin", "done")]


def test_what_expired_comes_back_over_http(lab: Lab, client: httpx.Client) -> None:
    table = lab.messy(files=4)
    lab.lw.run("compact", table)
    lab.lw.run("expire", table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    trashed = client.get(f"{API}/tables/{table}/trash").json()
    paths = [each["path"] for each in trashed["files"]]
    assert paths
    one = client.post(f"{API}/tables/{table}/restore", json={"path": paths[0]})
    assert (one.status_code, one.json()["restored"]) == (200, 1)
    rest = client.post(f"{API}/tables/{table}/restore", json={"everything": True}).json()
    assert rest["restored"] == len(paths) - 1
    assert client.get(f"{API}/tables/{table}/trash").json()["files"] == []
