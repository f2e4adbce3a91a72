"""Every setting: one field each, with its type, default and sentence. `docs/configuration.md` is made from these models.

`config.load` reads them from the file and the environment. Keys and values of policies are checked by `lakewarden.policy`, not here.
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
    Kind,
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

# What upkeep may take of a store others live on, where only the store's own speed is told.
_SHARE_OF_AVAILABLE = 0.3


class Section(BaseModel):
    """A table of settings. Prints as what may be shown, so that no log line and no traceback has a secret.

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
# One line a setting, however long its sentence is.


class StateConfig(Section):
    url: Database = Field(default="sqlite:///lakewarden.db", description="the state database: sqlite:///PATH (relative to the file's folder) or postgresql://USER:PASSWORD@HOST/NAME")


class SparkConfig(Section):
    """`hidden` are the properties of `conf` that an environment variable filled."""

    master: Master = Field(default="local[*]", description="the Spark master that moves the rows: local[N], local[*], spark://HOST:PORT, k8s://ADDRESS or yarn")
    conf: Properties = Field(default_factory=dict, description="Spark's own properties, handed to the session as they are")
    jars: Jars = Field(default=(), description="jars to use instead of the pinned ones; relative to the file's folder")
    hidden: frozenset[str] = frozenset()

    @model_serializer
    def _to_dict(self) -> dict[str, Any]:
        return {"master": self.master, "conf": _shown(self.conf, self.hidden), "jars": list(self.jars)}


class EngineConfig(Section):
    task_memory_mb: Count = Field(default=512, description="memory one rewrite task may use, in MB; what needs more is split or spilled")


class BudgetsConfig(Section):
    """What all rewrites of this process together may take; None is no limit. MB are 1,000,000 bytes."""

    max_tasks: Tasks = Field(default=4, description="rewrite tasks at once, over everything this process does; never more than Spark has cores; `all`: as many as it has cores")
    available_mb_per_s: Rate = Field(default=None, exclude=True, description="what the store can deliver, in MB/s (1 MB is 1,000,000 bytes); reading and writing each take at most 30 % of it unless they have a limit of their own")
    read_mb_per_s: Rate = Field(default=None, description="MB/s all rewrite tasks together may read; 30 % of available_mb_per_s where that is set, else no limit; `none`: no limit")
    write_mb_per_s: Rate = Field(default=None, description="MB/s all rewrite tasks together may write; 30 % of available_mb_per_s where that is set, else no limit; `none`: no limit")
    requests_per_s: Rate = Field(default=None, description="requests per second all rewrite tasks together may send to the store")
    deletes_per_s: Rate = Field(default=None, description="files per second that one purge may delete")
    pause_compaction: Pauses = Field(default=(), description="when scheduled compactions start nothing new, in UTC: 09:00-17:00, over midnight 22:00-06:00, on some days Mon-Fri 09:00-17:00")
    pause_expiry: Pauses = Field(default=(), description="when the worker starts no expire, expire-partitions, handoff, purge or sweep, in UTC; written as pause_compaction is")
    backoff_url: Address | None = Field(default=None, description="a Prometheus server to ask before each rewrite task; no other task starts while backoff_query is above backoff_above")
    backoff_query: Text | None = Field(default=None, description="the PromQL to ask, such as the 95th percentile of query latency; of several values the highest counts")
    backoff_above: Number | None = Field(default=None, description="the value of backoff_query above which tasks wait")
    backoff_poll_seconds: Count = Field(default=15, description="seconds between two questions to Prometheus")
    backoff_max_wait_seconds: Count = Field(default=600, description="seconds after which a waiting task starts all the same, so that upkeep slows down and never stops")

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
            reason = f"found nothing, but {said[0]} is set; it takes {', '.join(every)} together"
            refuse(reason, key=lacking[0], beside=said[0])
        return self


class PathsConfig(Section):
    """What the operator says about places with two names."""

    aliases: Places = Field(default_factory=Aliases, description="pairs of places that tables use two names of: `/mnt/a = /mnt/b` where both are one place, `s3://old != s3://new` where they are not; each is about all that lies below")


class LineageConfig(Section):
    """Where compacted history is kept, and who is told about runs as OpenLineage events."""

    history: Annotated[Literal["state", "table"], Kind("state or table")] = Field(default="state", description="where the detail of compacted lineage history is kept: `state`, in the state database, or `table`, as files in each table's own metadata folder")
    openlineage_url: Address | None = Field(default=None, description="a server that takes OpenLineage events about every run, as http://HOST:PORT/api/v1/lineage")
    openlineage_file: FilePath | None = Field(default=None, description="a file that OpenLineage events are appended to, one a line; relative to the file's folder")
    openlineage_namespace: Text = Field(default="lakewarden", description="the namespace of the jobs in OpenLineage events")


class GatewayConfig(Section):
    """What `lakewarden gateway` listens on, and which catalog it stands in front of."""

    catalog: Text | None = Field(default=None, description="the REST catalog of [catalogs] that the gateway stands in front of; not needed where there is only one")
    host: Text = Field(default="127.0.0.1", description="the address the gateway listens on")
    port: Port = Field(default=8181, description="the port the gateway listens on")
    tls_certificate: FilePath | None = Field(default=None, description="a PEM certificate, to serve HTTPS; relative to the file's folder")
    tls_key: FilePath | None = Field(default=None, description="the certificate's PEM key; relative to the file's folder")
    client_seconds: Count = Field(default=30, description="how long a client may take to send the headers of a request, and then its body; a slower one is answered 408")
    connections_per_address: Count = Field(default=256, description="connections that one client may have at a time; more are answered 429. A proxy in front is one client")
    timeout_seconds: Count = Field(default=60, description="how long the catalog behind may take for an answer; a commit that takes longer is told as unknown, never as failed")


class ScheduleConfig(Section):
    """When tables are due. The times of jobs count where `mode` is cron."""

    mode: Annotated[Literal["interval", "cron"], Kind("interval or cron")] = Field(default="interval", description="`interval`: a whole pass of each table every interval_seconds; `cron`: each job at its own times below")
    interval_seconds: Count = Field(default=3600, description="seconds from the start of a table's pass to the next one; with `cron`, of jobs that are continuous")
    expire_partitions: When = Field(default="30 23 * * *", description="when expire-partitions is due, with `cron`; five fields, in UTC")
    compact_deletes: When = Field(default="continuous", description="when compact-deletes is due, with `cron`")
    compact: When = Field(default="continuous", description="when compact is due, with `cron`")
    rewrite_manifests: When = Field(default="0 2 * * 0", description="when rewrite-manifests is due, with `cron`")
    expire: When = Field(default="0 0 * * *", description="when expire is due, with `cron`")
    handoff: When = Field(default="0 2 * * *", description="when handoff is due, with `cron`; where the policy asks for it, what it hands off expires right after")
    purge: When = Field(default="0 4 * * *", description="when purge is due, with `cron`")
    sweep: When = Field(default="0 6 * * *", description="when sweep is due, with `cron`, where the policy switches it on")
    compact_history: When = Field(default="0 3 1 * *", description="when compact-history is due, with `cron`")

    @property
    def times(self) -> Mapping[str, str]:
        """For each job a cron line, `continuous` or `never`."""
        jobs = [name for name in type(self).model_fields if name not in ("mode", "interval_seconds")]
        return {name.replace("_", "-"): getattr(self, name) for name in jobs}


class WorkerConfig(Section):
    """How the worker leads, how much it does at once, and what it does about a table that keeps failing."""

    tables: Texts = Field(default=("*",), description="patterns of the tables the worker looks after, as lake.db.*; a pattern that begins with ! leaves tables out")
    parallel_tables: Count = Field(default=2, description="tables worked on at once; all of them share the budgets")
    lease_seconds: Count = Field(default=15, description="how long a leader that says nothing keeps leading; after that a standby takes over")
    poll_seconds: Count = Field(default=2, description="seconds between two looks for requests and for tables that are due")
    discover_seconds: Count = Field(default=300, description="seconds between two looks for new and dropped tables")
    max_failures: Count = Field(default=10, description="failures in a row after which a table is suspended until somebody resumes it")
    retry_seconds: Count = Field(default=60, description="seconds a table waits after its first failure; doubled with each further one, up to retry_max_seconds")
    retry_max_seconds: Count = Field(default=3600, description="the longest such wait")
    drain_seconds: Count = Field(default=600, description="seconds that running work has after SIGTERM; then it is stopped cleanly")
    console: Switch = Field(default=True, description="whether the worker serves the console and the REST API too, on the address of [console]")


class HealthConfig(Section):
    """How often every table's health is looked at, how long numbers stay, and what is worth a warning."""

    stats_interval_seconds: Count = Field(default=60, description="seconds between two looks at every table's health")
    keep_days: Count = Field(default=90, description="days that numbers stay for charts and what-if, older ones are thinned out to one a day; ended requests, loads and pins, silent writers, warnings that are over and what is known of dropped tables go after them")
    delete_ratio: Positive = Field(default=0.3, description="warn where so many delete files per data file, or this share of rows deleted, is reached")
    delete_ratio_files: Count = Field(default=8, description="and the table has at least so many data files")
    manifests: Count = Field(default=100, description="warn at this many manifests")
    small_files: Count = Field(default=1000, description="warn at this many files below the policy's rewrite_small_bytes")
    traces_url: Address | None = Field(default=None, description="an OpenTelemetry collector that takes traces of runs over HTTP, as http://HOST:4318/v1/traces")


@dataclass(frozen=True, slots=True)
class Token:
    """Who shows this secret is `name`, and may look or, with the role `operate`, act."""

    name: str
    role: str
    secret: str = attribute(repr=False)


class ConsoleConfig(Section):
    """What the console, the REST API and /metrics listen on, and who may do what there.

    `unset` are variables that tokens name and this environment lacks. A command that lists runs needs no token, a process
    that serves needs all of them: where one is unset, there are no tokens.
    """

    host: Text = Field(default="127.0.0.1", description="the address that the console, the REST API and /metrics listen on; on any but the loopback, tokens are needed")
    port: Port = Field(default=8480, description="the port they listen on")
    read_tokens: Tokens = Field(default=(), description='who may look, as NAME=TOKEN; a token has 16 characters at least: "ana=${ANA_TOKEN}"')
    operate_tokens: Tokens = Field(default=(), description="who may also ask for passes, pin, restore, cancel and change policies, as NAME=TOKEN")
    tls_certificate: FilePath | None = Field(default=None, description="a PEM certificate, to serve HTTPS; relative to the file's folder")
    tls_key: FilePath | None = Field(default=None, description="the certificate's PEM key; relative to the file's folder")
    requests_per_s: Positive = Field(default=50, description="requests a second that one client may send; more are answered 429")
    connections_per_address: Count = Field(default=64, description="connections that one client may have at a time; more are answered 429. A proxy in front is one client")
    max_body_kb: Count = Field(default=64, description="the largest body that is read; larger ones are answered 413")
    spark_seconds: Positive = Field(default=120, description="how long a call that reads a table through Spark may take; then it is answered 504")
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
            return False  # a name may be anybody's address

    @model_validator(mode="after")
    def _no_token_twice(self) -> Self:
        if len({token.secret for token in self.tokens}) < len(self.tokens):
            refuse("two names have the same token; give each its own", key="operate_tokens")
        return self


class PriceConfig(Section):
    """What a storage class costs; what is not said is as in the defaults."""

    storage_gb_month: Cost | None = Field(default=None, description="dollars for a GiB of that storage class, a month; the defaults are Amazon's list prices for us-east-1")
    put_per_1000: Cost | None = Field(default=None, description="dollars for a thousand objects that are written")
    get_per_1000: Cost | None = Field(default=None, description="dollars for a thousand objects that are read")
    retrieval_gb: Cost | None = Field(default=None, description="dollars for a GiB that is read")
    minimum_days: Cost | None = Field(default=None, description="days an object is billed for at least")
    minimum_bytes: Cost | None = Field(default=None, description="bytes an object is billed for at least")
    overhead_bytes: Cost | None = Field(default=None, description="bytes each object is billed for beyond its own")
    restore_per_1000: Cost | None = Field(default=None, description="dollars for a thousand objects that an archive is asked to make readable")


class CatalogConfig(Section):
    """One catalog; `properties` are the format's own, as written. `hidden` are those an environment variable filled.

    `complete`: it lists every table it has. Where one does not, no proof of "no table names this file" is whole.
    """

    name: str
    format: Annotated[Literal["iceberg", "paimon"], Kind("iceberg or paimon")] = Field(default="iceberg", description="the format of the catalog's tables")
    complete: Switch = Field(default=True, description="whether the catalog lists every table that it has; false, and purge deletes nothing outside a table's own folders, in any catalog")
    properties: Annotated[Mapping[str, Property], Kind("text")] = Field(default_factory=dict, title="PROPERTY", description="any other key is the format's own catalog property: type, uri, warehouse, io-impl, s3.endpoint …")
    hidden: frozenset[str] = frozenset()

    @model_serializer
    def _to_dict(self) -> dict[str, Any]:
        complete = {} if self.complete else {"complete": False}
        return {"format": self.format, **complete, **_shown(self.properties, self.hidden)}


class PolicyPattern(Section, extra="allow"):
    """An entry of [[policy.tables]]; its other keys are policy keys."""

    pattern: Pattern = Field(default=None, description="the tables an entry of [[policy.tables]] is for, as lake.db.*; its other keys are policy keys, and later entries win")  # type: ignore[assignment]


class PolicyTrust(Section):
    """An entry of [[policy.trust_table_properties]]: the keys that table properties may set to any value."""

    pattern: Pattern = Field(default=None, description="tables whose own properties may set the keys below to any value, also to ones that delete more or sooner")  # type: ignore[assignment]
    keys: Annotated[tuple[str, ...], Field(min_length=1), Kind("list of text", "a list of policy keys")] = Field(description="the policy keys that these tables are trusted with, by name")


class PolicyConfig(Section):
    """The policy layers that are configured, as written: the environment, `[policy]`, and `[[policy.tables]]` in order."""

    environment: Mapping[str, object] = Field(default_factory=dict)
    file: Annotated[Mapping[str, object], Kind("policy value")] = Field(default_factory=dict, title="KEY", description="what a policy key is for every table, unless something more specific says otherwise")
    tables: Annotated[tuple[PolicyPattern, ...], Kind("", "entries written as [[policy.tables]]")] = ()
    trust_table_properties: Annotated[tuple[Annotated[PolicyTrust, Kind("", "pattern and keys, a list of policy keys, and nothing else")], ...], Kind("", "entries written as [[policy.trust_table_properties]], each with pattern and keys")] = ()

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
    """Every setting, resolved and checked. `path` is the file it was read from."""

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
        """The defaults, with what the settings say; a class that has none needs at least what its storage costs."""
        said = {name: each.model_dump(exclude_none=True) for name, each in self.price_settings.items()}
        return {**PRICES, **{name: replace(PRICES.get(name, Price(0.0)), **said[name]) for name in said}}

    @classmethod
    def load(
        cls, path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None
    ) -> Config:
        """From a file (or none: defaults), the environment, and `overrides` in the shape of the file. Only ConfigError."""
        from lakewarden.config.load import load

        return load(path, environ, overrides or {})

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], environ: Mapping[str, str] | None = None, base: Path | None = None
    ) -> Config:
        """From values in the shape of the file. They are the call's own, so they win over the environment."""
        from lakewarden.config.load import load

        return load(None, environ or {}, values, base)

    def to_dict(self) -> dict[str, Any]:
        sections = self.model_dump(mode="json", exclude={"path", "price_settings"})
        prices = {name: each.to_dict() for name, each in self.prices.items()}
        return {"file": str(self.path) if self.path else None, **sections, "prices": prices}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings, as the docs print it."""

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
    """A setting that may be left out has its kind one level down: `Kind | None`."""
    inner = (mark for each in get_args(field.annotation) for mark in getattr(each, "__metadata__", ()))
    return next(mark.name for mark in (*field.metadata, *inner) if isinstance(mark, Kind))


SETTINGS = tuple(row for section, model in _DOCUMENTED.items() for row in _settings(section, model))
