"""Runs as OpenTelemetry spans, at a real HTTP receiver; and a collector that is gone or stands still holds nothing up."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lakewarden import Lakewarden, clock
from lakewarden.model.run import Job, RunState, Trigger
from lakewarden.state.runs import current_owner
from tests.support.ports import free_port

pytestmark = pytest.mark.services

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
TABLE = "lake.db.events"


class Receiver:
    """What a collector is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                plain = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                request = ExportTraceServiceRequest.FromString(plain)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        receiver.spans.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def lakewarden(tmp_path: Path, port: int) -> Lakewarden:
    settings = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "health": {"traces_url": f"http://127.0.0.1:{port}/v1/traces"},
    }
    return Lakewarden(settings, environ={})


def one_run(lw: Lakewarden, run_id: str, state: RunState, reason: str = "") -> None:
    owner = current_owner()
    lw.journal.start(
        run_id=run_id, table=TABLE, job=Job.COMPACT, owner=owner, trigger=Trigger("manual", "ana"), plan={}, policy={}, now=NOW
    )  # fmt: skip
    lw.journal.step(run_id, owner, "committing", {"groups": [0]}, NOW + timedelta(seconds=1))
    counters = {"files_compacted": 8, "clustering": {}}
    lw.journal.finish(run_id, state, reason, counters, (7,), NOW + timedelta(seconds=2))


@pytest.mark.main
def test_each_run_is_a_span_with_its_steps(tmp_path: Path, receiver: Receiver) -> None:
    with lakewarden(tmp_path, receiver.server.server_port) as lw:
        one_run(lw, "r1", RunState.DONE)
        one_run(lw, "r2", RunState.FAILED, "the store is gone")
    well, badly = receiver.spans
    told = {each.key: each.value for each in well.attributes}
    assert well.name == f"compact {TABLE}"
    assert told["lakewarden.run_id"].string_value == "r1"
    assert told["lakewarden.state"].string_value == "done"
    assert told["lakewarden.trigger.operator"].string_value == "ana"
    assert told["lakewarden.counter.files_compacted"].int_value == 8
    assert [each.name for each in well.events] == ["committing"]
    assert well.end_time_unix_nano - well.start_time_unix_nano == 2_000_000_000
    assert (well.status.code, badly.status.code) == (1, 2)
    assert badly.status.message == "the store is gone"
    assert well.trace_id != badly.trace_id


@pytest.mark.parametrize("kind", ["gone", "silent"])
def test_a_collector_that_does_not_answer_holds_no_run_up(tmp_path: Path, kind: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1] if kind == "silent" else free_port()
        lw = lakewarden(tmp_path, port)
        started = clock.monotonic()
        for number in range(5):
            one_run(lw, f"r{number}", RunState.DONE)
        assert clock.monotonic() - started < 5
        assert len(lw.runs()) == 5
        closing = clock.monotonic()
        lw.close()
        assert clock.monotonic() - closing < 30


def test_nothing_of_it_is_loaded_where_nobody_asks(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys; from lakewarden import Lakewarden\n"
        f"lw = Lakewarden({{'state': {{'url': 'sqlite:///{tmp_path}/s.db'}}}}, environ={{}}); lw.runs()\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus_client', 'pyspark'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
