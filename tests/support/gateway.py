"""A real gateway in a process of its own, in front of a real REST catalog, and a wire to cut between the two."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakewarden.config.schema import Config
from lakewarden.state.database import State
from tests.support.ports import answers, free_port, wait_until

CATALOG = "lake"
LINEAGE = {
    "writer.id": "etl",
    "writer.commit_hash": "1f0c9a3",
    "writer.invocation_id": "run-1",
    "lineage.operation": "append",
}


@dataclass
class Running:
    """`config` is what a Lakewarden beside it is opened with."""

    uri: str
    config: dict[str, Any]
    process: subprocess.Popen[bytes]

    @contextmanager
    def state(self) -> Iterator[State]:
        opened = State.open(Config.from_dict(self.config, {}).state.url)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def gateway(
    folder: Path,
    upstream: str,
    state_url: str | None = None,
    policy: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    catalog: str = CATALOG,
) -> Iterator[Running]:
    """Started on entering, stopped on leaving as an operator would: it answers what is on its way, and flushes its counts."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config: dict[str, Any] = {
        "state": {"url": state_url or f"sqlite:///{folder}/state.db"},
        "catalogs": {catalog: {"type": "rest", "uri": upstream}},
        "gateway": {"port": port, "catalog": catalog, **(settings or {})},
        "policy": dict(policy or {}),
    }
    path = folder / f"gateway-{port}.toml"
    path.write_text(_toml(config), "utf-8")
    with (folder / "gateway.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakewarden.cli", "--config", str(path), "gateway", "--json"],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: answers(port) or process.poll() is not None, "the gateway answers")
        assert process.poll() is None, (folder / "gateway.log").read_text("utf-8")
        scheme = "https" if "tls_key" in config["gateway"] else "http"
        yield Running(f"{scheme}://127.0.0.1:{port}", config, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _toml(config: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for section, values in config.items():
        if section == "catalogs":
            for name, properties in values.items():
                lines += [
                    f"[catalogs.{name}]",
                    *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in properties.items()),
                ]
        else:
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


@dataclass
class Wire:
    """Carries bytes between the gateway and the catalog. Once `cut_at` was seen in a request, the answer to it is lost.

    A request that has `hold_at` in it waits, undelivered, for `go_on`.
    """

    target: int
    port: int = field(default_factory=free_port)
    cut_at: bytes = b""
    was_cut: threading.Event = field(default_factory=threading.Event)
    hold_at: bytes = b""
    holding: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    carried: list[bytes] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()
            with suppress(OSError):
                while part := client.recv(1 << 16):
                    self.carried.append(part)
                    if self.cut_at and self.cut_at in part:
                        self.was_cut.set()
                    if self.hold_at and self.hold_at in part:
                        self.holding.set()
                        self.go_on.wait(30)
                    server.sendall(part)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        """From the moment of the cut: what the catalog answers is read, so it was carried out, and goes nowhere."""
        with suppress(OSError):
            while part := server.recv(1 << 16):
                if self.was_cut.is_set():
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(part)


@contextmanager
def wire(target: int) -> Iterator[Wire]:
    made = Wire(target)
    with socket.create_server(("127.0.0.1", made.port)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=made.carry, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield made
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
