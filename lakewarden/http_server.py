"""Connections of our servers, with limits on the cost of a client that has not sent a request yet. `Server`
listens: a bound socket, a checked certificate, a ready signal, and a count of connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lakewarden.errors import ConfigError, UsageError

# A request's line and headers must arrive within this time, and must not be longer than this.
HEAD_SECONDS = 10.0
HEAD_BYTES = 32 * 1024
# A client that reads nothing of its answer for this long is disconnected.
STUCK_SECONDS = 30.0
# Reasons to close a connection.
CONNECTIONS = "more connections than one address may have"
LONG = "headers longer than allowed"
SLOW = "headers did not arrive in time"
HANDSHAKE = "the TLS handshake did not end in time"


def address_range(address: str) -> str:
    """The address range that shares one limit. IPv6 clients can use many addresses, so the network counts."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))


def refusal(status: bytes) -> bytes:
    """A complete answer with only a status."""
    return b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol, ABC):
    """A connection that is closed if it sends its headers too slowly, does not read its answer, or is one of
    too many from its address: each of these would cost the server, not the client.
    """

    _patience: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _head = 0
    _near = ""
    _made = False

    @abstractmethod
    def most_per_address(self) -> int:
        """The most connections that one client may have at a time."""

    def head_seconds(self) -> float:
        return HEAD_SECONDS

    @abstractmethod
    def note(self, reason: str) -> None:
        """Called with the reason when the connection is closed."""

    def enter(self, host: str, port: int) -> bool:
        """Whether the address may open another connection. Counted from accept on: asyncio calls
        `connection_made` only after the TLS handshake, so a client that never completes it would not be
        counted.
        """
        self.client, self._near = (host, port), address_range(host)
        same = sum(getattr(each, "_near", None) == self._near for each in self.connections)
        if same >= self.most_per_address():
            self.note(CONNECTIONS)
            return False
        self.connections.add(self)
        return True

    def leave(self, reason: str | None = None) -> None:
        """The handshake failed or timed out. An established connection leaves through `connection_lost`."""
        if not self._made:
            self.connections.discard(self)
        if reason is not None:
            self.note(reason)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._made = True
        self._wait_for_head()

    def shutdown(self) -> None:
        """Nothing is open before the handshake: the server then ends the connection itself."""
        if self._made:
            super().shutdown()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        waiting = self._patience is not None
        super().data_received(data)
        if self._patience is None and self._is_idle():
            self._wait_for_head()  # it sent bytes that begin no request
        elif waiting and self._patience is not None:  # all of the bytes belong to an incomplete head
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self._turn_away(b"431 Request Header Fields Too Large", LONG)

    def _is_idle(self) -> bool:
        answered = self.cycle is None or self.cycle.response_complete
        return answered and self.timeout_keep_alive_task is None and not self.transport.is_closing()

    def on_headers_complete(self) -> None:
        self._forget_patience()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > HEAD_BYTES:
            self._turn_away(b"431 Request Header Fields Too Large", LONG)
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
            self._patience = self.loop.call_later(self.head_seconds(), self._too_slow)

    def _too_slow(self) -> None:
        self._turn_away(b"408 Request Timeout", SLOW)

    def _turn_away(self, status: bytes, reason: str) -> None:
        self._forget_patience()
        self.note(reason)
        if not self.transport.is_closing():
            self.transport.write(refusal(status))
            self.transport.close()

    def _forget_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _forget_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None


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
