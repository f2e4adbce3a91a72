"""Every setting is one field here, with its type, default and description. docs/configuration.md is generated
from these models.

`config.load` reads them from the file and the environment. Keys and values of policies are checked by
`lakewarden.policy`, not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from lakewarden.config.aliases import Aliases
from lakewarden.config.types import (
    Address,
    Cost,
    Count,
    Database,
    FilePath,
    Jars,
    Master,
    Number,
    Pattern,
    Pauses,
    Places,
    Port,
    Positive,
    Properties,
    Property,
    Rate,
    SettingType,
    Switch,
    Tasks,
    Text,
    Texts,
    Tokens,
    When,
    refuse,
    split_token,
)
from lakewarden.model.prices import PRICES, Price
from lakewarden.redact import MASK, redact

# Fraction of the store's bandwidth that maintenance may use, if only `available_mb_per_s` is set.
_SHARE_OF_AVAILABLE = 0.3


class Section(BaseModel):
    """A section of settings. Its text form hides secrets, so no log line and no traceback contains one.

    A field without a description is no setting: `load` fills it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        yield from self.to_dict().items()


def _shown(properties: Mapping[str, str], hidden: frozenset[str]) -> dict[str, str]:
    return {name: MASK if name in hidden else redact(name, value) for name, value in properties.items()}


# fmt: off
# One line per setting, even if it is long.


class StateConfig(Section):
    url: Database = Field(default="sqlite:///lakewarden.db", description="the state database: sqlite:///PATH (relative to the file's folder) or postgresql://USER:PASSWORD@HOST/NAME")


class SparkConfig(Section):
    """`hidden` are the properties of `conf` that came from environment variables; they are never shown."""

    master: Master = Field(default="local[*]", description="the Spark master that moves the rows: local[N], local[*], spark://HOST:PORT, k8s://ADDRESS or yarn")
    conf: Properties = Field(default_factory=dict, description="Spark properties, passed to the session unchanged")
    jars: Jars = Field(default=(), description="jars to use instead of the pinned ones; relative to the file's folder")
    hidden: frozenset[str] = frozenset()

    @model_serializer
    def _to_dict(self) -> dict[str, Any]:
        return {"master": self.master, "conf": _shown(self.conf, self.hidden), "jars": list(self.jars)}


class EngineConfig(Section):
    task_memory_mb: Count = Field(default=512, description="memory that one rewrite task may use, in MB; larger work is split or spilled to disk")


class BudgetsConfig(Section):
    """Limits for all rewrites of this process together; None is no limit. 1 MB is 1,000,000 bytes."""

    max_tasks: Tasks = Field(default=4, description="rewrite tasks at the same time, over all runs of this process; never more than Spark has cores; `all`: one per core")
    available_mb_per_s: Rate = Field(default=None, exclude=True, description="the bandwidth of the store in MB/s (1 MB is 1,000,000 bytes); reading and writing each use at most 30 % of it, unless they have their own limit")
    read_mb_per_s: Rate = Field(default=None, description="MB/s that all rewrite tasks together may read; default 30 % of available_mb_per_s if that is set, else no limit; `none`: no limit")
    write_mb_per_s: Rate = Field(default=None, description="MB/s that all rewrite tasks together may write; default 30 % of available_mb_per_s if that is set, else no limit; `none`: no limit")
    requests_per_s: Rate = Field(default=None, description="requests per second that all rewrite tasks together may send to the store")
    deletes_per_s: Rate = Field(default=None, description="files per second that one purge may delete")
    pause_compaction: Pauses = Field(default=(), description="when the worker starts no compaction, in UTC: 09:00-17:00, over midnight 22:00-06:00, on some days Mon-Fri 09:00-17:00")
    pause_expiry: Pauses = Field(default=(), description="when the worker starts no expire, expire-partitions, handoff, purge or sweep, in UTC; same format as pause_compaction")
    backoff_url: Address | None = Field(default=None, description="a Prometheus server that is queried before each rewrite task; no task starts while backoff_query is above backoff_above")
    backoff_query: Text | None = Field(default=None, description="the PromQL query, such as the 95th percentile of query latency; the highest of several values counts")
    backoff_above: Number | None = Field(default=None, description="the value of backoff_query above which tasks wait")
    backoff_poll_seconds: Count = Field(default=15, description="seconds between two queries to Prometheus")
    backoff_max_wait_seconds: Count = Field(default=600, description="seconds after which a waiting task starts anyway, so that maintenance slows down but never stops")

    @field_validator("read_mb_per_s", "write_mb_per_s", mode="before")
    @classmethod
    def _share(cls, value: object, info: ValidationInfo) -> object:
        available = info.data.get("available_mb_per_s")
        return available * _SHARE_OF_AVAILABLE if value is None and available else value

    @model_validator(mode="after")
    def _all_of_backoff_or_none(self) -> Self:
        every = {name: getattr(self, name) for name in ("backoff_url", "backoff_query", "backoff_above")}
        said = [name for name, value in every.items() if value is not None]
        lacking = [name for name in every if name not in said]
        if said and lacking:
            reason = f"it is not set, but {said[0]} is; set {', '.join(every)} together"
            refuse(reason, key=lacking[0], beside=said[0])
        return self


class PathsConfig(Section):
    """Places that have two names."""

    aliases: Places = Field(default_factory=Aliases, description="pairs of places: `/mnt/a = /mnt/b` if both names mean the same place, `s3://old != s3://new` if they are different; a pair also applies to everything below both")


class LineageConfig(Section):
    """Where compacted history is stored, and where OpenLineage events about runs are sent."""

    history: Annotated[Literal["state", "table"], SettingType("state or table")] = Field(default="state", description="where the detail of compacted lineage history is kept: `state`, in the state database, or `table`, as files in each table's own metadata folder")
    openlineage_url: Address | None = Field(default=None, description="a server that receives OpenLineage events about every run, such as http://HOST:PORT/api/v1/lineage")
    openlineage_file: FilePath | None = Field(default=None, description="a file that OpenLineage events are appended to, one per line; relative to the file's folder")
    openlineage_namespace: Text = Field(default="lakewarden", description="the namespace of the jobs in OpenLineage events")


class GatewayConfig(Section):
    """The address `lakewarden gateway` listens on, and the catalog it forwards to."""

    catalog: Text | None = Field(default=None, description="the REST catalog of [catalogs] that the gateway forwards to; not needed if there is only one")
    host: Text = Field(default="127.0.0.1", description="the address the gateway listens on")
    port: Port = Field(default=8181, description="the port the gateway listens on")
    tls_certificate: FilePath | None = Field(default=None, description="a PEM certificate, to serve HTTPS; relative to the file's folder")
    tls_key: FilePath | None = Field(default=None, description="the certificate's PEM key; relative to the file's folder")
    client_seconds: Count = Field(default=30, description="seconds that a client may take to send the headers of a request, and then its body; a slower client gets 408")
    connections_per_address: Count = Field(default=256, description="connections that one client may have at a time; more are answered 429. A proxy in front is one client")
    timeout_seconds: Count = Field(default=60, description="seconds that the catalog may take to answer; a commit that takes longer is reported as unknown, never as failed")


class ScheduleConfig(Section):
    """When tables are due. The times of jobs apply if `mode` is cron."""

    mode: Annotated[Literal["interval", "cron"], SettingType("interval or cron")] = Field(default="interval", description="`interval`: a whole pass of each table every interval_seconds; `cron`: each job at its own times below")
    interval_seconds: Count = Field(default=3600, description="seconds from the start of a table's pass to the next one; with `cron`, of jobs that are continuous")
    expire_partitions: When = Field(default="30 23 * * *", description="when expire-partitions is due, with `cron`; five fields, in UTC")
    compact_deletes: When = Field(default="continuous", description="when compact-deletes is due, with `cron`")
    compact: When = Field(default="continuous", description="when compact is due, with `cron`")
    rewrite_manifests: When = Field(default="0 2 * * 0", description="when rewrite-manifests is due, with `cron`")
    expire: When = Field(default="0 0 * * *", description="when expire is due, with `cron`")
    handoff: When = Field(default="0 2 * * *", description="when handoff is due, with `cron`; if the policy asks for it, expire runs right after it")
    purge: When = Field(default="0 4 * * *", description="when purge is due, with `cron`")
    sweep: When = Field(default="0 6 * * *", description="when sweep is due, with `cron`, if the policy switches it on")
    compact_history: When = Field(default="0 3 1 * *", description="when compact-history is due, with `cron`")

    @property
    def times(self) -> Mapping[str, str]:
        """For each job a cron line, `continuous` or `never`."""
        jobs = [name for name in type(self).model_fields if name not in ("mode", "interval_seconds")]
        return {name.replace("_", "-"): getattr(self, name) for name in jobs}


class WorkerConfig(Section):
    """How the worker leads, how many tables it works on at once, and how it handles failing tables."""

    tables: Texts = Field(default=("*",), description="patterns of the tables that the worker maintains, such as lake.db.*; a pattern that begins with ! excludes tables")
    parallel_tables: Count = Field(default=2, description="tables worked on at once; all of them share the budgets")
    lease_seconds: Count = Field(default=15, description="seconds after its last renewal that a leader stays leader; after that a standby takes over")
    poll_seconds: Count = Field(default=2, description="seconds between two checks for requests and for tables that are due")
    discover_seconds: Count = Field(default=300, description="seconds between two checks for new and dropped tables")
    max_failures: Count = Field(default=10, description="failures in a row after which a table is suspended until an operator resumes it")
    retry_seconds: Count = Field(default=60, description="seconds a table waits after its first failure; doubled after each further failure, up to retry_max_seconds")
    retry_max_seconds: Count = Field(default=3600, description="the longest wait of a table after a failure")
    drain_seconds: Count = Field(default=600, description="seconds that runs may continue after SIGTERM; then they are stopped cleanly")
    console: Switch = Field(default=True, description="whether the worker also serves the console and the REST API, on the address of [console]")


class HealthConfig(Section):
    """How often health is checked, how long its numbers are kept, and the limits for warnings."""

    stats_interval_seconds: Count = Field(default=60, description="seconds between two health checks of every table")
    keep_days: Count = Field(default=90, description="days that health numbers are kept for charts and what-if (older ones are thinned out to one per day); after that, ended requests, loads and pins, inactive writers, cleared warnings and data of dropped tables are removed too")
    delete_ratio: Positive = Field(default=0.3, description="warn if the number of delete files per data file, or the fraction of deleted rows, reaches this")
    delete_ratio_files: Count = Field(default=8, description="the previous warning needs at least this many data files")
    manifests: Count = Field(default=100, description="warn at this many manifests")
    small_files: Count = Field(default=1000, description="warn at this many files below the policy's rewrite_small_bytes")
    traces_url: Address | None = Field(default=None, description="an OpenTelemetry collector that receives traces of runs over HTTP, such as http://HOST:4318/v1/traces")


@dataclass(frozen=True, slots=True)
class Token:
    """A client that sends this secret is `name`. It may read or, with the role `operate`, also act."""

    name: str
    role: str
    secret: str = attribute(repr=False)


class ConsoleConfig(Section):
    """The address of the console, the REST API and /metrics, and who may use them.

    `unset` are environment variables that tokens name but that are not set. Other commands need no token. A
    process that serves needs all of them, so it refuses to start if one is unset.
    """

    host: Text = Field(default="127.0.0.1", description="the address that the console, the REST API and /metrics listen on; any address but loopback requires tokens")
    port: Port = Field(default=8480, description="the port they listen on")
    read_tokens: Tokens = Field(default=(), description='who may read, as NAME=TOKEN; a token has at least 16 characters: "ana=${ANA_TOKEN}"')
    operate_tokens: Tokens = Field(default=(), description="who may also request passes, pin, restore, cancel and change policies, as NAME=TOKEN")
    tls_certificate: FilePath | None = Field(default=None, description="a PEM certificate, to serve HTTPS; relative to the file's folder")
    tls_key: FilePath | None = Field(default=None, description="the certificate's PEM key; relative to the file's folder")
    requests_per_s: Positive = Field(default=50, description="requests per second that one client may send; more get 429")
    connections_per_address: Count = Field(default=64, description="connections that one client may have at a time; more are answered 429. A proxy in front is one client")
    max_body_kb: Count = Field(default=64, description="the largest request body; larger ones get 413")
    spark_seconds: Positive = Field(default=120, description="seconds that a call that reads a table through Spark may take; then the client gets 504")
    unset: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def tokens(self) -> tuple[Token, ...]:
        roles = (("read", self.read_tokens), ("operate", self.operate_tokens))
        split = [(role, *split_token(each)) for role, entries in roles for each in entries]
        return tuple(Token(name, role, secret) for role, name, _, secret in split)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False  # a host name may resolve to any address

    @model_validator(mode="after")
    def _no_token_twice(self) -> Self:
        if len({token.secret for token in self.tokens}) < len(self.tokens):
            refuse("two names have the same token; each name needs its own", key="operate_tokens")
        return self


class PriceConfig(Section):
    """The prices of a storage class; a price that is not set keeps its default."""

    storage_gb_month: Cost | None = Field(default=None, description="dollars per GiB and month in this storage class; the defaults are Amazon's list prices for us-east-1")
    put_per_1000: Cost | None = Field(default=None, description="dollars per 1,000 objects written")
    get_per_1000: Cost | None = Field(default=None, description="dollars per 1,000 objects read")
    retrieval_gb: Cost | None = Field(default=None, description="dollars per GiB read")
    minimum_days: Cost | None = Field(default=None, description="the fewest days that an object is billed for")
    minimum_bytes: Cost | None = Field(default=None, description="the fewest bytes that an object is billed for")
    overhead_bytes: Cost | None = Field(default=None, description="bytes added to the billed size of each object")
    restore_per_1000: Cost | None = Field(default=None, description="dollars per 1,000 objects that are recalled from an archive")


class CatalogConfig(Section):
    """One catalog. `properties` are the format's own, as written. `hidden` are those that came from
    environment variables.

    `complete`: the catalog lists all of its tables. If it does not, no proof that a file is unused is
    complete.
    """

    name: str
    format: Annotated[Literal["iceberg", "paimon"], SettingType("iceberg or paimon")] = Field(default="iceberg", description="the format of the catalog's tables")
    complete: Switch = Field(default=True, description="whether the catalog lists all of its tables; if false, purge deletes nothing outside a table's own folders, in any catalog")
    properties: Annotated[Mapping[str, Property], SettingType("text")] = Field(default_factory=dict, title="PROPERTY", description="any other key is the format's own catalog property: type, uri, warehouse, io-impl, s3.endpoint …")
    hidden: frozenset[str] = frozenset()

    @model_serializer
    def _to_dict(self) -> dict[str, Any]:
        complete = {} if self.complete else {"complete": False}
        return {"format": self.format, **complete, **_shown(self.properties, self.hidden)}


class PolicyPattern(Section, extra="allow"):
    """An entry of [[policy.tables]]; its other keys are policy keys."""

    pattern: Pattern = Field(default=None, description="the tables that an entry of [[policy.tables]] applies to, such as lake.db.*; its other keys are policy keys, and later entries win")  # type: ignore[assignment]


class PolicyTrust(Section):
    """An entry of [[policy.trust_table_properties]]: the keys that table properties may set to any value."""

    pattern: Pattern = Field(default=None, description="tables whose own properties may set the keys below to any value, even one that deletes more or sooner")  # type: ignore[assignment]
    keys: Annotated[tuple[str, ...], Field(min_length=1), SettingType("list of text", "a list of policy keys")] = Field(description="the policy keys that these tables may set, by name")


class PolicyConfig(Section):
    """The configured policy layers as written: the environment, `[policy]`, and `[[policy.tables]]` in order."""

    environment: Mapping[str, object] = Field(default_factory=dict)
    file: Annotated[Mapping[str, object], SettingType("policy value")] = Field(default_factory=dict, title="KEY", description="the value of a policy key for every table, unless a more specific layer sets it")
    tables: Annotated[tuple[PolicyPattern, ...], SettingType("", "entries written as [[policy.tables]]")] = ()
    trust_table_properties: Annotated[tuple[Annotated[PolicyTrust, SettingType("", "pattern and keys, a list of policy keys, and nothing else")], ...], SettingType("", "entries written as [[policy.trust_table_properties]], each with pattern and keys")] = ()

    @property
    def patterns(self) -> tuple[tuple[str, Mapping[str, object]], ...]:
        return tuple((each.pattern, each.model_extra or {}) for each in self.tables)

    @property
    def trusted(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The keys that table properties may set to any value, by pattern."""
        return tuple((each.pattern, each.keys) for each in self.trust_table_properties)

    @model_serializer
    def _to_dict(self) -> dict[str, Any]:
        tables = [{"pattern": pattern, **values} for pattern, values in self.patterns]
        trusted = [{"pattern": pattern, "keys": list(keys)} for pattern, keys in self.trusted]
        return {"environment": dict(self.environment), **self.file, "tables": tables, "trust_table_properties": trusted}


# fmt: on


class Config(Section):
    """All settings, resolved and checked. `path` is the file they were read from."""

    state: StateConfig
    spark: SparkConfig
    engine: EngineConfig
    budgets: BudgetsConfig
    catalogs: Mapping[str, CatalogConfig]
    policy: PolicyConfig
    paths: PathsConfig
    lineage: LineageConfig
    gateway: GatewayConfig
    schedule: ScheduleConfig
    worker: WorkerConfig
    health: HealthConfig
    console: ConsoleConfig
    price_settings: Mapping[str, PriceConfig] = Field(alias="prices")
    path: Path | None = None

    @property
    def prices(self) -> Mapping[str, Price]:
        """The default prices with the configured changes. A class without defaults needs at least its storage
        price."""
        said = {name: each.model_dump(exclude_none=True) for name, each in self.price_settings.items()}
        return {**PRICES, **{name: replace(PRICES.get(name, Price(0.0)), **said[name]) for name in said}}

    @classmethod
    def load(
        cls, path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None
    ) -> Config:
        """Load from a file (or none: defaults), the environment, and `overrides` in the shape of the file.
        Raises only ConfigError."""
        from lakewarden.config.load import load

        return load(path, environ, overrides or {})

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], environ: Mapping[str, str] | None = None, base: Path | None = None
    ) -> Config:
        """Load from values in the shape of the file. They override the environment."""
        from lakewarden.config.load import load

        return load(None, environ or {}, values, base)

    def to_dict(self) -> dict[str, Any]:
        sections = self.model_dump(mode="json", exclude={"path", "price_settings"})
        prices = {name: each.to_dict() for name, each in self.prices.items()}
        return {"file": str(self.path) if self.path else None, **sections, "prices": prices}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the settings table in the docs."""

    section: str
    name: str
    type: str
    default: Any
    sentence: str


_DOCUMENTED: Mapping[str, type[Section]] = {
    "state": StateConfig,
    "spark": SparkConfig,
    "engine": EngineConfig,
    "budgets": BudgetsConfig,
    "paths": PathsConfig,
    "lineage": LineageConfig,
    "gateway": GatewayConfig,
    "schedule": ScheduleConfig,
    "worker": WorkerConfig,
    "health": HealthConfig,
    "console": ConsoleConfig,
    "prices.CLASS": PriceConfig,
    "catalogs.NAME": CatalogConfig,
    "policy": PolicyConfig,
    "policy.tables": PolicyPattern,
    "policy.trust_table_properties": PolicyTrust,
}


def _settings(section: str, model: type[Section]) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        if field.description:
            empty = field.is_required() or field.default_factory is not None
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            yield Setting(
                section, field.title or name, _kind(field), None if empty else default, field.description
            )


def _kind(field: FieldInfo) -> str:
    """The Kind of a field. For an optional setting it is one level down: `Kind | None`."""
    inner = (mark for each in get_args(field.annotation) for mark in getattr(each, "__metadata__", ()))
    return next(mark.name for mark in (*field.metadata, *inner) if isinstance(mark, SettingType))


SETTINGS = tuple(row for section, model in _DOCUMENTED.items() for row in _settings(section, model))
