"""Building the gateway from the settings, and serving it until it is told to stop."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import uvicorn

from lakewarden.config import CatalogConfig, Config
from lakewarden.errors import ConfigError, UsageError
from lakewarden.lineage.gateway.app import Gateway
from lakewarden.lineage.gateway.counts import Counts
from lakewarden.lineage.gateway.door import Door
from lakewarden.lineage.gateway.facts import Facts
from lakewarden.lineage.gateway.policies import Policies
from lakewarden.lineage.gateway.turns import Turns
from lakewarden.lineage.gateway.upstream import Upstream
from lakewarden.redact import redact_url
from lakewarden.state.database import State
from lakewarden.state.locks import TTL, Locks
from lakewarden.state.owner import current_owner

# Beyond the time a commit may take: what was forwarded is answered before the process ends.
_LAST_SECONDS = 5
_BACKLOG = 2048
# Longer than clients keep idle connections: a request on one that is just being closed would fail without having arrived.
_IDLE_SECONDS = 75


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway listens, and for which catalog."""

    address: str
    catalog: str
    upstream: str


def gateway(config: Config, state: State) -> tuple[Gateway, CatalogConfig]:
    """The application, in front of the catalog the settings name."""
    catalog = catalog_behind(config)
    settings = config.gateway
    upstream = Upstream(catalog.properties["uri"], settings.timeout_seconds)
    # A lock outlives what may still be happening at a catalog that fell silent.
    ttl = max(TTL, timedelta(seconds=settings.timeout_seconds))
    facts, counts = Facts(state), Counts(state)
    turns = Turns(Locks(state, current_owner(), ttl, wait=3 * ttl), 3 * ttl.total_seconds())
    policies = Policies(config.policy, facts.stored)
    door = Door(catalog.name, upstream, policies, facts, turns, counts)

    def closing() -> None:
        door.close()
        turns.close()
        facts.close()

    about = {"catalog": catalog.name}
    return Gateway(door, upstream, policies, counts, facts, about, closing), catalog


def catalog_behind(config: Config) -> CatalogConfig:
    """The one `[gateway] catalog` names, or the only REST catalog there is."""
    named = config.gateway.catalog
    rest = {name: each for name, each in config.catalogs.items() if _is_rest(each)}
    if named is None and len(rest) == 1:
        return next(iter(rest.values()))
    if named in rest:
        return rest[named]
    there = ", ".join(sorted(rest)) or "none"
    if named is None:
        reason = f"nothing says which catalog to stand in front of; REST catalogs are: {there}"
    elif named in config.catalogs:
        reason = f"found {named!r}, which is no REST catalog with a uri; those are: {there}"
    else:
        reason = f"found {named!r}, but there is no such catalog; REST catalogs are: {there}"
    raise ConfigError(key="gateway.catalog", where=str(config.path or "the configuration"), reason=reason)


def _is_rest(catalog: CatalogConfig) -> bool:
    kind, made_by = catalog.properties.get("type", ""), catalog.properties.get("catalog-impl", "")
    rest = kind.lower() == "rest" or made_by.endswith(".RESTCatalog")
    return catalog.format == "iceberg" and rest and catalog.properties.get("uri", "").startswith("http")


def serve(
    config: Config, state: State, host: str | None, port: int | None, ready: Callable[[Listening], None]
) -> None:
    """Until SIGINT or SIGTERM; requests on their way are answered first. `ready` is told once it listens."""
    settings = config.gateway
    _check_tls(config)
    app, catalog = gateway(config, state)
    host, port = host or settings.host, port or settings.port
    listener = _listener(host, port)
    scheme = "http" if settings.tls_certificate is None else "https"
    shown = f"[{host}]" if ":" in host else host
    listening = Listening(f"{scheme}://{shown}:{port}", catalog.name, redact_url(catalog.properties["uri"]))
    server = _Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=settings.timeout_seconds + _LAST_SECONDS,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
        ),
        lambda: ready(listening),
    )
    with listener:
        server.run(sockets=[listener])


def _check_tls(config: Config) -> None:
    """Told before anything listens."""
    certificate, key = config.gateway.tls_certificate, config.gateway.tls_key
    if certificate is None and key is None:
        return
    reason = "it needs tls_key, and tls_key needs it"
    if certificate is not None and key is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            return
        except OSError as error:  # ssl.SSLError is one
            reason = f"cannot use {certificate} with {key}: {error}"
    raise ConfigError(
        key="gateway.tls_certificate", where=str(config.path or "the configuration"), reason=reason
    )


def _listener(host: str, port: int) -> socket.socket:
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
            hint="choose another with --host and --port, or in [gateway]",
        ) from None


class _Server(uvicorn.Server):
    """Says when it listens: a script that starts it has something to wait for."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()
