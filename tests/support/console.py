"""A real console on a real socket, and clients that behave as badly as clients do."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from lakewarden import Lakewarden, clock
from lakewarden.console import queries
from lakewarden.console.server import ConsoleServer
from lakewarden.model.run import RunState, Trigger
from lakewarden.state.audit_log import OperatorAction
from lakewarden.state.process import current_owner
from lakewarden.state.schema import seen_tables

OPERATE, READ = "operate-token-0123456789", "read-token-0123456789abc"
TABLE = "lake.db.events"
AT = datetime(2026, 11, 16, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Running:
    address: str
    warden: Lakewarden

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        shown = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.address, headers={**shown, **headers}, timeout=30)

    @contextmanager
    def browser(self, token: str = OPERATE) -> Iterator[httpx.Client]:
        """Logged in, and saying where its requests come from."""
        with self.client(Origin=self.address, Accept="text/html") as client:
            answer = client.post("/login", data={"token": token})
            assert answer.status_code == 303, answer.text
            yield client

    def refusals(self) -> list[OperatorAction]:
        return [each for each in queries.operator_actions(self.warden) if each.outcome == "refused"]

    @contextmanager
    def wire(self) -> Iterator[socket.socket]:
        """A connection for bytes that no client library would send."""
        place = urlsplit(self.address)
        assert place.hostname and place.port
        with socket.create_connection((place.hostname, place.port), timeout=30) as wire:
            yield wire


def said(wire: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    while part := wire.recv(65536):
        parts.append(part)
    return b"".join(parts)


@contextmanager
def console(
    folder: Path,
    *,
    tokens: bool = True,
    config: Mapping[str, Any] | None = None,
    metrics: Any = None,
    **settings: Any,
) -> Iterator[Running]:
    shown = {"read_tokens": [f"bob={READ}"], "operate_tokens": [f"ana={OPERATE}"]} if tokens else {}
    whole = {
        "state": {"url": f"sqlite:///{folder}/state.db"},
        "catalogs": {"lake": {"type": "hadoop", "warehouse": str(folder / "warehouse")}},
        **(config or {}),
        "console": {"port": 0, "requests_per_s": 10_000, **shown, **settings},
    }
    port = whole["console"].pop("port")
    with Lakewarden(whole, environ={}) as warden:
        server = ConsoleServer(warden, metrics=metrics, port=port)
        try:
            yield Running(server.start().address, warden)
        finally:
            server.stop()


def see(warden: Lakewarden, table: str = TABLE, **properties: str) -> None:
    """As if a command had read the table before."""
    row = {"table_name": table, "uuid": f"uuid-{table}", "properties": properties, "seen_at": clock.now()}
    with warden.state.write() as connection:
        connection.execute(seen_tables.insert().values(row))


def begin_run(warden: Lakewarden, table: str = TABLE, run_id: str = "run-1") -> str:
    """An open run in the journal, as another process would have it."""
    warden.journal.start(
        run_id=run_id, table=table, job="compact", owner=current_owner(), trigger=Trigger(), plan={}, policy={}, now=AT
    )  # fmt: skip
    return run_id


def end_run(warden: Lakewarden, run_id: str) -> None:
    warden.journal.finish(run_id, RunState.DONE, "", {}, (), AT)
