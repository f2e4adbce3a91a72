"""Settings of what runs for months: the schedule, the worker, its look at every table's health, and the console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cronsim import CronSim, CronSimError

from lakewarden.config.load import Settings
from lakewarden.config.settings import SETTINGS
from lakewarden.redact import MASK, redact_url

CONTINUOUS, NEVER = "continuous", "never"
_ANY_DAY = datetime(2026, 1, 1, tzinfo=UTC)
_TOKEN_LENGTH = 16
_NOT_JOBS = ("mode", "interval_seconds")
_TIMES: Mapping[str, str] = {
    each.name.replace("_", "-"): each.default
    for each in SETTINGS
    if each.section == "schedule" and each.name not in _NOT_JOBS
}


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """When tables are due. `times` has for each job a cron line, `continuous` or `never`; it counts where `mode` is cron."""

    mode: str = "interval"
    interval_seconds: int = 3600
    times: Mapping[str, str] = field(default_factory=lambda: dict(_TIMES))

    def to_dict(self) -> dict[str, Any]:
        times = {name.replace("-", "_"): line for name, line in self.times.items()}
        return {"mode": self.mode, "interval_seconds": self.interval_seconds, **times}


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How the worker leads, how much it does at once, and what it does about a table that keeps failing."""

    tables: tuple[str, ...] = ("*",)
    parallel_tables: int = 2
    lease_seconds: int = 15
    poll_seconds: int = 2
    discover_seconds: int = 300
    max_failures: int = 10
    retry_seconds: int = 60
    retry_max_seconds: int = 3600
    drain_seconds: int = 600
    console: bool = True

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tables": list(self.tables)}


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """How often every table's health is looked at, how long numbers stay, and what is worth a warning."""

    stats_interval_seconds: int = 60
    keep_days: int = 90
    delete_ratio: float = 0.3
    delete_ratio_files: int = 8
    manifests: int = 100
    small_files: int = 1000
    traces_url: str | None = None

    def to_dict(self) -> dict[str, Any]:
        url = None if self.traces_url is None else redact_url(self.traces_url)
        return {**asdict(self), "traces_url": url}


@dataclass(frozen=True, slots=True)
class Token:
    """Who shows this secret is `name`, and may look or, with the role `operate`, act."""

    name: str
    role: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """What the console, the REST API and /metrics listen on, and who may do what there."""

    host: str = "127.0.0.1"
    port: int = 8480
    tokens: tuple[Token, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    requests_per_s: float = 50
    max_body_kb: int = 64
    spark_seconds: float = 120
    connections_per_address: int = 64
    # Variables that tokens name and this environment lacks: who lists runs needs nobody's token, who serves needs all of them.
    unset: tuple[str, ...] = ()

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may be anybody's address

    def to_dict(self) -> dict[str, Any]:
        shown = {role: [f"{t.name}={MASK}" for t in self.tokens if t.role == role] for role in ROLES}
        rest = {name: value for name, value in asdict(self).items() if name not in ("tokens", "unset")}
        return {**rest, "read_tokens": shown["read"], "operate_tokens": shown["operate"]}


ROLES = ("read", "operate")


def read_schedule(settings: Settings) -> ScheduleConfig:
    return ScheduleConfig(
        settings.one_of("schedule", "mode", "interval", "cron"),
        settings.count("schedule", "interval_seconds"),
        {job: _times(settings, job.replace("-", "_")) for job in _TIMES},
    )


def _times(settings: Settings, name: str) -> str:
    line = settings.maybe_text("schedule", name) or NEVER
    if line in (CONTINUOUS, NEVER):
        return line
    try:
        if len(line.split()) != 5:
            raise CronSimError("it needs five fields: minute, hour, day, month, weekday")
        CronSim(line, _ANY_DAY)
    except CronSimError as error:
        settings.refuse("schedule", name, f"found {line!r}: {error}; or write {CONTINUOUS} or {NEVER}")
    return line


def read_worker(settings: Settings) -> WorkerConfig:
    counts = ("parallel_tables", "lease_seconds", "poll_seconds", "discover_seconds", "max_failures")
    waits = ("retry_seconds", "retry_max_seconds", "drain_seconds")
    numbers = {name: settings.count("worker", name) for name in (*counts, *waits)}
    return WorkerConfig(
        tables=settings.texts("worker", "tables"), console=settings.switch("worker", "console"), **numbers
    )


def read_health(settings: Settings) -> HealthConfig:
    return HealthConfig(
        settings.count("health", "stats_interval_seconds"),
        settings.count("health", "keep_days"),
        settings.above_zero("health", "delete_ratio"),
        settings.count("health", "delete_ratio_files"),
        settings.count("health", "manifests"),
        settings.count("health", "small_files"),
        settings.maybe_server("health", "traces_url"),
    )


def read_console(settings: Settings, base: Path) -> ConsoleConfig:
    unset = tuple(each for role in ROLES for each in settings.unset("console", f"{role}_tokens"))
    tokens = [] if unset else [token for role in ROLES for token in _tokens(settings, role)]
    made = ConsoleConfig(
        settings.maybe_text("console", "host") or "127.0.0.1",
        settings.port("console"),
        tuple(tokens),
        settings.maybe_path("console", "tls_certificate", base),
        settings.maybe_path("console", "tls_key", base),
        settings.above_zero("console", "requests_per_s"),
        settings.count("console", "max_body_kb"),
        settings.above_zero("console", "spark_seconds"),
        settings.count("console", "connections_per_address"),
        unset,
    )
    if len({token.secret for token in tokens}) < len(tokens):
        settings.refuse("console", "operate_tokens", "two names have the same token; give each its own")
    return made


def _tokens(settings: Settings, role: str) -> list[Token]:
    made = []
    for text in settings.texts("console", f"{role}_tokens"):
        name, equals, secret = text.partition("=")
        key = f"{role}_tokens"
        # The text holds a secret, or was meant to: it is not repeated.
        if not equals or not name.strip():
            settings.refuse("console", key, 'an entry is not NAME=TOKEN, as "ana=${ANA_TOKEN}"')
        if len(secret.strip()) < _TOKEN_LENGTH:
            reason = f"the token of {name.strip()} has fewer than {_TOKEN_LENGTH} characters"
            settings.refuse("console", key, f"{reason}; `openssl rand -hex 24` makes one")
        if secret.strip().startswith("$"):
            reason = f"the token of {name.strip()} begins with $ and names no variable"
            settings.refuse(
                "console", key, f"{reason}; write ${{NAME}}, with braces, for an environment variable"
            )
        made.append(Token(name.strip(), role, secret.strip()))
    return made
