"""What the REST API and the pages show: the fleet, one table, one run, and questions about many tables at
once. Only the state database is read. No Spark is started.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.errors import NoSuchTable, UsageError
from lakewarden.lineage.audit import INPUTS, Downstream, Node, downstream
from lakewarden.lineage.history import Entry, EntrySource, HistoryQuery
from lakewarden.model.run import Run
from lakewarden.model.table import Snapshot, TableRef
from lakewarden.report.run import RunReport
from lakewarden.state.audit_log import OperatorAction, OperatorActions
from lakewarden.state.cold import ColdTables
from lakewarden.state.fleet import Fleet
from lakewarden.state.health import StoredWarning, TableHealth
from lakewarden.state.holds import Heartbeat, Heartbeats, Load, Loads
from lakewarden.state.run_queries import RunFilter, RunSearch
from lakewarden.state.schedule import Suspension, TableSchedule
from lakewarden.state.tables import DetailIndex, InputRow, SeenTable, SeenTables, StoredDetails
from lakewarden.state.trash import TrashedFiles


@dataclass(frozen=True, slots=True)
class TableState:
    """What the state database knows of one table: the fleet, the table's page and the REST API show it.

    `health` is None for a table that was never looked at; `format` is empty if its catalog is not configured.
    """

    table: str
    format: str
    health: TableHealth | None
    warnings: tuple[StoredWarning, ...]
    suspension: Suspension | None


@dataclass(frozen=True, slots=True)
class FleetState:
    """All tables that are known and not gone, by name. `warnings` are theirs, and those about the fleet as a whole."""

    tables: Mapping[str, TableState]
    warnings: tuple[StoredWarning, ...]
    suspensions: Mapping[str, Suspension]
    not_looked_at: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OneTable(TableState):
    """One table, with what only its own page needs. `seen` is None if no command and no worker has read it."""

    seen: SeenTable | None
    over: tuple[StoredWarning, ...]
    standings: tuple[TableSchedule, ...]


def fleet_state(warden: Lakewarden, now: datetime) -> FleetState:
    """The same few queries however many tables there are."""
    looks = {each.table: each for each in warden.health.all()}
    warnings, suspended = warden.health.warnings(), Fleet(warden.state).suspensions()
    there = present(warden, now)
    warned = defaultdict(list)
    for each in warnings:
        warned[each.table].append(each)
    tables = {
        name: TableState(
            name,
            _format(warden, TableRef.parse(name)),
            looks.get(name),
            tuple(warned.get(name, ())),
            suspended.get(name),
        )
        for name in sorted({*looks, *there, *suspended})
    }
    return FleetState(tables, warnings, suspended, tuple(sorted(there - looks.keys())))


def one_table(warden: Lakewarden, name: str, also_cleared: int = 0) -> OneTable:
    """NoSuchTable if no command and no worker ever read a table of that name. `over`: so many warnings that were cleared."""
    ref = warden.names.checked(name)
    seen, health = SeenTables(warden.state).get(ref), warden.health.of(ref)
    if seen is None and health is None:
        raise _unknown(ref)
    name, warned = str(ref), warden.health.warnings(ref, also_cleared)
    return OneTable(
        table=name,
        format=_format(warden, ref),
        health=health,
        warnings=tuple(each for each in warned if each.cleared_at is None),
        suspension=warden.schedule.suspended().get(name),
        seen=seen,
        over=tuple(each for each in warned if each.cleared_at is not None),
        standings=warden.schedule.standings(ref),
    )


def _format(warden: Lakewarden, ref: TableRef) -> str:
    catalog = warden.config.catalogs.get(ref.catalog)
    return catalog.format if catalog else ""


def fleet(warden: Lakewarden) -> dict[str, Any]:
    """Every table that is known and not gone: its health if it was looked at, its open warnings, whether it is suspended."""
    return {
        "tables": [
            {
                **_health(each),
                "warnings": [warned.kind for warned in each.warnings],
                "suspended": each.suspension.reason if each.suspension else None,
            }
            for each in fleet_state(warden, clock.now()).tables.values()
        ]
    }


def _health(table: TableState) -> dict[str, Any]:
    return table.health.to_dict() if table.health else {**_UNSEEN, "table": table.table}


_UNSEEN = {"at": None, "score": None, "debt": None, "numbers": None, "error": None}


def present(warden: Lakewarden, now: datetime) -> set[str]:
    """Tables that a worker or a command knows, without dropped ones and those that were not read for `keep_days`."""
    return Fleet(warden.state).there(now - timedelta(days=warden.config.health.keep_days))


def table(warden: Lakewarden, name: str) -> dict[str, Any]:
    """What the state database knows about one table: health, warnings, schedule, and its portrait from the last look."""
    found = one_table(warden, name)
    return {
        **_health(found),
        "portrait": dict(found.health.portrait) if found.health else None,
        "warnings": [each.to_dict() for each in found.warnings],
        "standings": [each.to_dict() for each in found.standings],
        "suspended": found.suspension.to_dict() if found.suspension else None,
    }


def known(warden: Lakewarden, name: str) -> TableRef:
    """A table that was ever read or looked at, or NoSuchTable."""
    ref = warden.names.checked(name)
    if SeenTables(warden.state).get(ref) is None and warden.health.of(ref) is None:
        raise _unknown(ref)
    return ref


def _unknown(ref: TableRef) -> NoSuchTable:
    reason = "neither the worker nor a command has read one of that name"
    return NoSuchTable(table=ref, reason=reason, hint=_LOOK)


_LOOK = "the worker finds new tables within discover_seconds; `lakewarden show TABLE` reads one now"


def snapshot_id(text: str) -> int:
    """A number as both formats have them, 64 bits; UsageError where it is none. Digits of other scripts are not numbers here."""
    if not _ID.fullmatch(text) or int(text) >= 1 << 63:
        raise UsageError(
            reason=f"read snapshot {text[:40]!r}: it is not a number of a snapshot",
            hint="copy one from the list of snapshots",
        )
    return int(text)


_ID = re.compile("[0-9]{1,19}")


def health_history(warden: Lakewarden, name: str, days: float, most: int) -> dict[str, Any]:
    """Earlier looks, the oldest first: evenly chosen where there are more."""
    ref = known(warden, name)
    points = warden.health.history(ref, clock.now() - timedelta(days=days), most)
    return {
        "table": str(ref),
        "points": [
            {"at": each.at.isoformat(), "score": each.score, "numbers": each.numbers.to_dict()}
            for each in points
        ],
    }


def run(warden: Lakewarden, run_id: str) -> dict[str, Any]:
    """One run, its steps and, while it is under way, how far it is."""
    found, steps = warden.run_by_id(run_id)
    progress = warden.schedule.progress_of(run_id) if found.ended_at is None else None
    return {**RunReport(found, steps).to_dict(), "progress": progress.to_dict() if progress else None}


# ------------------------------------------------------------ tables


def known_tables(warden: Lakewarden) -> tuple[str, ...]:
    """Names of all tables that were ever read or looked at, also of those that are gone."""
    return tuple(sorted({*SeenTables(warden.state).names(), *StoredDetails(warden.state).names()}))


def was_read(warden: Lakewarden, table: str) -> bool:
    """Whether the table's own properties are known, as its policy needs them."""
    return SeenTables(warden.state).get(TableRef.parse(table)) is not None


def cold_source(warden: Lakewarden, seen: SeenTable | None) -> str:
    """The table whose colder tier this one is, as hand-off recorded it; empty for a table of its own."""
    return ColdTables(warden.state).source(seen.properties, seen.uuid) if seen else ""


# ------------------------------------------------------------ runs


def find_runs(
    warden: Lakewarden,
    table: str = "",
    job: str = "",
    state: str = "",
    *,
    exact: bool = False,
    limit: int = 50,
    offset: int = 0,
) -> tuple[Run, ...]:
    """Runs of tables whose name contains (`exact`: is) the text, of this job, in this state; newest first, without plans."""
    return RunSearch(warden.state).find(RunFilter(table, job, state, exact), limit, offset)


def running(warden: Lakewarden) -> tuple[Run, ...]:
    """Runs in progress, the oldest first, without their plans."""
    return RunSearch(warden.state).running()


def deleted_by(warden: Lakewarden, run_id: str) -> int:
    """How many files this run deleted."""
    return TrashedFiles(warden.state).receipts_of(run_id)


def operator_actions(
    warden: Lakewarden, target: str | None = None, limit: int = 100
) -> tuple[OperatorAction, ...]:
    """What operators did through the console and the REST API, the newest first."""
    return OperatorActions(warden.state).list(target, limit)


# ------------------------------------------------------------ portraits and holds


def stored_details(warden: Lakewarden, tables: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """The stored portraits of these tables: see `TableDetails.read`."""
    return StoredDetails(warden.state).of(tables)


def stored_holds(warden: Lakewarden) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Holds of all tables from their portraits: the table, and a stored `HoldLine`."""
    return DetailIndex(warden.state).holds()


def inputs_naming(warden: Lakewarden, text: str) -> tuple[InputRow, ...]:
    """Live commits of any table whose inputs name the text."""
    return DetailIndex(warden.state).inputs_naming(text)


def writers(warden: Lakewarden) -> tuple[Heartbeat, ...]:
    """Writers of all tables that sent a heartbeat that is still valid."""
    now = clock.now()
    return tuple(each for each in Heartbeats(warden.state).list() if each.live(now))


def loads(warden: Lakewarden) -> tuple[Load, ...]:
    """Staged loads of all tables whose files are held now."""
    return Loads(warden.state).live(clock.now())


# ------------------------------------------------------------ lineage


def downstream_known(warden: Lakewarden, table: str, snapshot_id: int) -> Downstream:
    """Everything made from a snapshot, from the database alone: archived history, and snapshots of portraits.

    Only commits that state their inputs are read: no other commit can be downstream.
    `lw.history.downstream` reads the tables too, and finds more where a table has many snapshots.
    """
    unread: dict[str, str] = {}
    ref = TableRef.parse(table)
    table = str(ref)
    pasts, names = warden.history.pasts.of_every_table(ref, True, unread)
    start = Node(names.get(table, table), snapshot_id)
    entries = warden.history.pasts.entries(pasts, start.table, unread, HistoryQuery(inputs=True))
    entries += [
        each for past in pasts if str(past.ref) == start.table for each in past.known({snapshot_id}).values()
    ]
    shown = {(entry.table, entry.snapshot.id) for entry in entries}
    live = [*DetailIndex(warden.state).inputs(), *_start(warden, table, snapshot_id)]
    for each in live:
        name = names.get(each.table, each.table)
        if (name, each.snapshot_id) not in shown:
            entries.append(_painted(name, each))
    found = downstream(entries, start, tuple(unread.items()), names=names)
    if found.entry is None and not found.affected:
        raise UsageError(
            reason=f"find snapshot {snapshot_id} of {table}: neither its portrait nor its history has it, and no commit names it",
            hint=f"see `lakewarden history {table}`",
        )
    return found


def _start(warden: Lakewarden, table: str, snapshot_id: int) -> list[InputRow]:
    """The snapshot itself, if its table's portrait has it. It may state no inputs."""
    lines = stored_details(warden, [table]).get(table, {}).get("snapshots", ())
    return [
        InputRow(
            table,
            each["id"],
            datetime.fromisoformat(each["at"]),
            each["operation"],
            each.get("inputs", ""),
        )
        for each in lines
        if each["id"] == snapshot_id
    ]


def _painted(table: str, found: InputRow) -> Entry:
    """A live snapshot of a portrait as an entry of history, with as much of its summary as it has."""
    summary = {INPUTS: found.inputs} if found.inputs else {}
    return Entry(
        table, Snapshot(found.snapshot_id, None, 0, found.at, found.operation, summary), EntrySource.LIVE
    )
