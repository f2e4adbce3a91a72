"""Serves the console: on its own thread beside a worker, or as the whole process of `lakewarden console`."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn

from lakewarden.client import Lakewarden
from lakewarden.console.answers import API, log
from lakewarden.console.app import create_app, with_address
from lakewarden.console.refusals import unknown_client
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.http_server import STUCK_SECONDS, Connection, Server, bind, check_tls, shown

_IDLE_SECONDS = 15
_CONNECTIONS = 512
# Seconds that open requests have when the server stops.
_LAST_SECONDS = 5
_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ConsoleAddress:
    """The address of a console, and whether it requires tokens."""

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
    """`start` and `stop` run it beside other work; `serve` runs until the process is stopped."""

    def __init__(
        self,
        warden: Lakewarden,
        *,
        metrics: Callable[[], bytes] | None = None,
        host: str | None = None,
        port: int | None = None,
        revive: Callable[[], None] = lambda: None,
    ) -> None:
        """Checks the settings before anything listens. Port 0 picks a free port. `metrics` is used instead of
        the lake's own; for `revive` see `create_app`."""
        self._settings = with_address(warden.config.console, host, port)
        where = str(warden.config.path or "the configuration")
        check_tls(self._settings.tls_certificate, self._settings.tls_key, "console", where)
        self._app = create_app(warden, metrics=metrics, settings=self._settings, revive=revive)
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The configured address. With port 0 the real one is known after `start`."""
        return self._at(self._settings.port)

    def _at(self, port: int) -> str:
        scheme = "http" if self._settings.tls_certificate is None else "https"
        return f"{scheme}://{shown(self._settings.host)}:{port}"

    def serve(self, ready: Callable[[ConsoleAddress], None] = lambda _: None) -> None:
        """Serve until SIGINT or SIGTERM, or `stop` from another thread. `ready` is called with the address."""
        settings = self._settings
        with bind(settings.host, settings.port, "console") as listener:
            port = listener.getsockname()[1]
            told = ConsoleAddress(self._at(port), bool(settings.tokens))
            self._server = Server(self._config(port), lambda: ready(told))
            # Objects loaded so far are excluded from garbage collection: scanning them again and again made every tenth page twice as slow.
            gc.collect()
            gc.freeze()
            self._server.run(sockets=[listener])

    def start(self) -> ConsoleAddress:
        """Returns when the server listens; raises if it cannot listen."""
        heard = threading.Event()
        told: list[ConsoleAddress] = []
        failed: list[BaseException] = []

        def ready(listening: ConsoleAddress) -> None:
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
        """Answer open requests for a few seconds, then stop. A second call does nothing."""
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
            http=ConsoleConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # clients can write anything into these headers
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
    return UsageError(reason=f"cannot start the console: {reason}", hint="see its log")


class ConsoleConnection(Connection):
    """Records closed connections like other rejections."""

    def most_per_address(self) -> int:
        app: Any = self.config.app
        return int(app.state.auth.settings.connections_per_address)

    def note(self, reason: str) -> None:
        app: Any = self.config.app
        who = unknown_client(self.client[0] if self.client else "")
        self.loop.run_in_executor(None, app.state.refusals.add, who, "access", "a connection", reason)
