"""The part of `Lakewarden` that answers questions about the past: history, and the audit over it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakewarden.errors import LakewardenError, UsageError
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.duration import moment
from lakewarden.policy.filters import check

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.jobs.loads.ingested import Asking
    from lakewarden.lake import Lake
    from lakewarden.lineage.audit import Downstream, Gaps, Ingested, Who
    from lakewarden.lineage.history import Entry, History, Wanted
    from lakewarden.policy.resolve import Policy
    from lakewarden.state.database import State
    from lakewarden.state.history import Detail
    from lakewarden.state.tables import SeenTables


@dataclass(frozen=True, slots=True)
class HistoryView:
    """A table's history: the newest entries, the folded months with their ranges, and how many entries are where."""

    table: str
    entries: tuple[Entry, ...]
    details: tuple[Detail, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Past:
    """One table's past, opened. Without a view only what was written down is told."""

    ref: TableRef
    uuid: str
    properties: Mapping[str, str]
    view: TableView | None
    history: History

    def entries(self, wanted: Wanted | None = None) -> list[Entry]:
        from lakewarden.lineage.history import EVERYTHING

        return self.history.entries(str(self.ref), self.uuid, self.view, wanted or EVERYTHING)

    def unfolded(self) -> list[Entry]:
        return self.history.unfolded(str(self.ref), self.uuid, self.view)

    def known(self, ids: Collection[int]) -> Mapping[int, Entry]:
        from lakewarden.lineage.history import Wanted

        if not ids:
            return {}
        return {each.snapshot.id: each for each in self.entries(Wanted(ids=frozenset(ids)))}


class Auditing:
    """Questions about the past. What they stand on, `Lakewarden` itself has.

    With `history_only` no table is read and no Spark is started: only what was written down before snapshots expired is told.
    """

    if TYPE_CHECKING:

        @property
        def state(self) -> State: ...

        @property
        def lake(self) -> Lake: ...

        @property
        def _seen(self) -> SeenTables: ...

        def catalogs(self) -> list[str]: ...

        def tables(self, catalog: str | None = None) -> list[TableRef]: ...

        def view(self, table: str | TableRef) -> TableView: ...

        def _resolve(
            self, ref: TableRef, properties: Mapping[str, str], call: Mapping[str, object] | None
        ) -> Policy: ...

    def history(
        self, table: str | TableRef, limit: int | None = 50, *, history_only: bool = False
    ) -> HistoryView:
        """The table's history: the newest entries of it, and what is folded. `limit` None: every entry, out of the details too."""
        from lakewarden.lineage.history import Source, Wanted

        past = self._past(table, history_only)
        details = past.history.ranges(past.uuid)
        near = past.unfolded()
        entries = past.entries(Wanted(since=_since(details, limit)))
        counts = {
            "live": sum(each.source is Source.LIVE for each in near),
            "archived": sum(each.source is Source.ARCHIVE for each in near),
            "folded": sum(each.entries for each in details),
        }
        return HistoryView(str(past.ref), tuple(entries[:limit]), details, counts)

    def audit_ingested(
        self,
        table: str | TableRef,
        *,
        row_filter: str | None = None,
        file: str | None = None,
        snapshot_id: int | None = None,
        history_only: bool = False,
    ) -> Ingested:
        """When data came in and by which writer and commit: rows that match a filter, a file, or a snapshot; all, when not said."""
        if sum(each is not None for each in (row_filter, file, snapshot_id)) > 1:
            raise UsageError(
                reason=f"ask when data of {table} came in: about one thing at a time",
                hint="say one of --row-filter, --file and --snapshot",
            )
        if row_filter is not None:
            check(row_filter)  # before the table is read: whoever may look may ask
        asking = self._asking(self._past(table, history_only))
        if snapshot_id is not None:
            return asking.snapshot(snapshot_id)
        return asking.rows(row_filter) if file is None else asking.file(file)

    def audit_downstream(
        self,
        table: str | TableRef,
        snapshot_id: int,
        *,
        carried: bool = False,
        history_only: bool = False,
    ) -> Downstream:
        """Everything made from a snapshot, at any remove, in any table of any catalog.

        `carried`: also what was made from later snapshots of the same table, which held its rows until something removed them.
        """
        from lakewarden.lineage.audit import Node, downstream

        ref = _ref(table)
        unread: dict[str, str] = {}
        pasts, names = self._pasts(ref, history_only, unread)
        start = Node(names.get(str(ref), str(ref)), snapshot_id)
        entries = self._entries(pasts, start.table, unread)
        found = downstream(entries, start, tuple(unread.items()), carried=carried, names=names)
        if found.entry is None and not found.affected:
            raise UsageError(
                reason=f"find snapshot {snapshot_id} of {ref}: neither the table nor its history has it, and no commit names it",
                hint=f"see `lakewarden history {ref}`",
            )
        return found

    def audit_who(
        self,
        table: str | TableRef,
        *,
        operation: str | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        history_only: bool = False,
    ) -> Who:
        """Who triggered the table's commits: type, operator, ticket, writer and moment, the newest first."""
        from lakewarden.lineage.audit import Who
        from lakewarden.lineage.history import Wanted

        begin, end = moment(since, "since"), moment(until, "until")
        past = self._past(table, history_only)
        found = past.entries(Wanted(operation=operation, since=begin, until=end))
        return Who(str(past.ref), operation, begin, end, tuple(found))

    def audit_gaps(self, table: str | TableRef, *, history_only: bool = False) -> Gaps:
        """Commits without the lineage the table's policy asks for, and how many were turned away for want of it."""
        from lakewarden.lineage.audit import Gaps, gaps
        from lakewarden.lineage.hook import asked_by, requirements
        from lakewarden.state.audit_log import Rejections

        past = self._past(table, history_only)
        policy = self._resolve(past.ref, past.properties, None)
        entries = past.entries()
        rejected = Rejections(self.state).list(str(past.ref))
        found = gaps(entries, requirements(policy))
        return Gaps(str(past.ref), len(entries), found, rejected, asked_by(policy))

    # ------------------------------------------------------------ whose past

    def _past(self, table: str | TableRef, history_only: bool) -> _Past:
        from lakewarden.lineage.history import History

        ref = _ref(table)
        if not history_only:
            return self._past_of(self.view(ref))
        seen = self._seen.get(ref)
        if seen is None:
            raise UsageError(
                reason=f"ask the history of {ref}: no table of that name was ever read",
                hint="ask once without --history-only, or see `lakewarden tables`",
            )
        return _Past(ref, seen.uuid, seen.properties, None, History(self.state))

    def _past_of(self, view: TableView) -> _Past:
        from lakewarden.jobs.history import history_of

        return _Past(view.ref, view.uuid, view.properties, view, history_of(self.state, view))

    def _pasts(
        self, wanted: TableRef, history_only: bool, unread: dict[str, str]
    ) -> tuple[list[_Past], dict[str, str]]:
        """Every table's, once: those of all catalogs, and those that are gone but were read before.

        A table that was renamed, or that two catalogs have, is one: its other names lead to the one it is told by.
        """
        from lakewarden.lineage.history import History

        pasts: dict[str, list[_Past]] = defaultdict(list)
        names: dict[str, str] = {}
        live = [] if history_only else list(self._read_all(wanted, unread))
        for past in sorted(live, key=lambda each: each.ref != wanted):
            first = next((each for each in pasts[past.uuid] if _is_same(each.view, past.view)), None)
            if first is None:
                pasts[past.uuid].append(past)
            names[str(past.ref)] = str((first or past).ref)
        seen = {name: each for name, each in self._seen.all().items() if name not in names}
        for name in sorted(seen, key=lambda each: (each != str(wanted), -seen[each].seen_at.timestamp())):
            uuid = seen[name].uuid
            # Copies share a uuid: which of them had this name cannot be told.
            if len(pasts[uuid]) != 1:
                ref = TableRef.parse(name)
                pasts[uuid].append(_Past(ref, uuid, seen[name].properties, None, History(self.state)))
            names[name] = str(pasts[uuid][0].ref) if len(pasts[uuid]) == 1 else name
        return [each for several in pasts.values() for each in several], names

    def _entries(
        self, pasts: Sequence[_Past], needed: str, unread: dict[str, str], wanted: Wanted | None = None
    ) -> list[Entry]:
        """What all of them tell. Only the needed one has to be readable: the rest of the answer holds without another, and
        what is missing from it is said."""
        from lakewarden.lineage.history import EVERYTHING, History

        gone = [(str(each.ref), each.uuid) for each in pasts if each.view is None]
        written = History(self.state).written(gone, wanted or EVERYTHING)
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

    def _read_all(self, wanted: TableRef, unread: dict[str, str]) -> Iterator[_Past]:
        for ref in self._listed(unread):
            try:
                past = self._past_of(self.view(ref))
            except LakewardenError as error:
                if ref == wanted:
                    raise
                unread[str(ref)] = error.message
            else:
                yield past

    def _listed(self, unread: dict[str, str]) -> Iterator[TableRef]:
        for catalog in self.catalogs():
            try:
                yield from self.tables(catalog)
            except LakewardenError as error:
                unread[f"{catalog}.*"] = error.message

    def _asking(self, past: _Past) -> Asking:
        from lakewarden.jobs.loads.ingested import Asking

        format_ = None if past.view is None else self.lake.format_for(past.ref)
        return Asking(str(past.ref), past.known, format_, past.view)


def _is_same(one: TableView | None, other: TableView | None) -> bool:
    from lakewarden.deletion.ownership import is_same

    return one is not None and other is not None and is_same(one, other)


def _since(details: Sequence[Detail], limit: int | None) -> datetime | None:
    """A moment since which there are so many folded entries: older months stay closed. None where all have to be asked."""
    found = 0
    for each in details if limit is not None else ():
        found += each.entries
        if limit is not None and found >= limit:
            return min(range_.first_at for range_ in each.ranges)
    return None


def _ref(table: str | TableRef) -> TableRef:
    return table if isinstance(table, TableRef) else TableRef.parse(table)
