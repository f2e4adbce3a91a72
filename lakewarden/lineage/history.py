"""A table's whole history: its live snapshots, records of snapshots that expired later, and folded months.

An entry moves only one way: live, archived, folded. They are read in that order, so an entry that moves during
the reading is found twice but never missed, and the first one counts. If two commits have one number (only in
Paimon), a live one takes precedence over a recorded one, then one with the table's own name, then the newer
one.

A folded month is stored as a detail: its snapshots as a Parquet file, with ranges of its values.
"""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewarden.errors import LakewardenError
from lakewarden.model.plain import pick
from lakewarden.model.table import Snapshot, TableView
from lakewarden.state.database import State
from lakewarden.state.history import ArchivedSnapshot, Detail, FoldLost, HistoryIndex, Range, SnapshotArchive

# How often a newer detail may replace one during the reading.
_ATTEMPTS = 5
_INPUTS = "input.snapshot_ids"


class EntrySource(StrEnum):
    """Where an entry was found."""

    LIVE = "live"
    ARCHIVE = "archive"
    DETAIL = "detail"


@dataclass(frozen=True, slots=True)
class Entry:
    """One snapshot of one table, live or expired. `detail` points to the folded month that has it.

    `written_as` is the table's name when the entry was recorded, before it expired. It differs if the table was
    renamed since, or if it is a copy of a Paimon table: copies have one uuid, and so one past.
    """

    table: str
    snapshot: Snapshot
    source: EntrySource
    detail: str | None = None
    written_as: str | None = None

    @property
    def operation(self) -> str:
        return operation_of(self.snapshot)

    def told(self, key: str) -> str | None:
        """A value of the summary; None if the commit did not state it."""
        return self.snapshot.summary.get(key) or None

    def to_dict(self) -> dict[str, Any]:
        writer, trigger = ("id", "host", "commit_hash", "invocation_id"), ("type", "operator", "ticket")
        return {
            "table": self.table,
            **pick(self.snapshot, "snapshot_id=id parent_id committed_at"),
            "operation": self.operation,
            "format_operation": self.snapshot.operation,
            "writer": {key: self.told(f"writer.{key}") for key in writer},
            "trigger": {key: self.told(f"trigger.{key}") for key in trigger},
            "inputs": self.told(_INPUTS),
            "rows": rows_of(self.snapshot.summary),
            "bytes": bytes_of(self.snapshot.summary),
            **pick(self, "source detail written_as"),
        }


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which entries a question needs; None means all. `inputs`: only entries that name their inputs.

    An operation matches the commit's own statement, or the format's operation.
    """

    ids: frozenset[int] | None = None
    operation: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    inputs: bool = False

    def meets(self, snapshot: Snapshot) -> bool:
        return (
            (self.ids is None or snapshot.id in self.ids)
            and (self.operation is None or self.operation in (operation_of(snapshot), snapshot.operation))
            and (self.since is None or snapshot.committed_at >= self.since)
            and (self.until is None or snapshot.committed_at < self.until)
            and (not self.inputs or bool(snapshot.summary.get(_INPUTS)))
        )

    def may_meet(self, range_: Range) -> bool:
        """Whether a snapshot of the range can match: if not, its detail is not opened."""
        return (
            (self.ids is None or any(range_.min_id <= each <= range_.max_id for each in self.ids))
            and (self.operation is None or self.operation in (range_.operation, range_.format_operation))
            and (self.since is None or range_.last_at >= self.since)
            and (self.until is None or range_.first_at < self.until)
            and (not self.inputs or range_.with_inputs > 0)
        )


EVERYTHING = HistoryQuery()
# Reads the bytes of a detail that is stored in a file; None if the file is gone.
Fetch = Callable[[str], bytes | None]


class _Replaced(Exception):
    """A detail was folded again while it was being read."""


class TableHistory:
    """`fetch` reads details that are stored in files; without it they cannot be read, and an error says so."""

    def __init__(self, state: State, fetch: Fetch | None = None) -> None:
        self._archive = SnapshotArchive(state)
        self._index = HistoryIndex(state)
        self._fetch = fetch
        self.opened = 0  # number of details read: a question should open few

    def ranges(self, table_uuid: str) -> tuple[Detail, ...]:
        """The folded months, newest first. Opens no detail."""
        return self._index.details(table_uuid)

    def entries(
        self, table: str, table_uuid: str, view: TableView | None, wanted: HistoryQuery = EVERYTHING
    ) -> list[Entry]:
        """Each snapshot once, the newest first. Without a view, only recorded entries are returned."""
        for _ in range(_ATTEMPTS):
            try:
                entries = list(self._found(table, table_uuid, view, wanted))
            except _Replaced:
                continue
            return _once(entries)
        raise LakewardenError(
            reason=f"read the history of {table}: it was folded again {_ATTEMPTS} times during the reading",
            hint="ask again",
        )

    def written(
        self, tables: Sequence[tuple[str, str]], wanted: HistoryQuery = EVERYTHING
    ) -> dict[tuple[str, str], list[Entry]]:
        """The result of `entries` without a view for many tables, by name and uuid, in a few queries. Leaves
        out tables with folded history.
        """
        folded = self._index.folded()
        whole = [table for table in tables if table[1] not in folded]
        uuids = sorted({uuid for _, uuid in whole})
        rows = self._archive.of_tables(uuids, saying=_INPUTS if wanted.inputs else None)
        return {
            (name, uuid): _once(
                [
                    Entry(name, each.snapshot, EntrySource.ARCHIVE, written_as=each.table)
                    for each in rows.get(uuid, ())
                    if wanted.meets(each.snapshot)
                ]
            )
            for name, uuid in whole
        }

    def unfolded(self, table: str, table_uuid: str, view: TableView | None) -> list[Entry]:
        """Entries that are not folded, the newest first: opens no detail."""
        return _once(list(self._near(table, table_uuid, view, EVERYTHING)))

    def _near(
        self, table: str, table_uuid: str, view: TableView | None, wanted: HistoryQuery
    ) -> Iterator[Entry]:
        for snapshot in view.snapshots if view is not None else ():
            if wanted.meets(snapshot):
                yield Entry(table, snapshot, EntrySource.LIVE)
        for each in self._archive.rows(table_uuid, since=wanted.since, until=wanted.until):
            if wanted.meets(each.snapshot):
                yield Entry(table, each.snapshot, EntrySource.ARCHIVE, written_as=each.table)

    def _found(
        self, table: str, table_uuid: str, view: TableView | None, wanted: HistoryQuery
    ) -> Iterator[Entry]:
        yield from self._near(table, table_uuid, view, wanted)
        chosen = [
            each
            for each in self._index.details(table_uuid)
            if any(wanted.may_meet(range_) for range_ in each.ranges)
        ]
        for detail, members in self.read(chosen, wanted.ids):
            for member in members:
                if wanted.meets(member.snapshot):
                    yield Entry(table, member.snapshot, EntrySource.DETAIL, detail.id, member.table)

    def read(
        self, chosen: Sequence[Detail], ids: Collection[int] | None = None
    ) -> Iterator[tuple[Detail, list[ArchivedSnapshot]]]:
        """The snapshots in these details, or only `ids`."""
        contents = self._index.contents(each for each in chosen if each.path is None)
        for detail in chosen:
            self.opened += 1
            content = next(contents) if detail.path is None else self._fetched(detail, detail.path)
            if content is None:
                raise _Replaced
            yield detail, read(detail, content, ids)

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
                hint="restore the file from a backup; `lakewarden history` shows its ranges",
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
        """Replace these archived entries of a month, and those folded earlier, by one new detail. FoldLost:
        nothing changed.

        `keep` writes the detail to a file and returns its path; without it the database stores it. If the fold
        is lost or the process stops after the file was written, nothing names the file.
        """
        chosen, (since, until) = set(ids), month_span(month)
        new = [
            each
            for each in self._archive.rows(table_uuid, since=since, until=until)
            if each.snapshot.id in chosen
        ]
        old = next((each for each in self._index.details(table_uuid) if each.month == month), None)
        if not new:
            raise FoldLost(f"another process folded the entries of {month}")
        try:
            before = [each for _, members in self.read([old] if old else []) for each in members]
        except _Replaced:
            raise FoldLost(f"another process replaced the detail of {month}") from None
        entries = merged(before, [storable(each) for each in new])
        content = write(entries)
        name = f"{run_id}-{month}"
        path = None if keep is None else keep(name, content)
        detail = Detail(
            name,
            table_uuid,
            table,
            month,
            len(entries),
            len(content),
            sha256(content),
            run_id,
            now,
            path,
            ranges_of(entries),
        )
        self._index.fold(detail, None if path else content, old, new)
        return Folded(len(new), detail, old)


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of a fold: how many entries left the archive, the detail that has them now, and the detail
    that it replaces.
    """

    entries: int
    detail: Detail
    replaced: Detail | None


def _once(entries: Sequence[Entry]) -> list[Entry]:
    """Each snapshot once, the newest first."""
    by_id: dict[int, Entry] = {}
    for entry in entries:
        first = by_id.setdefault(entry.snapshot.id, entry)
        if _rank(entry) > _rank(first):
            by_id[entry.snapshot.id] = entry
    return sorted(by_id.values(), key=_newest_first)


def _rank(entry: Entry) -> tuple[bool, bool, datetime]:
    return entry.source is EntrySource.LIVE, entry.written_as == entry.table, entry.snapshot.committed_at


def _newest_first(entry: Entry) -> tuple[float, int]:
    return -entry.snapshot.committed_at.timestamp(), -entry.snapshot.sequence_number


_MOMENT = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema(
    [
        pa.field("snapshot_id", pa.int64(), nullable=False),
        pa.field("parent_id", pa.int64()),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("committed_at", _MOMENT, nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("summary", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("archived_at", _MOMENT, nullable=False),
    ]
)
# A question about one snapshot decodes one row group.
_ROW_GROUP = 5_000


def month_of(at: datetime) -> str:
    """`2024-03`, in UTC."""
    moment = at.astimezone(UTC)
    return f"{moment.year:04}-{moment.month:02}"


def month_span(month: str) -> tuple[datetime, datetime]:
    """When the month begins, and when the next one begins; the last possible month ends with the calendar."""
    year, number = (int(part) for part in month.split("-"))
    begin = datetime(year, number, 1, tzinfo=UTC)
    if (year, number) == (MAXYEAR, 12):
        return begin, datetime.max.replace(tzinfo=UTC)
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    return begin, datetime(*following, 1, tzinfo=UTC)


def operation_of(snapshot: Snapshot) -> str:
    """The operation that the commit names, or the format's own operation."""
    return snapshot.summary.get("lineage.operation") or snapshot.operation


def rows_of(summary: Mapping[str, str]) -> int:
    """Rows that a commit added; for Paimon, by how many rows the table grew."""
    return _number(summary.get("added-records") or summary.get("delta-records"))


def bytes_of(summary: Mapping[str, str]) -> int:
    """Bytes that a commit added, if its format states them."""
    return _number(summary.get("added-files-size"))


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:  # other writers may write any text there; this is not an audit question
        return 0


def merged(old: Sequence[ArchivedSnapshot], new: Sequence[ArchivedSnapshot]) -> list[ArchivedSnapshot]:
    """Each commit once, in order. Two commits with one number stay two: a table was rolled back, or copied."""
    by_commit = {(each.snapshot.id, each.snapshot.committed_at): each for each in (*old, *new)}
    return sorted(
        by_commit.values(), key=lambda each: (each.snapshot.committed_at, each.snapshot.sequence_number)
    )


def storable(entry: ArchivedSnapshot) -> ArchivedSnapshot:
    """The entry with every character escaped that UTF-8 or a database cannot store, such as half a surrogate
    pair.

    Any writer can put one into a summary, and it must not prevent the rest of a month from being folded.
    """
    snapshot = entry.snapshot
    summary = {_storable(key): _storable(value) for key, value in snapshot.summary.items()}
    escaped = replace(snapshot, operation=_storable(snapshot.operation), summary=summary)
    return replace(entry, snapshot=escaped)


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def ranges_of(entries: Sequence[ArchivedSnapshot]) -> tuple[Range, ...]:
    """A summary of the entries, in the order of their commits, as ranges."""
    groups: dict[tuple[str, str, str], list[Snapshot]] = defaultdict(list)
    for entry in entries:
        snapshot = entry.snapshot
        writer = snapshot.summary.get("writer.id", "")
        groups[operation_of(snapshot), snapshot.operation, writer].append(snapshot)
    return tuple(_range(key, members) for key, members in groups.items())


def _range(key: tuple[str, str, str], members: Sequence[Snapshot]) -> Range:
    ids = [member.id for member in members]
    return Range(
        *key,
        entries=len(members),
        rows=sum(rows_of(member.summary) for member in members),
        bytes=sum(bytes_of(member.summary) for member in members),
        with_operator=sum(1 for member in members if member.summary.get("trigger.operator")),
        with_inputs=sum(1 for member in members if member.summary.get("input.snapshot_ids")),
        first_id=ids[0],
        last_id=ids[-1],
        min_id=min(ids),
        max_id=max(ids),
        first_at=members[0].committed_at,
        last_at=members[-1].committed_at,
    )


def write(entries: Sequence[ArchivedSnapshot]) -> bytes:
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for entry in entries:
        snapshot = entry.snapshot
        values = (
            snapshot.id,
            snapshot.parent_id,
            snapshot.sequence_number,
            snapshot.committed_at,
            snapshot.operation,
            list(snapshot.summary.items()),
            entry.table,
            entry.run_id,
            entry.archived_at,
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    out = io.BytesIO()
    table = pa.Table.from_pydict(columns, schema=_SCHEMA)
    # A detail is read whole or by a list of ids: statistics and a second copy of the schema would only make it larger.
    pq.write_table(
        table, out, compression="zstd", row_group_size=_ROW_GROUP, write_statistics=False, store_schema=False
    )
    return out.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read(detail: Detail, content: bytes, ids: Collection[int] | None = None) -> list[ArchivedSnapshot]:
    """Every snapshot of the detail, or only `ids`. If the bytes are not the ones that were written, raises an error."""
    digest = sha256(content)
    if digest != detail.sha256:
        where = detail.path or "the state database"
        raise LakewardenError(
            reason=f"read the history of {detail.table} in {detail.month}: detail {detail.id} in {where} has "
            f"sha256 {digest}, written was {detail.sha256}",
            hint="restore it from a backup",
        )
    source = pq.ParquetFile(pa.BufferReader(content))
    if ids is None:
        return _archived(source.read())
    # A user may mistype an id as a larger number than any id.
    wanted_ids, entries = pa.array([each for each in ids if abs(each) < 1 << 63], pa.int64()), []
    for number in range(source.num_row_groups):
        among = pc.is_in(source.read_row_group(number, ["snapshot_id"])["snapshot_id"], wanted_ids)
        if pc.any(among).as_py():
            entries += _archived(source.read_row_group(number).filter(among))
    return entries


def _archived(table: pa.Table) -> list[ArchivedSnapshot]:
    columns = [table[name].to_pylist() for name in _SCHEMA.names]
    return [
        ArchivedSnapshot(
            Snapshot(id_, parent, sequence, at, operation, dict(summary)), name, run, archived_at
        )
        for id_, parent, sequence, at, operation, summary, name, run, archived_at in zip(
            *columns, strict=True
        )
    ]
