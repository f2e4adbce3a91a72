"""The listening part of our servers: a bound socket, a checked certificate, a ready signal, and a count of connections."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import uvicorn

from lakewarden.errors import ConfigError, UsageError
from lakewarden.gateway.connection import HANDSHAKE, Connection, refusal

log = logging.getLogger(__name__)

_BACKLOG = 2048
# The pause before the next accept if none is possible: the process has no file descriptors left.
_PAUSE_SECONDS = 1.0


def check_tls(certificate: str | None, key: str | None, section: str, where: str) -> None:
    """Check the certificate before the server listens."""
    if certificate is None and key is None:
        return
    reason = "it needs tls_key, and tls_key needs it"
    if certificate is not None and key is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            return
        except OSError as error:  # ssl.SSLError is one
            reason = f"cannot use {certificate} with {key}: {error}"
    raise ConfigError(key=f"{section}.tls_certificate", where=where, reason=reason)


def bind(host: str, port: int, section: str) -> socket.socket:
    """A bound listening socket, or a UsageError that names the setting to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP is named explicitly: only then does asyncio send each answer at once, instead of waiting 40 ms for more data.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        raise UsageError(
            reason=f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint=f"choose another with --port, in [{section}], or as LAKEWARDEN_{section.upper()}__PORT"
            + ("; a worker needs none with [worker] console = false" if section == "console" else ""),
        ) from None


def shown(host: str) -> str:
    """The host as written in an address."""
    return f"[{host}]" if ":" in host else host


class Server(uvicorn.Server):
    """Accepts connections itself, because uvicorn sees one only after its TLS handshake. `ready` is called when
    the server listens, so that a script can wait for it.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for listener in sockets or ():
            listener.setblocking(False)
            self._begin(asyncio.create_task(self._accept(listener)))
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections and end open handshakes; then let uvicorn finish the requests in progress."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().shutdown(sockets=sockets)

    def _begin(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            try:
                self._let_in(client, address[0], address[1])
            except Exception:  # concerns only this client: the server continues to listen
                log.exception("a connection from %s failed", address[0])
                client.close()
            await asyncio.sleep(0)  # many new connections must not prevent requests from being answered

    def _let_in(self, client: socket.socket, host: str, port: int) -> None:
        make = cast(type[Connection], self.config.http_protocol_class)
        connection = make(self.config, self.server_state, self.lifespan.state)
        if connection.enter(host, port):
            self._begin(asyncio.create_task(self._connect(client, connection)))
            return
        with client, suppress(OSError):
            if self.config.ssl is None:  # before a handshake, a TLS client understands no message
                client.send(refusal(b"429 Too Many Requests"))

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        """Ends when the connection is established. A handshake may take as long as a request's headers."""
        tls = self.config.ssl
        reason = None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                client,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else connection.head_seconds(),
            )
        except ConnectionAbortedError:  # the handshake timeout
            reason = HANDSHAKE
        except OSError:  # the client has gone, or does not speak TLS; its socket is already closed
            pass
        finally:
            connection.leave(reason)
