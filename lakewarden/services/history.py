"""`lw.history`: what was committed to a table, by which writer and for whom, and what was made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakewarden.errors import UsageError
from lakewarden.model.table_name import TableRef
from lakewarden.policy.duration import moment
from lakewarden.policy.filters import check
from lakewarden.services.deps import ServiceDeps
from lakewarden.services.pasts import Pasts, TablePast
from lakewarden.services.table_names import table_ref

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.jobs.loads.ingested import IngestedLookup
    from lakewarden.lineage.audit import CommitAuthors, Downstream, Gaps, Ingested
    from lakewarden.lineage.history import Entry
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
        from lakewarden.lineage.hook import asked_by, requirements
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
