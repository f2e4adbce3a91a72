"""Questions that only the console asks: about many tables at once, from the state database. No Spark is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.errors import UsageError
from lakewarden.lineage.audit import INPUTS, Downstream, Node, downstream
from lakewarden.lineage.history import Entry, EntrySource, HistoryQuery
from lakewarden.model.run import Run
from lakewarden.model.table import Snapshot
from lakewarden.model.table_name import TableRef
from lakewarden.state.audit_log import OperatorAction, OperatorActions
from lakewarden.state.cold import ColdTables
from lakewarden.state.holds import Heartbeat, Heartbeats, Load, Loads
from lakewarden.state.run_queries import RunFilter, RunSearch
from lakewarden.state.table_details import DetailIndex, InputRow, StoredDetails
from lakewarden.state.tables import SeenTable, SeenTables
from lakewarden.state.trash import TrashedFiles

# ------------------------------------------------------------ tables


def known_tables(lw: Lakewarden) -> tuple[str, ...]:
    """Names of all tables that were ever read or looked at, also of those that are gone."""
    return tuple(sorted({*SeenTables(lw.state).names(), *StoredDetails(lw.state).names()}))


def was_read(lw: Lakewarden, table: str) -> bool:
    """Whether the table's own properties are known, as its policy needs them."""
    return SeenTables(lw.state).get(TableRef.parse(table)) is not None


def cold_of(lw: Lakewarden, table: str) -> str:
    """The table whose colder tier this one is, as hand-off recorded it; empty for a table of its own."""
    return cold_source(lw, SeenTables(lw.state).get(TableRef.parse(table)))


def cold_source(lw: Lakewarden, seen: SeenTable | None) -> str:
    """The same for a table as it was last read."""
    return ColdTables(lw.state).source(seen.properties, seen.uuid) if seen else ""


# ------------------------------------------------------------ runs


def find_runs(
    lw: Lakewarden,
    table: str = "",
    job: str = "",
    state: str = "",
    *,
    exact: bool = False,
    limit: int = 50,
    offset: int = 0,
) -> tuple[Run, ...]:
    """Runs of tables whose name contains (`exact`: is) the text, of this job, in this state; newest first, without plans."""
    return RunSearch(lw.state).find(RunFilter(table, job, state, exact), limit, offset)


def running(lw: Lakewarden) -> tuple[Run, ...]:
    """Runs in progress, the oldest first, without their plans."""
    return RunSearch(lw.state).running()


def deleted_by(lw: Lakewarden, run_id: str) -> int:
    """How many files this run deleted."""
    return TrashedFiles(lw.state).receipts_of(run_id)


def operator_actions(
    lw: Lakewarden, target: str | None = None, limit: int = 100
) -> tuple[OperatorAction, ...]:
    """What operators did through the console and the REST API, the newest first."""
    return OperatorActions(lw.state).list(target, limit)


# ------------------------------------------------------------ portraits and holds


def stored_details(lw: Lakewarden, tables: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """The stored portraits of these tables: see `TableDetails.read`."""
    return StoredDetails(lw.state).of(tables)


def stored_holds(lw: Lakewarden) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Holds of all tables from their portraits: the table, and a stored `HoldLine`."""
    return DetailIndex(lw.state).holds()


def inputs_naming(lw: Lakewarden, text: str) -> tuple[InputRow, ...]:
    """Live commits of any table whose inputs name the text."""
    return DetailIndex(lw.state).inputs_naming(text)


def writers(lw: Lakewarden) -> tuple[Heartbeat, ...]:
    """Writers of all tables that sent a heartbeat that is still valid."""
    now = clock.now()
    return tuple(each for each in Heartbeats(lw.state).list() if each.live(now))


def loads(lw: Lakewarden) -> tuple[Load, ...]:
    """Staged loads of all tables whose files are held now."""
    return Loads(lw.state).live(clock.now())


# ------------------------------------------------------------ lineage


def downstream_known(lw: Lakewarden, table: str, snapshot_id: int) -> Downstream:
    """Everything made from a snapshot, from the database alone: archived history, and snapshots of portraits.

    Only commits that state their inputs are read: no other commit can be downstream.
    `lw.history.downstream` reads the tables too, and finds more where a table has many snapshots.
    """
    unread: dict[str, str] = {}
    ref = TableRef.parse(table)
    table = str(ref)
    pasts, names = lw.history.pasts.of_every_table(ref, True, unread)
    start = Node(names.get(table, table), snapshot_id)
    entries = lw.history.pasts.entries(pasts, start.table, unread, HistoryQuery(inputs=True))
    entries += [
        each for past in pasts if str(past.ref) == start.table for each in past.known({snapshot_id}).values()
    ]
    shown = {(entry.table, entry.snapshot.id) for entry in entries}
    live = [*DetailIndex(lw.state).inputs(), *_start(lw, table, snapshot_id)]
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


def _start(lw: Lakewarden, table: str, snapshot_id: int) -> list[InputRow]:
    """The snapshot itself, if its table's portrait has it. It may state no inputs."""
    lines = stored_details(lw, [table]).get(table, {}).get("snapshots", ())
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
