"""Serving the console: on a thread of its own beside a worker, or as the whole process of `lakewarden console`."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lakewarden.api import Lakewarden
from lakewarden.console.answers import API, log
from lakewarden.console.app import create_app, with_address
from lakewarden.console.refusals import stranger
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.lineage.gateway.listener import Server, bind, check_tls, shown

# A request's line and headers have to be there within this time, and are no longer than this.
HEAD_SECONDS = 10.0
HEAD_BYTES = 32 * 1024
# A client that takes nothing of its answer for so long is let go.
STUCK_SECONDS = 30.0
_IDLE_SECONDS = 15
_CONNECTIONS = 512
# Requests that are under way have so long when the server stops.
_LAST_SECONDS = 5
_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a console listens, and whether it asks for tokens."""

    address: str
    tokens: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "docs": f"{self.address}{API}/docs",
            "metrics": f"{self.address}/metrics",
            "health": f"{self.address}/health",
            "tokens": self.tokens,
        }


class ConsoleServer:
    """`start` and `stop` beside other work, or `serve` until the process is told to stop."""

    def __init__(
        self,
        warden: Lakewarden,
        *,
        metrics: Callable[[], bytes] | None = None,
        host: str | None = None,
        port: int | None = None,
        revive: Callable[[], None] = lambda: None,
    ) -> None:
        """Wrong settings are told here, before anything listens. Port 0 takes a free one. `metrics` stand in for the lake's own;
        for `revive` see `create_app`."""
        self._settings = with_address(warden.config.console, host, port)
        where = str(warden.config.path or "the configuration")
        check_tls(self._settings.tls_certificate, self._settings.tls_key, "console", where)
        self._app = create_app(warden, metrics=metrics, settings=self._settings, revive=revive)
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where it will listen, as the settings say; with port 0 `start` knows."""
        return self._at(self._settings.port)

    def _at(self, port: int) -> str:
        scheme = "http" if self._settings.tls_certificate is None else "https"
        return f"{scheme}://{shown(self._settings.host)}:{port}"

    def serve(self, ready: Callable[[Listening], None] = lambda _: None) -> None:
        """Until SIGINT or SIGTERM, or `stop` from another thread; `ready` hears where it listens."""
        settings = self._settings
        with bind(settings.host, settings.port, "console") as listener:
            port = listener.getsockname()[1]
            told = Listening(self._at(port), bool(settings.tokens))
            self._server = Server(self._config(port), lambda: ready(told))
            # What is loaded by now stays. Looking through it again and again for garbage made every tenth page twice as slow.
            gc.collect()
            gc.freeze()
            self._server.run(sockets=[listener])

    def start(self) -> Listening:
        """Listens when this returns; raises what keeps it from listening."""
        heard = threading.Event()
        told: list[Listening] = []
        failed: list[BaseException] = []

        def ready(listening: Listening) -> None:
            told.append(listening)
            heard.set()

        def serving() -> None:
            try:
                self.serve(ready)
            except BaseException as error:
                if told:
                    log.error("the console stopped", exc_info=error)
                failed.append(error)
            finally:
                heard.set()

        self._thread = threading.Thread(target=serving, name="console", daemon=True)
        self._thread.start()
        heard.wait(_START_SECONDS)
        if not told:
            raise _why(failed)
        return told[0]

    def stop(self) -> None:
        """Requests under way are answered first, for a few seconds. Twice is once."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(2 * _LAST_SECONDS + STUCK_SECONDS)

    def _config(self, port: int) -> uvicorn.Config:
        settings = self._settings
        return uvicorn.Config(
            self._app,
            host=settings.host,
            port=port,
            http=Impatient,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody can write them
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_LAST_SECONDS,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
        )


def _why(failed: list[BaseException]) -> LakewardenError:
    if failed and isinstance(failed[0], LakewardenError):
        return failed[0]
    reason = repr(failed[0]) if failed else f"it did not listen within {_START_SECONDS:g} seconds"
    return UsageError(reason=f"start the console: {reason}", hint="see its log")


class Impatient(HttpToolsProtocol):
    """A connection that neither dribbles its headers nor leaves its answer lying: both would cost us, not the client."""

    _patience: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        waiting = self._patience is not None
        super().data_received(data)
        if self._patience is None and self._is_idle():
            self._wait_for_head()  # it sent something that begins no request
        elif waiting and self._patience is not None:  # all of it was of a head that is not whole yet
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self._turn_away(b"431 Request Header Fields Too Large", "headers longer than allowed")

    def _is_idle(self) -> bool:
        answered = self.cycle is None or self.cycle.response_complete
        return answered and self.timeout_keep_alive_task is None and not self.transport.is_closing()

    def on_headers_complete(self) -> None:
        self._forget_patience()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > HEAD_BYTES:
            self._turn_away(b"431 Request Header Fields Too Large", "headers longer than allowed")
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle is not None:
            super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(STUCK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stuck()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_patience()
        self._forget_stuck()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._patience is None:
            self._head = 0
            self._patience = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _too_slow(self) -> None:
        self._turn_away(b"408 Request Timeout", "headers did not arrive in time")

    def _turn_away(self, status: bytes, reason: str) -> None:
        self._forget_patience()
        app: Any = self.config.app
        who = stranger(self.client[0] if self.client else "")
        self.loop.run_in_executor(None, app.state.refusals.add, who, "access", "a connection", reason)
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()

    def _forget_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _forget_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
