"""Builds the gateway from the settings, and serves it until it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import uvicorn

from lakewarden.config.schema import CatalogConfig, Config
from lakewarden.errors import ConfigError
from lakewarden.gateway.app import Gateway
from lakewarden.gateway.commit_guard import GatewayCommitGuard
from lakewarden.gateway.commit_order import CommitOrder
from lakewarden.gateway.connection import Connection
from lakewarden.gateway.listener import Server, bind, check_tls, shown
from lakewarden.gateway.metrics import Counts
from lakewarden.gateway.policies import PolicyCache
from lakewarden.gateway.state_queries import Facts
from lakewarden.gateway.upstream import Upstream
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
