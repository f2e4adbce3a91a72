"""What every server of ours needs before it serves: a bound socket, a certificate that fits its key, a word when it listens."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import uvicorn

from lakewarden.errors import ConfigError, UsageError

_BACKLOG = 2048


def check_tls(certificate: str | None, key: str | None, section: str, where: str) -> None:
    """Told before anything listens."""
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
    """A socket that listens there, or a UsageError that names what to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Said to be TCP outright: only then does asyncio send each answer at once, instead of waiting 40 ms for more of it.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        raise UsageError(
            reason=f"listen on {host} port {port}: {error.strerror or error}",
            hint=f"choose another with --port, in [{section}], or as LAKEWARDEN_{section.upper()}__PORT"
            + ("; a worker needs none with [worker] console = false" if section == "console" else ""),
        ) from None


def shown(host: str) -> str:
    """As it stands in an address."""
    return f"[{host}]" if ":" in host else host


class Server(uvicorn.Server):
    """Says when it listens: a script that starts it has something to wait for."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()
