"""Connects to the catalog behind the gateway: requests go to it unchanged, and nothing is ever sent to it
twice.

It uses only the HTTP transport, without a client that has its own cookies, redirects or credentials. The
transport never retries: it checks an idle connection before use, and after the first byte an error means that
the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from lakewarden import clock
from lakewarden.gateway.judge import CurrentRef
from lakewarden.gateway.responses import GatewayResponse, Headers
from lakewarden.model.table import Snapshot

# Headers of a single hop (RFC 9110), and those that the next connection sets again.
_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-connection proxy-authorization te trailer transfer-encoding upgrade host expect".split()
)
# Headers about this body, this answer or this delegation; reading the table is another request.
_OF_ANOTHER = ("content-", "if-", "accept", "idempotency-key", "x-iceberg-access-delegation", "range")
_CONNECT_SECONDS = 10
# Shorter than servers keep idle connections: a connection that closes at that moment would leave a commit unknown.
_IDLE_SECONDS = 4
_CONNECTIONS = 500
# The transport's trace event right before the first byte of a request is sent.
_SENDING = "http11.send_request_headers.started"

# Errors after which nothing of the request was sent: there was no connection.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


@dataclass(frozen=True, slots=True)
class TableNow:
    """A table as the catalog describes it now."""

    uuid: str
    properties: dict[str, str]
    refs: dict[str, CurrentRef]
    snapshots: tuple[Snapshot, ...] = ()  # only if all of them were requested
    location: str = ""


class Upstream:
    """`uri` is the catalog's; paths that clients send are below it."""

    def __init__(self, uri: str, timeout_seconds: int) -> None:
        self._url = httpx.URL(uri.rstrip("/"))
        self._base = self._url.raw_path.rstrip(b"/")
        self._seconds = timeout_seconds
        self._timeout = {
            "connect": min(_CONNECT_SECONDS, timeout_seconds),
            "read": timeout_seconds,
            "write": timeout_seconds,
            "pool": timeout_seconds,
        }
        self._transport = httpx.AsyncHTTPTransport(
            verify=ssl.create_default_context(),
            limits=httpx.Limits(
                max_connections=_CONNECTIONS,
                max_keepalive_connections=_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
            ),
            retries=0,
        )

    async def close(self) -> None:
        await self._transport.aclose()

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        trace: Callable[[str, Any], Awaitable[None]] | None = None,
    ) -> httpx.Response:
        """The answer, with its body still to come. The caller closes it."""
        extensions: dict[str, Any] = {"target": self._base + target, "timeout": self._timeout}
        if trace is not None:
            extensions["trace"] = trace
        request = httpx.Request(method, self._url, headers=list(headers), content=body, extensions=extensions)
        return await self._transport.handle_async_request(request)

    async def whole(
        self, method: str, target: bytes, headers: Headers, body: bytes | None
    ) -> GatewayResponse:
        """The complete answer; errors on the way are raised to the caller.

        The transport's own timeouts restart with every byte, so a catalog that answers slowly would hold a
        commit's turn without end. The time for the whole answer starts when the request is sent: a failure
        before that is one of NOT_SENT.
        """
        try:
            async with asyncio.timeout(None) as deadline:

                async def trace(event: str, _: Any) -> None:
                    if event == _SENDING:
                        deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)

                return await self._read(await self.send(method, target, headers, body, trace))
        except TimeoutError:
            raise httpx.ReadTimeout(f"not all of the answer came within {self._seconds} seconds") from None

    async def _read(self, response: httpx.Response) -> GatewayResponse:
        try:
            parts = [part async for part in response.aiter_raw()]
        finally:
            await response.aclose()
        return GatewayResponse(response.status_code, returned(response.headers.raw), b"".join(parts))

    async def table(self, path: bytes, headers: Headers, history: bool = False) -> TableNow | GatewayResponse:
        """The table, read with the client's own credentials; the catalog's answer if that is not a table.

        With `history` all of its snapshots, otherwise only those that refs name.
        """
        which = b"?snapshots=all" if history else b"?snapshots=refs"
        answer = await self.whole("GET", path + which, _looking(headers), None)
        if answer.status != 200:
            return answer
        return table_in(answer.body, history)


def forwarded(headers: Headers) -> list[tuple[bytes, bytes]]:
    """A request's headers that are forwarded: all except those of a single hop."""
    dropped = _HOP | _named_in_connection(headers)
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def returned(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """An answer's headers that are returned."""
    items = list(headers)
    dropped = _HOP | _named_in_connection(items)
    return [(name.lower(), value) for name, value in items if name.lower() not in dropped]


def _named_in_connection(headers: Headers) -> frozenset[bytes]:
    named = (value for name, value in headers if name.lower() == b"connection")
    return frozenset(each.strip().lower() for value in named for each in value.split(b","))


def _looking(headers: Headers) -> list[tuple[bytes, bytes]]:
    kept = [
        (name, value)
        for name, value in forwarded(headers)
        if not name.decode("latin-1").lower().startswith(_OF_ANOTHER)
    ]
    return [*kept, (b"accept", b"application/json")]


def table_in(body: bytes, history: bool = False) -> TableNow:
    """The table in a catalog's answer. ValueError if it is not exactly a table: no commit is judged by guesses."""
    try:
        metadata = _object(_object(json.loads(body)).get("metadata"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    uuid, properties = metadata.get("table-uuid"), _object(metadata.get("properties"), missing=True)
    if not isinstance(uuid, str) or not uuid:
        raise ValueError("the table has no uuid")
    if not all(isinstance(each, str) for each in properties.values()):
        raise ValueError("a property is not text")
    refs = {name: _ref(_object(each)) for name, each in _object(metadata.get("refs"), missing=True).items()}
    current = metadata.get("current-snapshot-id")
    if "main" not in refs and current not in (None, -1):
        refs["main"] = CurrentRef("branch", _number(current))  # metadata written before refs existed
    snapshots = metadata.get("snapshots") if history else None
    if snapshots is not None and not isinstance(snapshots, list):
        raise ValueError("the snapshots are no list")
    history_ = tuple(_snapshot(_object(each)) for each in snapshots or ())
    return TableNow(uuid, properties, refs, history_, str(metadata.get("location") or ""))


def _snapshot(document: dict[str, Any]) -> Snapshot:
    """The fields of a snapshot that the check of streaming writers needs."""
    parent, summary = document.get("parent-snapshot-id"), _object(document.get("summary"), missing=True)
    if not all(isinstance(each, str) for each in summary.values()):
        raise ValueError("a summary has a value that is not text")
    return Snapshot(
        _number(document.get("snapshot-id")),
        None if parent is None else _number(parent),
        _number(document.get("sequence-number", 0)),
        clock.from_millis(_number(document.get("timestamp-ms"))),
        str(summary.get("operation", "")),
        summary,
        "",
    )


def _ref(document: dict[str, Any]) -> CurrentRef:
    age = document.get("max-ref-age-ms")
    kind = str(document.get("type")).lower()
    return CurrentRef(kind, _number(document.get("snapshot-id")), None if age is None else _number(age))


def _object(value: Any, missing: bool = False) -> dict[str, Any]:
    if missing and value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("it is not a table's description")
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a number is none")
    return value
