"""Settings: one table of every name, default and meaning, and the value `Config` that everything else is handed.

Read from, the later winning: the file, then the environment, then what the call gives.

    LAKEWARDEN_STATE__URL=...                      [state] url: a double underscore goes one level down
    LAKEWARDEN_CATALOGS__LAKE__WAREHOUSE=...       [catalogs.lake] warehouse: lower case, single underscores stay
    LAKEWARDEN_CATALOGS__LAKE='{"s3.endpoint": …}' property names that have dots or dashes, as JSON
    LAKEWARDEN_POLICY__REWRITE_TARGET_BYTES=...    the policy layer "environment", which is below the file's [policy]

`${NAME}` inside state.url, budgets.backoff_url, a catalog property or spark.conf stands for the environment variable NAME, and what it
stood for is never shown. Policy keys and their values are checked by `lakewarden.policy`, not here.
"""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lakewarden.config import load as sources
from lakewarden.config.aliases import Aliases
from lakewarden.config.load import Found, Settings
from lakewarden.config.serving import (
    ConsoleConfig,
    HealthConfig,
    ScheduleConfig,
    WorkerConfig,
    read_console,
    read_health,
    read_schedule,
    read_worker,
)
from lakewarden.config.settings import SETTINGS, Setting
from lakewarden.errors import ConfigError
from lakewarden.model.prices import PRICES, Price
from lakewarden.redact import MASK, redact, redact_url

__all__ = [
    "SETTINGS",
    "BudgetsConfig",
    "CatalogConfig",
    "Config",
    "ConsoleConfig",
    "EngineConfig",
    "GatewayConfig",
    "HealthConfig",
    "LineageConfig",
    "PathsConfig",
    "PolicyConfig",
    "ScheduleConfig",
    "Setting",
    "SparkConfig",
    "StateConfig",
    "WorkerConfig",
    "redact",
    "redact_url",
]


# What upkeep may take of a store others live on, where only the store's own speed is told.
_SHARE_OF_AVAILABLE = 0.3


class _Shown(ABC):
    """Prints as what may be shown, so that no log line and no traceback has a secret."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()})"


@dataclass(frozen=True, slots=True, repr=False)
class StateConfig(_Shown):
    url: str

    def to_dict(self) -> dict[str, Any]:
        return {"url": redact_url(self.url)}


@dataclass(frozen=True, slots=True, repr=False)
class SparkConfig(_Shown):
    master: str
    conf: Mapping[str, str]
    jars: tuple[str, ...]
    hidden: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        return {"master": self.master, "conf": _shown(self.conf, self.hidden), "jars": list(self.jars)}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    task_memory_mb: int

    def to_dict(self) -> dict[str, Any]:
        return {"task_memory_mb": self.task_memory_mb}


@dataclass(frozen=True, slots=True, repr=False)
class BudgetsConfig(_Shown):
    """What all rewrites of this process together may take; None is no limit. MB are 1,000,000 bytes."""

    max_tasks: int | None = 4
    read_mb_per_s: float | None = None
    write_mb_per_s: float | None = None
    requests_per_s: float | None = None
    pause_compaction: tuple[str, ...] = ()
    backoff_url: str | None = None
    backoff_query: str | None = None
    backoff_above: float | None = None
    backoff_poll_seconds: int = 15
    backoff_max_wait_seconds: int = 600
    deletes_per_s: float | None = None
    pause_expiry: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        url = None if self.backoff_url is None else redact_url(self.backoff_url)
        pauses = {name: list(getattr(self, name)) for name in ("pause_compaction", "pause_expiry")}
        return {**asdict(self), **pauses, "backoff_url": url}


@dataclass(frozen=True, slots=True, repr=False)
class LineageConfig(_Shown):
    """Where compacted history is kept, and who is told about runs as OpenLineage events."""

    history: str = "state"
    openlineage_url: str | None = None
    openlineage_file: str | None = None
    openlineage_namespace: str = "lakewarden"

    def to_dict(self) -> dict[str, Any]:
        url = None if self.openlineage_url is None else redact_url(self.openlineage_url)
        return {**asdict(self), "openlineage_url": url}


@dataclass(frozen=True, slots=True)
class PathsConfig:
    """What the operator says about places with two names."""

    aliases: Aliases = field(default_factory=Aliases)

    def to_dict(self) -> dict[str, Any]:
        return {"aliases": self.aliases.texts()}


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What `lakewarden gateway` listens on, and which catalog it stands in front of."""

    catalog: str | None = None
    host: str = "127.0.0.1"
    port: int = 8181
    tls_certificate: str | None = None
    tls_key: str | None = None
    timeout_seconds: int = 60
    client_seconds: int = 30
    connections_per_address: int = 256

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, repr=False)
class CatalogConfig(_Shown):
    """One catalog; `properties` are the format's own, as written. `hidden` are those an environment variable filled.

    `complete`: it lists every table it has. Where one does not, no proof of "no table names this file" is whole.
    """

    name: str
    format: str
    properties: Mapping[str, str]
    hidden: frozenset[str] = frozenset()
    complete: bool = True

    def to_dict(self) -> dict[str, Any]:
        complete = {} if self.complete else {"complete": False}
        return {"format": self.format, **complete, **_shown(self.properties, self.hidden)}


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """The policy layers that are configured, as written: the environment, `[policy]`, and `[[policy.tables]]` in order.

    `trusted` are the keys that table properties may set to any value, by pattern.
    """

    environment: Mapping[str, object] = field(default_factory=dict)
    file: Mapping[str, object] = field(default_factory=dict)
    patterns: tuple[tuple[str, Mapping[str, object]], ...] = ()
    trusted: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        tables = [{"pattern": pattern, **values} for pattern, values in self.patterns]
        trusted = [{"pattern": pattern, "keys": list(keys)} for pattern, keys in self.trusted]
        return {
            "environment": dict(self.environment),
            **self.file,
            "tables": tables,
            "trust_table_properties": trusted,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Config(_Shown):
    """Every setting, resolved and checked. `path` is the file it was read from."""

    state: StateConfig
    spark: SparkConfig
    engine: EngineConfig
    budgets: BudgetsConfig
    catalogs: Mapping[str, CatalogConfig]
    policy: PolicyConfig
    paths: PathsConfig = field(default_factory=PathsConfig)
    lineage: LineageConfig = field(default_factory=LineageConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    prices: Mapping[str, Price] = field(default_factory=lambda: PRICES)
    path: Path | None = None

    @classmethod
    def load(
        cls, path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None
    ) -> Config:
        """From a file (or none: defaults), the environment, and `overrides` in the shape of the file. Only ConfigError."""
        base = (path.parent if path else Path()).resolve()
        tree = {} if path is None else _read_toml(path)
        return _build(sources.flatten(tree, str(path)), environ, overrides or {}, base, path)

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], environ: Mapping[str, str] | None = None, base: Path | None = None
    ) -> Config:
        """From values in the shape of the file. They are the call's own, so they win over the environment."""
        return _build({}, environ or {}, values, (base or Path()).resolve(), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path) if self.path else None,
            "state": self.state.to_dict(),
            "spark": self.spark.to_dict(),
            "engine": self.engine.to_dict(),
            "budgets": self.budgets.to_dict(),
            "catalogs": {name: each.to_dict() for name, each in self.catalogs.items()},
            "policy": self.policy.to_dict(),
            "paths": self.paths.to_dict(),
            "lineage": self.lineage.to_dict(),
            "gateway": self.gateway.to_dict(),
            "schedule": self.schedule.to_dict(),
            "worker": self.worker.to_dict(),
            "health": self.health.to_dict(),
            "console": self.console.to_dict(),
            "prices": {name: each.to_dict() for name, each in self.prices.items()},
        }


def _build(
    file: Mapping[tuple[str, ...], Found],
    environ: Mapping[str, str],
    overrides: Mapping[str, Any],
    base: Path,
    path: Path | None,
) -> Config:
    explicit = sources.flatten(overrides, "call")
    names = {key[1] for key in (*file, *explicit) if key[0] == "catalogs"}
    outside = sources.from_environment(environ, names)
    above = {key: each for key, each in outside.items() if key[0] == "policy"}
    below = {key: each for key, each in outside.items() if key[0] != "policy"}
    settings = Settings({**file, **below, **explicit}, environ)
    return Config(
        StateConfig(settings.state_url(base)),
        _spark(settings, base),
        EngineConfig(settings.count("engine", "task_memory_mb")),
        _budgets(settings),
        {name: _catalog(settings, name) for name in settings.catalogs()},
        _policy(settings, above),
        PathsConfig(settings.aliases()),
        _lineage(settings, base),
        _gateway(settings, base),
        read_schedule(settings),
        read_worker(settings),
        read_health(settings),
        read_console(settings, base),
        settings.prices(),
        path,
    )


def _spark(settings: Settings, base: Path) -> SparkConfig:
    conf, hidden = settings.properties("spark", "conf")
    return SparkConfig(settings.master(), conf, settings.jars(base), hidden)


def _budgets(settings: Settings) -> BudgetsConfig:
    available = settings.rate("available_mb_per_s")
    share = None if available is None else available * _SHARE_OF_AVAILABLE
    return BudgetsConfig(
        settings.tasks(),
        settings.rate("read_mb_per_s", share),
        settings.rate("write_mb_per_s", share),
        settings.rate("requests_per_s"),
        settings.windows("pause_compaction"),
        *settings.backoff(),
        settings.count("budgets", "backoff_poll_seconds"),
        settings.count("budgets", "backoff_max_wait_seconds"),
        settings.rate("deletes_per_s"),
        settings.windows("pause_expiry"),
    )


def _check_kind(settings: Settings, name: str, properties: Mapping[str, str]) -> None:
    """Iceberg takes a catalog that does not say what it is for Hive's, and makes an empty metastore where it is started."""
    said = properties.keys() & {"type", "catalog-impl"} or properties.get("uri", "").startswith("thrift:")
    if not said:
        places = (each.where for key, each in settings.found.items() if key[:2] == ("catalogs", name))
        raise ConfigError(
            key=f"catalogs.{name}.type",
            where=next(places, "the configuration"),
            reason="it is missing",
            hint='a folder: type = "hadoop"; others: rest, jdbc, hive, glue, nessie; or name a class with catalog-impl',
        )


def _catalog(settings: Settings, name: str) -> CatalogConfig:
    properties, hidden = settings.properties("catalogs", name)
    format_ = properties.pop("format", "iceberg")
    settings.check_format(name, format_)
    complete = settings.is_complete(name, properties.pop("complete", "true"))
    if format_ == "iceberg":
        _check_kind(settings, name, properties)
    return CatalogConfig(name, format_, properties, hidden - {"format", "complete"}, complete)


def _lineage(settings: Settings, base: Path) -> LineageConfig:
    return LineageConfig(
        settings.one_of("lineage", "history", "state", "table"),
        settings.maybe_server("lineage", "openlineage_url"),
        settings.maybe_path("lineage", "openlineage_file", base),
        settings.maybe_text("lineage", "openlineage_namespace") or "lakewarden",
    )


def _gateway(settings: Settings, base: Path) -> GatewayConfig:
    return GatewayConfig(
        settings.maybe_text("gateway", "catalog"),
        settings.maybe_text("gateway", "host") or "127.0.0.1",
        settings.port("gateway"),
        settings.maybe_path("gateway", "tls_certificate", base),
        settings.maybe_path("gateway", "tls_key", base),
        settings.count("gateway", "timeout_seconds"),
        settings.count("gateway", "client_seconds"),
        settings.count("gateway", "connections_per_address"),
    )


def _policy(settings: Settings, environment: Mapping[tuple[str, ...], Found]) -> PolicyConfig:
    return PolicyConfig(
        {key[1]: each.value for key, each in environment.items()},
        settings.policy(),
        settings.patterns(),
        settings.trusted(),
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        reason = "there is no such file"
    except OSError as error:
        reason = f"cannot open it: {error.strerror}"
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 text: byte {error.start} is wrong"
    except tomllib.TOMLDecodeError as error:
        reason = f"it is not TOML: {error}"
    raise ConfigError(key="the configuration", where=str(path), reason=reason)


def _shown(properties: Mapping[str, str], hidden: frozenset[str]) -> dict[str, str]:
    return {name: MASK if name in hidden else redact(name, value) for name, value in properties.items()}
