"""The whole lake on one page: the leader, troubles and their age, running jobs, and every table, the most urgent first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from lakewarden.client import Lakewarden
from lakewarden.console.pages.runs import RunningRun, running
from lakewarden.console.pages.schedule import UNKNOWN, NextRun, ScheduleState, next_runs
from lakewarden.console.queries import FleetState, TableState, fleet_state
from lakewarden.health.warnings import FLEET, WarningKind
from lakewarden.model.plain import Plain
from lakewarden.state.health import Numbers, TableHealth
from lakewarden.state.locks import Lease
from lakewarden.state.requests import PassRequest
from lakewarden.state.schedule import PASS, SEEN, Suspension, TableSchedule

PER_PAGE = 100
SHOWN_WRONG = 20
_GRAVE = (WarningKind.SUSPENDED, WarningKind.UNREADABLE, WarningKind.NO_LEADER)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FleetRow(TableState, Plain):
    """One table of the list: only those that were looked at are in it."""

    health: TableHealth
    last: TableSchedule | None = None
    next: NextRun | None = None
    running: bool = False

    JSON_KEYS = "**health format warnings suspended=suspension last_pass=last next_due=next running"

    @property
    def numbers(self) -> Numbers:
        return self.health.numbers

    @property
    def last_at(self) -> datetime | None:
        return None if self.last is None else self.last.ended_at or self.last.began_at

    @property
    def need(self) -> tuple[int, float]:
        """First the tables that are suspended or cannot be read, then those with warnings, then the rest; each by debt."""
        stands_still = bool(self.suspension or self.health.error)
        return 2 * stands_still or int(bool(self.warnings)), self.health.debt

    @property
    def troubled(self) -> bool:
        return bool(self.warnings or self.suspension or self.health.error)


@dataclass(frozen=True, slots=True)
class FleetQuery:
    """What a request asks for: part of a name, a format, a filter, an order, a page of the list."""

    text: str = ""
    format: str = ""
    only: str = ""
    sort: str = "need"
    down: bool = True
    page: int = 1

    def but(self, **changes: Any) -> dict[str, str]:
        """The query of the same wish with changes. Values that are the default are left out."""
        other, usual = replace(self, **changes), FleetQuery()
        shown = {"q": other.text, "format": other.format, "only": other.only, "page": str(other.page)}
        plain = {"q": "", "format": "", "only": "", "page": "1"}
        asked = {name: value for name, value in shown.items() if value != plain[name]}
        if (other.sort, other.down) != (usual.sort, usual.down):
            asked |= {"sort": other.sort, "order": "down" if other.down else "up"}
        return asked

    def by(self, column: str) -> dict[str, str]:
        """Sorted by this column; for the current column, in the other direction."""
        down = not self.down if column == self.sort else column not in ("table", "score", "next")
        return self.but(sort=column, down=down, page=1)


_COLUMNS: Mapping[str, Callable[[FleetRow], Any]] = {
    "need": lambda row: row.need,
    "table": lambda row: row.table,
    "debt": lambda row: row.health.debt,
    "score": lambda row: row.health.score,
    "files": lambda row: row.numbers.files,
    "small": lambda row: row.numbers.small_files,
    "deletes": lambda row: row.numbers.delete_files,
    "snapshots": lambda row: row.numbers.snapshots,
    "bytes": lambda row: row.numbers.bytes,
    "trashed": lambda row: row.numbers.trashed_bytes,
    "last": lambda row: row.last_at.timestamp() if row.last_at else 0.0,
    "next": lambda row: row.next.at.timestamp() if row.next and row.next.at else 1e12,
}
_ONLY: Mapping[str, Callable[[FleetRow], bool]] = {
    "wrong": lambda row: row.troubled,
    "suspended": lambda row: row.suspension is not None,
    "running": lambda row: row.running,
    "due": lambda row: bool(row.next and row.next.now),
}
COLUMNS, ONLY = tuple(_COLUMNS), tuple(_ONLY)


@dataclass(frozen=True, slots=True)
class FleetProblem(Plain):
    """One line of the list of troubles. `table` is empty if it is about all tables."""

    table: str
    kind: str
    text: str
    since: datetime
    grave: bool = False

    JSON_KEYS = "table? kind text since"

    @property
    def tone(self) -> str:
        return "bad" if self.grave else "warn"


@dataclass(frozen=True, slots=True)
class FleetPage(Plain):
    """`rows` are those of this page of the list. `found` is how many the whole list has, `total` how many tables were looked at.
    `not_looked_at` are the other tables that are known and not gone."""

    now: datetime
    wish: FleetQuery
    leader: Lease | None
    rows: tuple[FleetRow, ...]
    found: int
    total: int
    alarms: tuple[FleetProblem, ...]
    wrong: int
    suspended: tuple[Suspension, ...]
    running: tuple[RunningRun, ...]
    waiting: tuple[PassRequest, ...]
    sums: Numbers = field(default_factory=Numbers)
    due: int = 0
    not_looked_at: tuple[str, ...] = ()

    JSON_KEYS = (
        "at=now leader tables_total=total tables_found=found tables_due=due page=wish.page pages sums "
        "wrong_total=wrong wrong=alarms suspended running requests=waiting tables=rows not_looked_at"
    )

    @property
    def pages(self) -> int:
        return max(1, -(-self.found // PER_PAGE))

    @property
    def alarms_left(self) -> int:
        return self.wrong - len(self.alarms)


def fleet(warden: Lakewarden, wish: FleetQuery, outlook: ScheduleState, now: datetime) -> FleetPage:
    """The contents of the fleet page, from the state database alone. The number of queries does not grow with the tables."""
    state = fleet_state(warden, now)
    under_way, leader = running(warden, now), warden.schedule.leader()
    rows = _rows(state, {each.run.table for each in under_way}, outlook)
    wrong = _wrong(rows, state)
    found = [row for row in rows if _meets(row, wish)]
    found.sort(key=lambda row: row.table)
    found.sort(key=_COLUMNS[wish.sort], reverse=wish.down)
    wish = replace(wish, page=min(wish.page, max(1, -(-len(found) // PER_PAGE))))
    start = (wish.page - 1) * PER_PAGE
    return FleetPage(
        now,
        wish,
        leader,
        tuple(found[start : start + PER_PAGE]),
        len(found),
        len(rows),
        tuple(wrong[:SHOWN_WRONG]),
        len(wrong),
        tuple(sorted(state.suspensions.values(), key=lambda each: each.since)),
        under_way,
        warden.schedule.pending(),
        _sums(rows),
        sum(1 for row in rows if row.next and row.next.now),
        state.not_looked_at,
    )


def _wrong(rows: Sequence[FleetRow], state: FleetState) -> list[FleetProblem]:
    """The gravest first, then the oldest. It has troubles that the collector has not warned of yet, too."""
    found = [
        FleetProblem(
            "" if each.table == FLEET else each.table, each.kind, each.text, each.since, each.kind in _GRAVE
        )
        for each in state.warnings
    ]
    warned = {(each.table, each.kind) for each in state.warnings}
    found += [
        FleetProblem(each.table, WarningKind.SUSPENDED, f"by {each.by}: {each.reason}", each.since, True)
        for each in state.suspensions.values()
        if (each.table, WarningKind.SUSPENDED) not in warned
    ]
    found += [
        FleetProblem(each.table, WarningKind.UNREADABLE, each.health.error, each.health.at, True)
        for each in rows
        if each.health.error and (each.table, WarningKind.UNREADABLE) not in warned
    ]
    return sorted(found, key=lambda each: (not each.grave, each.since))


def _rows(state: FleetState, at_work: set[str], outlook: ScheduleState) -> list[FleetRow]:
    next_ = next_runs(outlook.decision)
    return [
        FleetRow(
            name,
            each.format,
            each.health,
            each.warnings,
            each.suspension,
            _last(outlook.standings.get(name, {})),
            next_.get(name, UNKNOWN),
            name in at_work,
        )
        for name, each in state.tables.items()
        if each.health is not None
    ]


def _last(slots: Mapping[str, TableSchedule]) -> TableSchedule | None:
    """The standing of the whole pass; with cron, of the job that began last."""
    if PASS in slots:
        return slots[PASS]
    jobs = [each for slot, each in slots.items() if slot != SEEN]
    return max(jobs, key=lambda each: each.began_at or each.ended_at or _LONG_AGO, default=None)


def _meets(row: FleetRow, wish: FleetQuery) -> bool:
    return (
        all(word in row.table.lower() for word in wish.text.lower().split())
        and (not wish.format or row.format == wish.format)
        and (not wish.only or _ONLY[wish.only](row))
    )


def _sums(rows: Sequence[FleetRow]) -> Numbers:
    names = (
        "files",
        "small_files",
        "delete_files",
        "snapshots",
        "bytes",
        "trashed_bytes",
        "trashed_files",
        "holds",
    )
    return Numbers(**{name: sum(getattr(each.numbers, name) for each in rows) for name in names})
