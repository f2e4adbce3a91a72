"""A table's history as one: what its live snapshots say, what was written down before others expired, and folded months.

An entry moves one way only: live, archived, folded. They are read in that order, so that one which moves meanwhile is met
twice and never missed; of what is met twice the first counts. Of two commits of one number, which only Paimon has, a live one
counts before what was written down, then one of the table's own name, then the newer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from lakewarden.errors import LakewardenError
from lakewarden.lineage import detail as details
from lakewarden.model.table import Snapshot, TableView
from lakewarden.state.database import State
from lakewarden.state.history import Archive, Archived, Detail, FoldLost, HistoryIndex, Range

# How often a detail may be replaced by a newer one while it is being read.
_ATTEMPTS = 5
_INPUTS = "input.snapshot_ids"


class Source(StrEnum):
    """Where an entry was found."""

    LIVE = "live"
    ARCHIVE = "archive"
    DETAIL = "detail"


@dataclass(frozen=True, slots=True)
class Entry:
    """One snapshot of one table, live or long gone. `detail` points to the folded month that has it.

    `written_as` is the table's name when it was written down, before it expired. That is another one where the table was
    renamed since, or where it is a copy of a Paimon table: copies have one uuid, and so one past.
    """

    table: str
    snapshot: Snapshot
    source: Source
    detail: str | None = None
    written_as: str | None = None

    @property
    def operation(self) -> str:
        return details.operation_of(self.snapshot)

    def told(self, key: str) -> str | None:
        """A value of the summary; None where the commit did not say it."""
        return self.snapshot.summary.get(key) or None

    def to_dict(self) -> dict[str, Any]:
        snapshot = self.snapshot
        return {
            "table": self.table,
            "snapshot_id": snapshot.id,
            "parent_id": snapshot.parent_id,
            "committed_at": snapshot.committed_at.isoformat(),
            "operation": self.operation,
            "format_operation": snapshot.operation,
            "writer": {
                key: self.told(f"writer.{key}") for key in ("id", "host", "commit_hash", "invocation_id")
            },
            "trigger": {key: self.told(f"trigger.{key}") for key in ("type", "operator", "ticket")},
            "inputs": self.told(_INPUTS),
            "rows": details.rows_of(snapshot.summary),
            "bytes": details.bytes_of(snapshot.summary),
            "source": str(self.source),
            "detail": self.detail,
            "written_as": self.written_as,
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries a question is about; None asks for all. `inputs`: only those that name where their data came from.

    An operation is met by what a commit says of itself, or by the format's own word for it.
    """

    ids: frozenset[int] | None = None
    operation: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    inputs: bool = False

    def meets(self, snapshot: Snapshot) -> bool:
        return (
            (self.ids is None or snapshot.id in self.ids)
            and (
                self.operation is None
                or self.operation in (details.operation_of(snapshot), snapshot.operation)
            )
            and (self.since is None or snapshot.committed_at >= self.since)
            and (self.until is None or snapshot.committed_at < self.until)
            and (not self.inputs or bool(snapshot.summary.get(_INPUTS)))
        )

    def may_meet(self, range_: Range) -> bool:
        """Whether a snapshot of the range can be among them: else its detail stays closed."""
        return (
            (self.ids is None or any(range_.min_id <= each <= range_.max_id for each in self.ids))
            and (self.operation is None or self.operation in (range_.operation, range_.format_operation))
            and (self.since is None or range_.last_at >= self.since)
            and (self.until is None or range_.first_at < self.until)
            and (not self.inputs or range_.with_inputs > 0)
        )


EVERYTHING = Wanted()
# The bytes of a detail that is kept in a file; None where the file is gone.
Fetch = Callable[[str], bytes | None]


class _Replaced(Exception):
    """A detail was folded anew while it was being read."""


class History:
    """`fetch` reads details that are kept in files; without it they cannot be read, and that is said."""

    def __init__(self, state: State, fetch: Fetch | None = None) -> None:
        self._archive = Archive(state)
        self._index = HistoryIndex(state)
        self._fetch = fetch
        self.opened = 0  # details that were read: questions are to open few

    def ranges(self, table_uuid: str) -> tuple[Detail, ...]:
        """The folded months, newest first. No detail is opened."""
        return self._index.details(table_uuid)

    def entries(
        self, table: str, table_uuid: str, view: TableView | None, wanted: Wanted = EVERYTHING
    ) -> list[Entry]:
        """Each snapshot once, the newest first. Without a view only what was written down is told."""
        for _ in range(_ATTEMPTS):
            try:
                found = list(self._found(table, table_uuid, view, wanted))
            except _Replaced:
                continue
            return _once(found)
        raise LakewardenError(
            reason=f"read the history of {table}: it was folded anew {_ATTEMPTS} times meanwhile",
            hint="ask again",
        )

    def written(
        self, tables: Sequence[tuple[str, str]], wanted: Wanted = EVERYTHING
    ) -> dict[tuple[str, str], list[Entry]]:
        """By name and uuid, what `entries` tells without a view, of many tables in a few questions. Those of which something
        is folded are not among them."""
        folded = self._index.folded()
        whole = [each for each in tables if each[1] not in folded]
        uuids = sorted({uuid for _, uuid in whole})
        rows = self._archive.of_tables(uuids, saying=_INPUTS if wanted.inputs else None)
        return {
            (name, uuid): _once(
                [
                    Entry(name, each.snapshot, Source.ARCHIVE, written_as=each.table)
                    for each in rows.get(uuid, ())
                    if wanted.meets(each.snapshot)
                ]
            )
            for name, uuid in whole
        }

    def unfolded(self, table: str, table_uuid: str, view: TableView | None) -> list[Entry]:
        """The newest first, without what is folded: no detail is opened."""
        return _once(list(self._near(table, table_uuid, view, EVERYTHING)))

    def _near(self, table: str, table_uuid: str, view: TableView | None, wanted: Wanted) -> Iterator[Entry]:
        for snapshot in view.snapshots if view is not None else ():
            if wanted.meets(snapshot):
                yield Entry(table, snapshot, Source.LIVE)
        for each in self._archive.rows(table_uuid, since=wanted.since, until=wanted.until):
            if wanted.meets(each.snapshot):
                yield Entry(table, each.snapshot, Source.ARCHIVE, written_as=each.table)

    def _found(self, table: str, table_uuid: str, view: TableView | None, wanted: Wanted) -> Iterator[Entry]:
        yield from self._near(table, table_uuid, view, wanted)
        chosen = [
            each
            for each in self._index.details(table_uuid)
            if any(wanted.may_meet(range_) for range_ in each.ranges)
        ]
        for detail, members in self.read(chosen, wanted.ids):
            for each in members:
                if wanted.meets(each.snapshot):
                    yield Entry(table, each.snapshot, Source.DETAIL, detail.id, each.table)

    def read(
        self, chosen: Sequence[Detail], ids: Collection[int] | None = None
    ) -> Iterator[tuple[Detail, list[Archived]]]:
        """What details hold, or these snapshots of it."""
        contents = self._index.contents(each for each in chosen if each.path is None)
        for detail in chosen:
            self.opened += 1
            content = next(contents) if detail.path is None else self._fetched(detail, detail.path)
            if content is None:
                raise _Replaced
            yield detail, details.read(detail, content, ids)

    def _fetched(self, detail: Detail, path: str) -> bytes | None:
        if self._fetch is None:
            raise LakewardenError(
                reason=f"read the history of {detail.table} in {detail.month}: its detail is the file {path}",
                hint="ask without --history-only: the table's own credentials are needed",
            )
        content = self._fetch(path)
        if content is None and any(each.id == detail.id for each in self._index.details(detail.table_uuid)):
            raise LakewardenError(
                reason=f"read the history of {detail.table} in {detail.month}: its detail {path} is gone",
                hint="bring the file back from a backup; what its ranges say is in `lakewarden history`",
            )
        return content

    # ------------------------------------------------------------ folding

    def fold(
        self,
        month: str,
        ids: Sequence[int],
        *,
        table: str,
        table_uuid: str,
        run_id: str,
        now: datetime,
        keep: Callable[[str, bytes], str] | None = None,
    ) -> Folded:
        """These archived entries of a month, and those it has folded already, become one new detail. FoldLost: nothing changed.

        `keep` writes the detail to a file and tells its path; without it the database has it. A file that was written for a
        fold that was lost, or before the process stopped, is named by nothing.
        """
        chosen, (since, until) = set(ids), details.month_span(month)
        new = [
            each
            for each in self._archive.rows(table_uuid, since=since, until=until)
            if each.snapshot.id in chosen
        ]
        old = next((each for each in self._index.details(table_uuid) if each.month == month), None)
        if not new:
            raise FoldLost(f"the entries of {month} were folded meanwhile")
        try:
            before = [each for _, members in self.read([old] if old else []) for each in members]
        except _Replaced:
            raise FoldLost(f"the detail of {month} was replaced meanwhile") from None
        entries = details.merged(before, [details.storable(each) for each in new])
        content = details.write(entries)
        name = f"{run_id}-{month}"
        path = None if keep is None else keep(name, content)
        made = Detail(
            name,
            table_uuid,
            table,
            month,
            len(entries),
            len(content),
            details.sha256(content),
            run_id,
            now,
            path,
            details.ranges_of(entries),
        )
        self._index.fold(made, None if path else content, old, new)
        return Folded(len(new), made, old)


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold did: how many entries left the archive, the detail that has them now, and the one it stands for."""

    entries: int
    detail: Detail
    replaced: Detail | None


def _once(found: Sequence[Entry]) -> list[Entry]:
    """Each snapshot once, the newest first."""
    by_id: dict[int, Entry] = {}
    for each in found:
        first = by_id.setdefault(each.snapshot.id, each)
        if _rank(each) > _rank(first):
            by_id[each.snapshot.id] = each
    return sorted(by_id.values(), key=_newest_first)


def _rank(entry: Entry) -> tuple[bool, bool, datetime]:
    return entry.source is Source.LIVE, entry.written_as == entry.table, entry.snapshot.committed_at


def _newest_first(entry: Entry) -> tuple[float, int]:
    return -entry.snapshot.committed_at.timestamp(), -entry.snapshot.sequence_number
