"""What a client can cost the gateway without having asked for anything: time, connections, memory, names. Each is bounded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.support.console import said
from tests.support.gateway import Running, gateway
from tests.support.ports import wait_until

pytestmark = pytest.mark.services

COMMIT = b"POST /v1/namespaces/db/tables/t HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
PASSED = b"POST /v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
MOST = 5


@pytest.fixture(scope="module")
def catalog() -> Iterator[socket.socket]:
    """A catalog that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture(scope="module")
def running(catalog: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = {"client_seconds": 1, "connections_per_address": MOST}
    upstream = f"http://127.0.0.1:{catalog.getsockname()[1]}"
    with gateway(tmp_path_factory.mktemp("bounds"), upstream, settings=settings) as made:
        yield made


def wire(running: Running) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", int(running.uri.rpartition(":")[2])))
    made.settimeout(15)
    return made


def counted(running: Running, reason: str) -> float:
    lines = httpx.get(f"{running.uri}/metrics").text.splitlines()
    name = f'lakewarden_gateway_connections_cut_off_total{{reason="{reason}"}} '
    return sum(float(each.removeprefix(name)) for each in lines if each.startswith(name))


def test_headers_that_dribble_in_are_cut_off(running: Running) -> None:
    with wire(running) as slow, wire(running) as silent:
        slow.sendall(b"GET /v1/config HTTP/1.1\r\nHost: x\r\nX-")
        assert said(slow).startswith(b"HTTP/1.1 408")
        assert said(silent).startswith(b"HTTP/1.1 408")
    assert counted(running, "headers did not arrive in time") >= 2


@pytest.mark.parametrize("request_", [COMMIT, PASSED], ids=["commit", "passed on"])
def test_a_body_that_dribbles_in_is_cut_off(running: Running, request_: bytes) -> None:
    before = counted(running, "the body did not arrive in time")
    with wire(running) as slow:
        slow.sendall(request_)
        assert said(slow).startswith(b"HTTP/1.1 408")
    assert counted(running, "the body did not arrive in time") == before + 1


def test_one_address_has_so_many_connections(running: Running) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(wire(running)) for _ in range(MOST + 1)]
        assert said(wires[-1]).startswith(b"HTTP/1.1 429")
        wires[0].close()
        wait_until(lambda: httpx.get(f"{running.uri}/health").status_code == 200, "there is room again")
    assert counted(running, "more connections than one address may have") >= 1
