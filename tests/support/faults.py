"""A proxy between an HTTP client and its server that goes wrong as told: slow, cut off, busy, or with a broken answer."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
# Of one connection only, or said anew by the proxy itself.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Faults:
    """What goes wrong. Requests are counted from 1, and a request is `busy` or `cut` by its number, so that a test meets the same every time."""

    port: int = 0
    latency: float = 0.0
    busy_every: int = 0  # every so many requests is answered 503 SlowDown
    busy_from: int = 0  # and all from this one on
    cut_from: int = 0  # from this request on the connection is cut after the first bytes of the answer
    cut_after: int = 0  # how many bytes of the answer arrive
    break_deletes: int = (
        0  # so many answers to DeleteObjects end in the middle, though the server acted on them
    )
    refuse_keys: set[str] = field(
        default_factory=set
    )  # named as InternalError in every answer to DeleteObjects
    forget_keys: set[str] = field(default_factory=set)  # left out of every answer to DeleteObjects
    requests: int = 0
    alone: list[str] = field(default_factory=list)  # what was asked to be deleted by a request of its own
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def next(self) -> int:
        with self._lock:
            self.requests += 1
            return self.requests

    def is_busy(self, number: int) -> bool:
        return bool(
            (self.busy_every and number % self.busy_every == 0)
            or (self.busy_from and number >= self.busy_from)
        )

    def breaks_delete(self) -> bool:
        with self._lock:
            self.break_deletes -= 1
            return self.break_deletes >= 0


@contextmanager
def proxy(server_port: int) -> Iterator[Faults]:
    """Faults are set on what this yields, at any time."""
    faults = Faults()

    class Handler(_Handler):
        told, upstream = faults, server_port

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    faults.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    told: Faults
    upstream: int

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        number = self.told.next()
        if self.command == "DELETE":
            self.told.alone.append(self.path)
        if self.told.latency:
            time.sleep(self.told.latency)
        if self.told.is_busy(number):
            self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
            return
        try:
            status, headers, answer = self._ask(body)
        except OSError:
            self.close_connection = True
            return
        self._pass_on(number, status, headers, answer)

    def _pass_on(self, number: int, status: int, headers: list[tuple[str, str]], answer: bytes) -> None:
        if self.told.cut_from and number >= self.told.cut_from:
            self._answer(status, headers, answer, sent=self.told.cut_after)
            return
        if self.command == "POST" and self.path.rpartition("?")[2].startswith("delete"):
            if self.told.breaks_delete():
                answer = answer[: len(answer) // 2]
            answer = _falsified(answer, self.told)
        self._answer(status, headers, answer)

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        # The client's own Host header goes along: it is part of what was signed.
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, sent: int | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        told = length if self.command == "HEAD" and length else str(len(body))
        self.send_header("Content-Length", told)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if sent is None else body[:sent])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the client's error says what happened."""

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any


def _falsified(answer: bytes, told: Faults) -> bytes:
    for key in told.refuse_keys:
        refusal = f"<Error><Key>{key}</Key><Code>InternalError</Code><Message>try again</Message></Error>"
        answer = _deleted(key).sub(refusal.encode(), answer)
    for key in told.forget_keys:
        answer = _deleted(key).sub(b"", answer)
    return answer


def _deleted(key: str) -> re.Pattern[bytes]:
    return re.compile(rb"<Deleted>\s*<Key>" + re.escape(key.encode()) + rb"</Key>.*?</Deleted>", re.DOTALL)
