"""The console's server: where it listens, what it refuses to, HTTPS, and how it ends."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from lakewarden import Lakewarden
from lakewarden.console.server import ConsoleServer
from lakewarden.errors import ConfigError, UsageError
from tests.support.console import OPERATE, READ, console, see
from tests.support.ports import answers, free_port, wait_until

pytestmark = [pytest.mark.services, pytest.mark.main]


def warden(folder: Path, **settings: object) -> Lakewarden:
    return Lakewarden({"state": {"url": f"sqlite:///{folder}/state.db"}, "console": settings}, environ={})


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "lake.example.com"])
def test_without_tokens_it_listens_to_nobody_else(tmp_path: Path, host: str) -> None:
    with warden(tmp_path) as lake, pytest.raises(ConfigError, match="no tokens are configured") as told:
        ConsoleServer(lake, host=host, port=0)
    assert "read_tokens" in told.value.hint


def test_beyond_the_loopback_probes_ask_for_a_token(tmp_path: Path) -> None:
    with console(tmp_path, host="0.0.0.0", metrics=lambda: b"up 1\n") as running:
        local = running.address.replace("0.0.0.0", "127.0.0.1")
        for path in ("/health", "/metrics"):
            assert httpx.get(local + path).status_code == 401
            assert httpx.get(local + path, headers={"Authorization": f"Bearer {READ}"}).status_code == 200


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with console(tmp_path) as running, warden(tmp_path) as other:
        port = httpx.URL(running.address).port
        with pytest.raises(UsageError, match=f"port {port}"):
            ConsoleServer(other, port=port).start()


def test_a_certificate_without_its_key_is_told_before_it_listens(tmp_path: Path) -> None:
    with (
        warden(tmp_path, tls_certificate=str(tmp_path / "c.pem")) as lake,
        pytest.raises(ConfigError, match="tls_key"),
    ):
        ConsoleServer(lake, port=0)


def test_https_and_a_cookie_for_https_only(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(made.split(), check=True, capture_output=True)
    with (
        console(tmp_path, tls_certificate=str(certificate), tls_key=str(key)) as running,
        httpx.Client(
            base_url=running.address, verify=ssl.create_default_context(cafile=certificate)
        ) as client,
    ):
        assert running.address.startswith("https://")
        answer = client.post("/login", data={"token": OPERATE}, headers={"Origin": running.address})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-lakewarden=") and "; Secure" in cookie
        assert "max-age" in answer.headers["strict-transport-security"]
        assert client.get("/api/v1/me").json()["name"] == "ana"


def test_stopping_answers_what_is_under_way_and_lets_go_of_the_port(tmp_path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()

    def metrics() -> bytes:
        began.set()
        assert go_on.wait(30)
        return b"up 1\n"

    with warden(tmp_path) as lake:
        server = ConsoleServer(lake, metrics=metrics, port=0)
        address = server.start().address
        found: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: found.append(httpx.get(f"{address}/metrics", timeout=60)))
        asking.start()
        assert began.wait(30)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        port = httpx.URL(address).port
        assert port
        wait_until(lambda: not answers(port), "nobody new is let in")
        go_on.set()
        asking.join(30)
        stopping.join(30)
        assert [each.text for each in found] == ["up 1\n"]
        server.stop()  # twice is once


def test_it_starts_again_after_it_was_stopped(tmp_path: Path) -> None:
    with warden(tmp_path) as lake:
        for _ in range(2):
            server = ConsoleServer(lake, port=0)
            address = server.start().address
            assert httpx.get(f"{address}/health").status_code == 200
            server.stop()


def test_the_command_says_where_it_listens_and_ends_at_a_signal(tmp_path: Path) -> None:
    file, port = tmp_path / "lakewarden.toml", free_port()
    file.write_text(f'[state]\nurl = "sqlite:///{tmp_path}/state.db"\n[console]\nport = {port}\n', "utf-8")
    command = [sys.executable, "-m", "lakewarden.cli", "--config", str(file), "console", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = ""
        while not told.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "it ended"
            told += line
        address = json.loads(told)["address"]
        assert address == f"http://127.0.0.1:{port}" and json.loads(told)["tokens"] is False
        assert httpx.get(f"{address}/health").json()["status"] == "ok"
        assert httpx.get(f"{address}/api/v1/tables").json() == {"tables": []}
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)


def test_a_slow_call_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Handlers run on threads: one that waits does not stop the loop."""
    go_on = threading.Event()

    def metrics() -> bytes:
        assert go_on.wait(60)
        return b""

    with console(tmp_path, metrics=metrics) as running, running.client(READ) as client:
        see(running.warden)
        waiting = [
            threading.Thread(target=lambda: httpx.get(f"{running.address}/metrics", timeout=90))
            for _ in range(8)
        ]
        for each in waiting:
            each.start()
        assert client.get("/api/v1/tables").status_code == 200
        go_on.set()
        for each in waiting:
            each.join(60)
