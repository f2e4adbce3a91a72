"""`lw.history`: what was committed to a table, by which writer and for whom, and what was made from it. The
past of a table is its live snapshots, and the history that was archived before snapshots expired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakewarden.errors import LakewardenError, UsageError
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.filters import check
from lakewarden.policy.values import moment
from lakewarden.services.deps import ServiceDeps, table_ref

if TYPE_CHECKING:
    from lakewarden.jobs.loads.ingested import IngestedLookup
    from lakewarden.lineage.audit import CommitAuthors, Downstream, Gaps, Ingested
    from lakewarden.lineage.history import Entry, HistoryQuery, TableHistory
    from lakewarden.state.history import Detail


@dataclass(frozen=True, slots=True)
class HistoryView:
    """A table's history: the newest entries, the folded months with their ranges, and how many entries are where."""

    table: str
    entries: tuple[Entry, ...]
    details: tuple[Detail, ...]
    counts: Mapping[str, int]


class HistoryService:
    """Commits of tables, their writers and triggers, and the audit questions about them.

    With `history_only` no table is read and no Spark is started. The answer then has only what was archived before snapshots expired.
    """

    def __init__(self, deps: ServiceDeps, pasts: Pasts) -> None:
        self._deps, self.pasts = deps, pasts

    def of(self, table: str | TableRef, limit: int | None = 50, *, history_only: bool = False) -> HistoryView:
        """The table's newest entries, and which months are folded. `limit` None: every entry, those of folded months too."""
        from lakewarden.lineage.history import EntrySource, HistoryQuery

        past = self.pasts.of(table, history_only)
        details = past.history.ranges(past.uuid)
        near = past.unfolded()
        entries = past.entries(HistoryQuery(since=_since(details, limit)))
        counts = {
            "live": sum(each.source is EntrySource.LIVE for each in near),
            "archived": sum(each.source is EntrySource.ARCHIVE for each in near),
            "folded": sum(each.entries for each in details),
        }
        return HistoryView(str(past.ref), tuple(entries[:limit]), details, counts)

    def ingested(
        self,
        table: str | TableRef,
        *,
        row_filter: str | None = None,
        file: str | None = None,
        snapshot_id: int | None = None,
        history_only: bool = False,
    ) -> Ingested:
        """When data came in, by which writer and commit: rows that match a filter, one file, one snapshot, or all."""
        if sum(each is not None for each in (row_filter, file, snapshot_id)) > 1:
            raise UsageError(
                reason=f"ask when data of {table} came in: about one thing at a time",
                hint="say one of --row-filter, --file and --snapshot",
            )
        if row_filter is not None:
            check(row_filter)  # before the table is read: whoever may look may ask
        asking = self._asking(self.pasts.of(table, history_only))
        if snapshot_id is not None:
            return asking.snapshot(snapshot_id)
        return asking.rows(row_filter) if file is None else asking.file(file)

    def downstream(
        self,
        table: str | TableRef,
        snapshot_id: int,
        *,
        carried: bool = False,
        history_only: bool = False,
    ) -> Downstream:
        """Everything made from a snapshot, directly or over other tables, in any catalog.

        `carried`: also what was made from later snapshots of the same table while they still had its rows.
        """
        from lakewarden.lineage.audit import Node, downstream

        ref = table_ref(table)
        unread: dict[str, str] = {}
        pasts, names = self.pasts.of_every_table(ref, history_only, unread)
        start = Node(names.get(str(ref), str(ref)), snapshot_id)
        entries = self.pasts.entries(pasts, start.table, unread)
        found = downstream(entries, start, tuple(unread.items()), carried=carried, names=names)
        if found.entry is None and not found.affected:
            raise UsageError(
                reason=f"find snapshot {snapshot_id} of {ref}: neither the table nor its history has it, and no commit names it",
                hint=f"see `lakewarden history {ref}`",
            )
        return found

    def who(
        self,
        table: str | TableRef,
        *,
        operation: str | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        history_only: bool = False,
    ) -> CommitAuthors:
        """Who triggered the table's commits: type, operator, ticket, writer and time, the newest first."""
        from lakewarden.lineage.audit import CommitAuthors
        from lakewarden.lineage.history import HistoryQuery

        begin, end = moment(since, "since"), moment(until, "until")
        past = self.pasts.of(table, history_only)
        found = past.entries(HistoryQuery(operation=operation, since=begin, until=end))
        return CommitAuthors(str(past.ref), operation, begin, end, tuple(found))

    def gaps(self, table: str | TableRef, *, history_only: bool = False) -> Gaps:
        """Commits without the lineage the table's policy asks for, and how many were rejected without it."""
        from lakewarden.lineage.audit import Gaps, gaps
        from lakewarden.lineage.writing import asked_by, requirements
        from lakewarden.state.audit_log import Rejections

        past = self.pasts.of(table, history_only)
        policy = self._deps.connections.resolve(past.ref, past.properties)
        entries = past.entries()
        rejected = Rejections(self._deps.connections.state).list(str(past.ref))
        found = gaps(entries, requirements(policy))
        return Gaps(str(past.ref), len(entries), found, rejected, asked_by(policy))

    def _asking(self, past: TablePast) -> IngestedLookup:
        from lakewarden.jobs.loads.ingested import IngestedLookup

        format_ = None if past.view is None else self._deps.format_for(past.ref)
        return IngestedLookup(str(past.ref), past.known, format_, past.view)


def _since(details: Sequence[Detail], limit: int | None) -> datetime | None:
    """A moment since which there are so many folded entries: older months stay closed. None where all have to be asked."""
    found = 0
    for each in details if limit is not None else ():
        found += each.entries
        if limit is not None and found >= limit:
            return min(range_.first_at for range_ in each.ranges)
    return None


@dataclass(frozen=True, slots=True)
class TablePast:
    """The past of one table. Without a view it has only what was archived."""

    ref: TableRef
    uuid: str
    properties: Mapping[str, str]
    view: TableView | None
    history: TableHistory

    def entries(self, wanted: HistoryQuery | None = None) -> list[Entry]:
        from lakewarden.lineage.history import EVERYTHING

        return self.history.entries(str(self.ref), self.uuid, self.view, wanted or EVERYTHING)

    def unfolded(self) -> list[Entry]:
        return self.history.unfolded(str(self.ref), self.uuid, self.view)

    def known(self, ids: Collection[int]) -> Mapping[int, Entry]:
        from lakewarden.lineage.history import HistoryQuery

        if not ids:
            return {}
        return {each.snapshot.id: each for each in self.entries(HistoryQuery(ids=frozenset(ids)))}


class Pasts:
    def __init__(self, deps: ServiceDeps) -> None:
        self._deps = deps

    def of(self, table: str | TableRef, history_only: bool = False) -> TablePast:
        from lakewarden.lineage.history import TableHistory

        ref = table_ref(table)
        if not history_only:
            return self._of_view(self._deps.view(ref))
        seen = self._deps.seen.get(ref)
        if seen is None:
            raise UsageError(
                reason=f"ask the history of {ref}: no table of that name was ever read",
                hint="ask once without --history-only, or see `lakewarden tables`",
            )
        return TablePast(ref, seen.uuid, seen.properties, None, TableHistory(self._deps.connections.state))

    def _of_view(self, view: TableView) -> TablePast:
        from lakewarden.jobs.history import history_of

        return TablePast(
            view.ref, view.uuid, view.properties, view, history_of(self._deps.connections.state, view)
        )

    def of_every_table(
        self, wanted: TableRef, history_only: bool, unread: dict[str, str]
    ) -> tuple[list[TablePast], dict[str, str]]:
        """Every table once, with the name it goes by for each of its names.

        Tables of all catalogs, and tables that are gone but were read before. A table that was renamed, or that two catalogs
        have, is one table.
        """
        from lakewarden.lineage.history import TableHistory

        pasts: dict[str, list[TablePast]] = defaultdict(list)
        names: dict[str, str] = {}
        live = [] if history_only else list(self._read_all(wanted, unread))
        for past in sorted(live, key=lambda each: each.ref != wanted):
            first = next((each for each in pasts[past.uuid] if _is_same(each.view, past.view)), None)
            if first is None:
                pasts[past.uuid].append(past)
            names[str(past.ref)] = str((first or past).ref)
        seen = {name: each for name, each in self._deps.seen.all().items() if name not in names}
        for name in sorted(seen, key=lambda each: (each != str(wanted), -seen[each].seen_at.timestamp())):
            uuid = seen[name].uuid
            # Copies share a uuid: which of them had this name is not known.
            if len(pasts[uuid]) != 1:
                ref = TableRef.parse(name)
                pasts[uuid].append(
                    TablePast(
                        ref, uuid, seen[name].properties, None, TableHistory(self._deps.connections.state)
                    )
                )
            names[name] = str(pasts[uuid][0].ref) if len(pasts[uuid]) == 1 else name
        return [each for several in pasts.values() for each in several], names

    def entries(
        self,
        pasts: Sequence[TablePast],
        needed: str,
        unread: dict[str, str],
        wanted: HistoryQuery | None = None,
    ) -> list[Entry]:
        """The entries of all of them. Only the needed table must be readable. Another that is not goes into `unread`, with
        the reason, and only what was archived of it is used."""
        from lakewarden.lineage.history import EVERYTHING, TableHistory

        gone = [(str(each.ref), each.uuid) for each in pasts if each.view is None]
        written = TableHistory(self._deps.connections.state).written(gone, wanted or EVERYTHING)
        entries: list[Entry] = []
        for past in pasts:
            known = written.get((str(past.ref), past.uuid)) if past.view is None else None
            try:
                entries += past.entries(wanted) if known is None else known
            except LakewardenError as error:
                if str(past.ref) == needed:
                    raise
                unread.setdefault(str(past.ref), error.message)
                entries += past.unfolded()
        return entries

    def _read_all(self, wanted: TableRef, unread: dict[str, str]) -> Iterator[TablePast]:
        for ref in self._listed(unread):
            try:
                past = self._of_view(self._deps.view(ref))
            except LakewardenError as error:
                if ref == wanted:
                    raise
                unread[str(ref)] = error.message
            else:
                yield past

    def _listed(self, unread: dict[str, str]) -> Iterator[TableRef]:
        lake = self._deps.connections.lake
        for catalog in lake.catalogs():
            try:
                yield from lake.format_of(catalog).tables(catalog)
            except LakewardenError as error:
                unread[f"{catalog}.*"] = error.message


def _is_same(one: TableView | None, other: TableView | None) -> bool:
    from lakewarden.deletion.ownership import is_same

    return one is not None and other is not None and is_same(one, other)
