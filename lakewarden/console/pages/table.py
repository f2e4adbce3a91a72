"""The page of one table: troubles, history, policy with origins, next turns, runs, trash and holds, and what
it is made from and what is made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lakewarden.client import Lakewarden
from lakewarden.console import queries
from lakewarden.console.pages.runs import RunningRun, running
from lakewarden.console.pages.schedule import NextRun, due_of, next_job_runs
from lakewarden.console.queries import OneTable, one_table
from lakewarden.errors import PolicyError
from lakewarden.health.table_details import SnapshotLine, TableDetails
from lakewarden.health.warnings import WarningKind
from lakewarden.jobs.cold.cost import price_of
from lakewarden.lineage.audit import inputs_of
from lakewarden.model.plain import Plain, pick, to_plain
from lakewarden.model.prices import GIB
from lakewarden.model.reason import HELD, ReasonKind
from lakewarden.model.run import Run
from lakewarden.model.table import TableRef
from lakewarden.policy.resolve import Policy
from lakewarden.report.holds import PinsReport
from lakewarden.report.run import RunsReport
from lakewarden.report.trash import ReceiptsReport, TrashedReport
from lakewarden.state.audit_log import OperatorAction
from lakewarden.state.health import Point, TableHealth
from lakewarden.state.requests import PassRequest
from lakewarden.worker.schedule import Decision

SPANS = {"6h": 6, "24h": 24, "7d": 168, "30d": 720, "90d": 2160}
_POINTS = 240
# Numbers that do not change are stored once a day: the last one before the shown time still counts.
_A_DAY = timedelta(days=1)
_FILES = 50


@dataclass(frozen=True, slots=True)
class Cost(Plain):
    """Dollars per month for the known bytes, at the configured price of the standard class."""

    live: float
    held: float
    trashed: float


@dataclass(frozen=True, slots=True)
class TablePage(OneTable):
    """`policy_error` says why there is no policy to show. `portrait` is None until the table is looked at."""

    now: datetime
    portrait: TableDetails | None
    span: str
    points: tuple[Point, ...]
    policy: Policy | None
    policy_error: str
    next: NextRun
    jobs: tuple[NextRun, ...]
    running: tuple[RunningRun, ...]
    runs: tuple[Run, ...]
    requests: tuple[PassRequest, ...]
    trashed: TrashedReport
    receipts: ReceiptsReport
    pins: PinsReport
    kin: TableRelations
    actions: tuple[OperatorAction, ...]
    cost: Cost | None
    cold_of: str = ""  # the table whose colder tier this is

    @property
    def unread_since(self) -> datetime | None:
        """Since when the table cannot be read; None if its last look succeeded."""
        if self.health is None or not self.health.error:
            return None
        warned = [each.since for each in self.warnings if each.kind == WarningKind.UNREADABLE]
        return min(warned, default=self.health.at)

    @property
    def numbers_of(self) -> datetime | None:
        """When the numbers were read: a table that cannot be read keeps its last numbers."""
        details = self.portrait.painted_at if self.portrait else None
        return details or max((each.at for each in self.points), default=None)

    @property
    def since(self) -> datetime:
        return self.now - timedelta(hours=SPANS[self.span])

    def to_dict(self) -> dict[str, Any]:
        return {
            **pick(self, "at=now table format health portrait warnings warnings_over=over"),
            **pick(self, "suspended=suspension span"),
            "history": [pick(each, "at score **numbers") for each in self.points],
            "policy": to_plain(self.policy),
            "policy_ignored": to_plain(self.policy.ignored) if self.policy else [],
            **pick(self, "policy_error? standings next jobs running"),
            **RunsReport(self.runs, self.now).to_dict(),
            **pick(self, "requests trash=trashed"),
            "receipts": self.receipts.to_dict()["receipts"],
            "pins": self.pins.to_dict()["pins"],
            **pick(self, "lineage=kin actions dollars_a_month=cost"),
        }


def table_page(warden: Lakewarden, name: str, span: str, decision: Decision, now: datetime) -> TablePage:
    """Only the state database is read. NoSuchTable if no command and no worker ever read a table of that name."""
    found = one_table(warden, name, also_cleared=5)
    name, look = found.table, found.health
    portrait = TableDetails.read(look.portrait) if look else None
    policy, policy_error = _policy(warden, found)
    hours = SPANS[span]
    return TablePage(
        table=name,
        format=found.format,
        health=look,
        warnings=found.warnings,
        suspension=found.suspension,
        seen=found.seen,
        over=found.over,
        standings=found.standings,
        now=now,
        portrait=portrait,
        span=span,
        points=warden.health.history(name, now - timedelta(hours=hours) - _A_DAY, _POINTS),
        policy=policy,
        policy_error=policy_error,
        next=due_of(decision, name),
        jobs=next_job_runs(warden.config.schedule, found.standings, policy, now),
        running=running(warden, now, name),
        runs=queries.find_runs(warden, table=name, exact=True, limit=12),
        requests=warden.schedule.requests(name, limit=5),
        trashed=TrashedReport(name, warden.trash(name, _FILES), now),
        receipts=ReceiptsReport(name, warden.receipts(name, 10), now),
        pins=PinsReport(tuple(each for each in warden.holds.pins(name) if each.live(now)), now),
        kin=table_relations(warden, name, portrait),
        actions=queries.operator_actions(warden, name, limit=10),
        cost=_cost(warden, look),
        cold_of=queries.cold_source(warden, found.seen),
    )


def _policy(warden: Lakewarden, found: OneTable) -> tuple[Policy | None, str]:
    """A table that was never read has no policy yet, because its own properties count. Reading it would start Spark."""
    if found.seen is None:
        return None, "the table was not read yet, and its own properties are part of its policy"
    try:
        return warden.connections.resolve(TableRef.parse(found.table), found.seen.properties), ""
    except PolicyError as error:  # shown on the page, where it can be fixed
        return None, error.message


def _cost(warden: Lakewarden, look: TableHealth | None) -> Cost | None:
    if look is None:
        return None
    dollars = price_of(None, warden.config.prices).storage_gb_month / GIB
    numbers = look.numbers
    return Cost(numbers.bytes * dollars, numbers.held_bytes * dollars, numbers.trashed_bytes * dollars)


def kind_of(line: SnapshotLine) -> str:
    """The colour of a snapshot on the timeline: why it stays."""
    if not line.kept:
        return "goes"
    if line.kept_kind in HELD:
        return "held"
    return "least" if line.kept_kind == ReasonKind.MIN_RETAINED else "window"


_MOST = 12


@dataclass(frozen=True, slots=True)
class TableRelations:
    """Names of tables, with how many live commits tell so: where this one's data came from, and where it went."""

    table: str
    sources: tuple[tuple[str, int], ...] = ()
    results: tuple[tuple[str, int], ...] = ()

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        came = [(name, self.table) for name, _ in self.sources]
        return (*came, *((self.table, name) for name, _ in self.results))

    def to_dict(self) -> dict[str, Any]:
        return {
            "sources": [{"table": name, "commits": count} for name, count in self.sources],
            "results": [{"table": name, "commits": count} for name, count in self.results],
        }


def table_relations(warden: Lakewarden, table: str, portrait: TableDetails | None) -> TableRelations:
    if portrait is None:
        return TableRelations(table)
    results = Counter(
        each.table
        for each in queries.inputs_naming(warden, f"{table}@")
        if each.table != table and table in _named(each.inputs)
    )
    sources = Counter(name for line in portrait.snapshots for name in _named(line.inputs) if name != table)
    return TableRelations(table, _most(sources), _most(results))


def _named(inputs: str) -> set[str]:
    return {table for table, _ in inputs_of(inputs)[0] if table} if inputs else set()


def _most(counted: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counted.items(), key=lambda each: (-each[1], each[0]))[:_MOST])
