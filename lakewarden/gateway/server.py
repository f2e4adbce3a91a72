"""The gateway as an ASGI application: commits are judged, all other requests pass unchanged. `gateway` builds
it from the settings, and `serve` runs it until it is stopped. Bodies of requests are read within a time
limit, and with a limit on the total held in memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import httpx
import uvicorn

from lakewarden import clock
from lakewarden.config.schema import CatalogConfig, Config
from lakewarden.errors import ConfigError
from lakewarden.gateway import responses
from lakewarden.gateway.commit_guard import Facts, GatewayCommitGuard, GatewayRequest
from lakewarden.gateway.commit_order import CommitOrder
from lakewarden.gateway.commit_request import MAX_BYTES
from lakewarden.gateway.judge import PolicyCache
from lakewarden.gateway.metrics import Counts
from lakewarden.gateway.request_kind import OVERRIDES, GatewayRoute, RouteKind, UnclearRequest, route
from lakewarden.gateway.responses import EarlyResponse, GatewayResponse, Headers
from lakewarden.gateway.upstream import NOT_SENT, Upstream, forwarded, returned
from lakewarden.http_server import Connection, Server, bind, check_tls, shown
from lakewarden.redact import redact_url
from lakewarden.state.database import State
from lakewarden.state.locks import TTL, Locks
from lakewarden.state.process import current_owner

# In addition to the time a commit may take: forwarded requests are answered before the process ends.
_LAST_SECONDS = 5
# Longer than clients keep idle connections: a request on a connection that is just being closed would fail
# before it arrives.
_IDLE_SECONDS = 75
# For all clients together; a single client may have fewer.
_CONNECTIONS = 1000

# The memory that all commits in progress may take, as sent.
MOST_BYTES = 256 << 20

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# The catalog's own paths begin with its version.
METRICS, HEALTH = b"/metrics", b"/health"


class GatewayConnection(Connection):
    """Counts closed connections by the reason."""

    def most_per_address(self) -> int:
        return self._gateway.connections_per_address

    def head_seconds(self) -> float:
        return self._gateway.client_seconds

    def note(self, reason: str) -> None:
        self._gateway.counts.cut_off.labels(reason).inc()

    @property
    def _gateway(self) -> Gateway:
        app: Any = self.config.app
        return cast(Gateway, app)


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The address where a gateway listens, and its catalog."""

    address: str
    catalog: str
    upstream: str


def gateway(config: Config, state: State) -> tuple[Gateway, CatalogConfig]:
    """The application, in front of the catalog in the settings."""
    catalog = catalog_behind(config)
    settings = config.gateway
    upstream = Upstream(catalog.properties["uri"], settings.timeout_seconds)
    # A lock must outlast a commit that may still be running at a catalog that stopped answering.
    ttl = max(TTL, timedelta(seconds=settings.timeout_seconds))
    facts, counts = Facts(state), Counts(state)
    turns = CommitOrder(Locks(state, current_owner(), ttl, wait=3 * ttl), 3 * ttl.total_seconds())
    policies = PolicyCache(config.policy, facts.stored)
    door = GatewayCommitGuard(catalog.name, upstream, policies, facts, turns, counts)

    def closing() -> None:
        door.close()
        turns.close()
        facts.close()

    about = {"catalog": catalog.name}
    app = Gateway(
        door,
        upstream,
        policies,
        counts,
        facts,
        about,
        closing,
        settings.client_seconds,
        settings.connections_per_address,
    )
    return app, catalog


def catalog_behind(config: Config) -> CatalogConfig:
    """The catalog that `[gateway] catalog` names, or the only REST catalog."""
    named = config.gateway.catalog
    rest = {name: each for name, each in config.catalogs.items() if _is_rest(each)}
    if named is None and len(rest) == 1:
        return next(iter(rest.values()))
    if named in rest:
        return rest[named]
    configured = ", ".join(sorted(rest)) or "none"
    if named is None:
        reason = f"it is not set, and there is not exactly one REST catalog; REST catalogs are: {configured}"
    elif named in config.catalogs:
        reason = f"found {named!r}, which is no REST catalog with a uri; those are: {configured}"
    else:
        reason = f"found {named!r}, but there is no such catalog; REST catalogs are: {configured}"
    raise ConfigError(key="gateway.catalog", where=str(config.path or "the configuration"), reason=reason)


def _is_rest(catalog: CatalogConfig) -> bool:
    kind, made_by = catalog.properties.get("type", ""), catalog.properties.get("catalog-impl", "")
    rest = kind.lower() == "rest" or made_by.endswith(".RESTCatalog")
    return catalog.format == "iceberg" and rest and catalog.properties.get("uri", "").startswith("http")


def serve(
    config: Config, state: State, host: str | None, port: int | None, ready: Callable[[GatewayAddress], None]
) -> None:
    """Serve until SIGINT or SIGTERM; requests in progress are answered first. `ready` is called when the gateway listens."""
    settings = config.gateway
    where = str(config.path or "the configuration")
    check_tls(settings.tls_certificate, settings.tls_key, "gateway", where)
    app, catalog = gateway(config, state)
    host, port = host or settings.host, port or settings.port
    listener = bind(host, port, "gateway")
    scheme = "http" if settings.tls_certificate is None else "https"
    listening = GatewayAddress(
        f"{scheme}://{shown(host)}:{port}", catalog.name, redact_url(catalog.properties["uri"])
    )
    server = Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=GatewayConnection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=settings.timeout_seconds + _LAST_SECONDS,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
        ),
        lambda: ready(listening),
    )
    with listener:
        server.run(sockets=[listener])


_FLUSH_SECONDS = 1.0
_BODILESS = (204, 304)


class Gateway:
    """`closing` releases the resources of the parts after the server has answered its last request."""

    def __init__(
        self,
        door: GatewayCommitGuard,
        upstream: Upstream,
        policies: PolicyCache,
        counts: Counts,
        facts: Facts,
        about: dict[str, str],
        closing: Callable[[], None],
        client_seconds: float = 30,
        connections_per_address: int = 256,
    ) -> None:
        self.counts, self.client_seconds = counts, client_seconds
        self.connections_per_address = connections_per_address
        self._bodies = Bodies(client_seconds)
        self._door = door
        self._upstream = upstream
        self._policies = policies
        self._facts = facts
        self._about = about
        self._closing = closing

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    # ------------------------------------------------------------ start and stop

    async def _live(self, receive: Receive, send: Send) -> None:
        flushing: asyncio.Task[None] | None = None
        while True:
            match (await receive())["type"]:
                case "lifespan.startup":
                    flushing = asyncio.create_task(self._keep_flushing())
                    await send({"type": "lifespan.startup.complete"})
                case "lifespan.shutdown":
                    if flushing is not None:
                        flushing.cancel()
                        with suppress(asyncio.CancelledError):
                            await flushing
                    await asyncio.to_thread(self.counts.flush)
                    await self._upstream.close()
                    self._closing()
                    await send({"type": "lifespan.shutdown.complete"})
                    return

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            await asyncio.to_thread(self.counts.flush)

    # ------------------------------------------------------------ a request

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        began = clock.monotonic()
        method, path, headers = scope["method"], scope["raw_path"], scope["headers"]
        if path in (METRICS, HEALTH):
            await _whole(send, await self._own(path))
            return
        kind, status = RouteKind.OTHER, 0
        try:
            parsed = _routed(method, path, headers)
            kind = parsed.kind
            status = await self._handled(parsed, scope, receive, send)
        except UnclearRequest as error:
            refusal = responses.bad_request(
                f"Lakewarden's gateway does not let through what it cannot judge: {error}"
            )
            status = await _whole(send, refusal)
        except EarlyResponse as ended:
            if ended.answer.status == 408:
                self.counts.cut_off.labels("the body did not arrive in time").inc()
            status = await _whole(send, ended.answer)
        finally:
            self.counts.requests.labels(kind.value, str(status)).inc()
            self.counts.seconds.labels(kind.value).observe(clock.monotonic() - began)

    async def _own(self, path: bytes) -> GatewayResponse:
        if path == METRICS:
            return responses.text(self.counts.shown(), "text/plain; version=0.0.4; charset=utf-8")
        # Up even without its state database: read requests still work.
        state = "up" if await self._facts.answers() else "down"
        return responses.document({"status": "up", "state": state, **self._about})

    async def _handled(self, parsed: GatewayRoute, scope: Message, receive: Receive, send: Send) -> int:
        method, headers = scope["method"], scope["headers"]
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        match parsed.kind:
            case RouteKind.COMMIT | RouteKind.TRANSACTION:
                async with self._bodies.whole(receive) as body:
                    request = GatewayRequest(method, target, headers, body)
                    return await _whole(send, await self._door.commit(request, parsed))
            case RouteKind.CONFIG:
                return await _whole(send, await self._config(method, target, headers))
            case _:
                try:
                    return await self._pass(method, target, headers, receive, send)
                finally:
                    if parsed.kind is RouteKind.TABLES:
                        self._policies.forget()  # another table may have that name now

    async def _pass(self, method: str, target: bytes, headers: Headers, receive: Receive, send: Send) -> int:
        """Stream the request and the answer. If the catalog's answer ends too early, the client's answer ends too."""
        sent = forwarded(headers)
        body = self._bodies.parts(receive) if _has_body(headers) else None
        try:
            response = await self._upstream.send(method, target, sent, body)
        except httpx.HTTPError as error:
            return await _whole(send, _failed(error))
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": response.status_code,
                    "headers": _of_answer(response),
                }
            )
            async for part in response.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()
        return response.status_code

    async def _config(self, method: str, target: bytes, headers: Headers) -> GatewayResponse:
        """The catalog's configuration, without an address that would lead clients around the gateway."""
        asked = [
            each
            for each in forwarded(headers)
            if each[0].lower() not in (b"accept-encoding", b"content-length")
        ]
        try:
            answer = await self._upstream.whole(method, target, asked, None)
        except httpx.HTTPError as error:
            return _failed(error)
        return without_address(answer)


def _routed(method: str, path: bytes, headers: Headers) -> GatewayRoute:
    parsed = route(method, path)
    overrides = any(name.lower() in OVERRIDES for name, _ in headers)
    if overrides:
        raise UnclearRequest("a header replaces the method of the request")
    return parsed


async def _whole(send: Send, answer: GatewayResponse) -> int:
    await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body})
    return answer.status


def _has_body(headers: Headers) -> bool:
    return any(
        name.lower() in (b"content-length", b"transfer-encoding") and value != b"0" for name, value in headers
    )


def _of_answer(response: httpx.Response) -> Headers:
    headers = returned(response.headers.raw)
    if response.status_code not in _BODILESS:
        return headers
    # The length of the body that would have been sent; servers expect exactly that body.
    return [each for each in headers if each[0] != b"content-length"]


def _failed(error: httpx.HTTPError) -> GatewayResponse:
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, NOT_SENT):
        return responses.unavailable(f"the catalog cannot be reached, nothing was sent to it: {words}")
    return responses.failed(f"the catalog did not answer: {words}")


def without_address(answer: GatewayResponse) -> GatewayResponse:
    """The configuration answer without `uri`; an error unchanged. An unreadable answer is refused, because it
    could hold an address.
    """
    if not 200 <= answer.status < 300:
        return answer
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        return responses.unavailable("the catalog's configuration is not a JSON object")
    parts = [
        part
        for name in ("defaults", "overrides")
        if isinstance(part := content.get(name), dict) and "uri" in part
    ]
    if not parts:
        return answer
    for part in parts:
        del part["uri"]
    body = json.dumps(content).encode()
    kept = [
        each for each in answer.headers if each[0] not in (b"content-length", b"content-encoding", b"etag")
    ]
    return GatewayResponse(answer.status, [*kept, (b"content-length", str(len(body)).encode())], body)


class Bodies:
    """`seconds` is the time a client may take to send one body."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._held = 0

    @asynccontextmanager
    async def whole(self, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, held as long as the request takes; Answered if it is too large, too slow, or one too many."""
        body = bytearray()
        try:
            async for part in self._parts(receive):
                self._held += len(part)
                body += part
                if len(body) > MAX_BYTES:
                    too_large = f"a commit of more than {MAX_BYTES >> 20} MiB is not read"
                    raise EarlyResponse(responses.too_large(too_large))
                if self._held > MOST_BYTES:
                    raise EarlyResponse(
                        responses.unavailable("too many large commits are in progress; nothing was forwarded")
                    )
            yield bytes(body)
        finally:
            self._held -= len(body)

    async def parts(self, receive: Receive) -> AsyncIterator[bytes]:
        """The parts as they arrive, to be forwarded."""
        async for part in self._parts(receive):
            if part:
                yield part

    async def _parts(self, receive: Receive) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until, more = loop.time() + self._seconds, True
        while more:
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                late = f"the body of the request was not there within {self._seconds:g} seconds"
                raise EarlyResponse(responses.too_slow(late)) from None
            if message["type"] == "http.disconnect":
                raise EarlyResponse(responses.bad_request("the request ended before its body did"))
            yield message.get("body", b"")
            more = message.get("more_body", False)
