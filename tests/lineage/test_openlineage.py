"""Every run is told as OpenLineage events, to a server and to a file, and nobody who listens holds it up."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lakewarden import Lakewarden, Run, RunState, Trigger, clock
from lakewarden.config.schema import LineageConfig
from lakewarden.errors import LineageRejected
from lakewarden.lineage import openlineage
from lakewarden.lineage.openlineage import Events, event_run_id
from lakewarden.state.process import current_owner
from tests.support.lab import Lab
from tests.support.ports import free_port


class Receiver:
    """What a server such as Marquez is sent."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.events.append((self.path, json.loads(body)))
                self.send_response(201)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/api/v1/lineage"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def listening(lab: Lab, tmp_path: Path, **lineage: str) -> Lakewarden:
    config = {"state": {"url": f"sqlite:///{tmp_path}/state.db"}, "lineage": lineage}
    return Lakewarden(config, spark=lab.spark, environ={})


@pytest.mark.main
def test_a_run_is_told_to_a_server_and_to_a_file(lab: Lab, tmp_path: Path, receiver: Receiver) -> None:
    table = lab.messy(files=6, days=1)
    file = tmp_path / "events.jsonl"
    with listening(
        lab,
        tmp_path,
        openlineage_url=receiver.url,
        openlineage_file=str(file),
        openlineage_namespace="upkeep",
    ) as lw:
        run = lw.run("compact", table, {"rewrite_min_input_files": 2})
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event for _, event in receiver.events] == told
    assert {path for path, _ in receiver.events} == {"/api/v1/lineage"}
    started, ended = told
    assert (started["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    assert started["run"]["runId"] == ended["run"]["runId"] == event_run_id(run.id)
    assert started["job"]["namespace"] == "upkeep" and started["job"]["name"] == f"compact.{table}"
    (read,), (wrote,) = started["inputs"], ended["outputs"]
    assert (
        (read["namespace"], read["name"]) == (wrote["namespace"], wrote["name"]) == (lab.catalog, "db.events")
    )
    assert read["facets"]["version"]["datasetVersion"] == str(run.plan["base_snapshot_id"])
    assert wrote["facets"]["version"]["datasetVersion"] == str(run.snapshot_ids[0])
    assert wrote["outputFacets"]["outputStatistics"]["fileCount"] == run.counters["files_added"]
    own = ended["run"]["facets"]["lakewarden"]
    assert own["runId"] == run.id and own["state"] == "done" and own["counters"] == dict(run.counters)
    assert own["trigger"]["type"] == run.trigger.type


def test_a_run_that_fails_says_why(lab: Lab, tmp_path: Path) -> None:
    table = lab.messy(files=4, days=1)
    file = tmp_path / "events.jsonl"
    with listening(lab, tmp_path, openlineage_file=str(file)) as lw:
        with pytest.raises(LineageRejected):
            lw.run("compact", table, {"rewrite_min_input_files": 2, "lineage_allowed_operations": ["append"]})
        nothing = lw.run("expire", table)
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["eventType"] for each in told] == ["START", "FAIL", "START", "COMPLETE"]
    assert "lineage.operation" in told[1]["run"]["facets"]["errorMessage"]["message"]
    assert told[3]["run"]["facets"]["lakewarden"]["state"] == nothing.state and not told[3]["outputs"]


def test_a_server_that_is_away_holds_nobody_up(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = lab.messy(files=4, days=1)
    with listening(
        lab, tmp_path, openlineage_url=f"http://127.0.0.1:{free_port()}", openlineage_file=str(tmp_path / "e")
    ) as lw:
        run = lw.run("compact", table, {"rewrite_min_input_files": 2})
    assert run.state == "done"
    assert "the OpenLineage event START" in caplog.text
    assert len((tmp_path / "e").read_text().splitlines()) == 2


def test_a_server_that_dawdles_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One byte at a time, for ever: no single wait is long enough for a time-out of the connection."""
    monkeypatch.setattr(openlineage, "_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def dawdle() -> None:
            connection, _ = server.accept()
            with connection:
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
                    if stop.wait(0.1):
                        return
                    connection.send(bytes([byte]))

        thread = threading.Thread(target=dawdle)
        thread.start()
        events = Events(LineageConfig(openlineage_url=f"http://127.0.0.1:{server.getsockname()[1]}"))
        run = Run(
            "r1",
            "lake.db.t",
            "compact",
            RunState.RUNNING,
            "",
            clock.now(),
            None,
            current_owner(),
            Trigger("schedule"),
        )
        began = time.monotonic()
        for _ in range(5):
            events.started(run)
        assert time.monotonic() - began < 2
        stop.set()
        thread.join()
    assert "the server is slow" in caplog.text
