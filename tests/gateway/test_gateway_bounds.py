"""What a client can cost the gateway without having asked for anything: time, connections, memory, names. Each is bounded."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.support import tls
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


def counted(running: Running, reason: str, client: httpx.Client | None = None) -> float:
    lines = (client or httpx).get(f"{running.uri}/metrics").text.splitlines()
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


# ------------------------------------------------------------ before TLS


def test_connections_that_never_shake_hands_are_counted_and_cut_off(
    catalog: socket.socket, tmp_path: Path
) -> None:
    settings = tls.pair(tmp_path)
    limits = {"client_seconds": 3, "connections_per_address": MOST, **settings}
    upstream = f"http://127.0.0.1:{catalog.getsockname()[1]}"
    with (
        gateway(tmp_path, upstream, settings=limits) as running,
        tls.elsewhere(settings) as other,
        ExitStack() as stack,
    ):
        wires = [stack.enter_context(wire(running)) for _ in range(MOST + 20)]
        assert said(wires[-1]) == b"", "one too many ends at once"
        assert counted(running, "more connections than one address may have", other) >= 20
        assert [said(each) for each in wires] == [b""] * len(wires)
        slow = "the TLS handshake did not end in time"
        wait_until(lambda: counted(running, slow, other) == MOST, "the silent ones are counted")
        trusted = ssl.create_default_context(cafile=settings["tls_certificate"])
        assert httpx.get(f"{running.uri}/health", verify=trusted).status_code == 200, "there is room again"


def test_a_gateway_stops_while_clients_shake_hands(catalog: socket.socket, tmp_path: Path) -> None:
    settings = {"client_seconds": 60, **tls.pair(tmp_path)}
    upstream = f"http://127.0.0.1:{catalog.getsockname()[1]}"
    with ExitStack() as stack:
        with gateway(tmp_path, upstream, settings=settings) as running:
            silent = stack.enter_context(wire(running))
            silent.sendall(b"\x16\x03\x01")  # the first bytes of a handshake
        assert running.process.returncode == -signal.SIGTERM
    assert "Traceback" not in (tmp_path / "gateway.log").read_text("utf-8")


# ------------------------------------------------------------ a catalog that dribbles

TABLE = {
    "metadata": {
        "table-uuid": "11111111-1111-1111-1111-111111111111",
        "refs": {"main": {"type": "branch", "snapshot-id": 2}},
        "snapshots": [
            {"snapshot-id": each, "timestamp-ms": each, "summary": {"operation": "append"}} for each in (1, 2)
        ],
    }
}
REMOVAL = {"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": [1]}]}


@pytest.fixture(params=["head", "body"])
def dribbling(request: pytest.FixtureRequest) -> Iterator[str]:
    """A catalog that shows the table `t` at once. All else it answers byte by byte, and never to the end."""
    slow = b"X-Slow: " if request.param == "head" else b"Content-Length: 100000\r\n\r\n"

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += client.recv(65536)
            if asked.startswith(b"GET") and b"/tables/t?" in asked:
                body = json.dumps(TABLE).encode()
                head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
                client.sendall(head + body)
                return
            client.sendall(b"HTTP/1.1 200 OK\r\n" + slow)
            while not ended.wait(0.2):
                client.sendall(b"x")

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def test_a_catalog_that_dribbles_its_answer_holds_no_turn(dribbling: str, tmp_path: Path) -> None:
    with (
        gateway(tmp_path, dribbling, settings={"timeout_seconds": 1}) as running,
        httpx.Client(base_url=f"{running.uri}/v1", timeout=20) as client,
    ):
        began = time.monotonic()
        commit = client.post("/namespaces/db/tables/t", json=REMOVAL)
        assert time.monotonic() - began < 10
        assert (commit.status_code, commit.json()["error"]["type"]) == (500, "CommitStateUnknownException")
        look = client.post("/namespaces/db/tables/slow", json=REMOVAL)
        assert (look.status_code, look.json()["error"]["type"]) == (503, "ServiceUnavailableException")
        assert client.get("/config").status_code == 500
