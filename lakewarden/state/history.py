"""Expired snapshots: first one row each, later folded into ranges with a detail file that contains them all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Text, bindparam, cast, delete, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from lakewarden.model.table import Snapshot, TableView
from lakewarden.state.database import State
from lakewarden.state.schema import archived_snapshots, history_details, history_ranges

# The most values in one query.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ArchivedSnapshot:
    """An expired snapshot: the table's name at that time, the run that expired it, and when."""

    snapshot: Snapshot
    table: str
    run_id: str
    archived_at: datetime


class SnapshotArchive:
    """Expired snapshots. They are added before they expire; if a snapshot then stays after all, it is in both
    places."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, view: TableView, snapshots: Iterable[Snapshot], run_id: str, now: datetime) -> None:
        """Add all snapshots or none. An existing row is not changed.

        A snapshot with the same id but another commit time is another commit, and both are kept: a Paimon
        table that was rolled back reuses snapshot ids, and so does a copy of a table, which has the same
        uuid.
        """
        rows = [_row(view, each, run_id, now) for each in snapshots]
        if not rows:
            return
        with self._state.write() as connection:
            dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
            new = dialect.insert(archived_snapshots).on_conflict_do_nothing(
                index_elements=["table_uuid", "snapshot_id", "committed_at"]
            )
            connection.execute(new, rows)

    def list(self, table_uuid: str, limit: int | None = 1000) -> Sequence[Snapshot]:
        """Expired snapshots, newest first."""
        return [each.snapshot for each in self.rows(table_uuid, limit)]

    def rows(
        self,
        table_uuid: str,
        limit: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Sequence[ArchivedSnapshot]:
        """Expired snapshots, newest first, committed at `since` or later and before `until`."""
        wanted = (
            select(archived_snapshots)
            .where(archived_snapshots.c.table_uuid == table_uuid)
            .order_by(archived_snapshots.c.committed_at.desc(), archived_snapshots.c.sequence_number.desc())
            .limit(limit)
        )
        if since is not None:
            wanted = wanted.where(archived_snapshots.c.committed_at >= since)
        if until is not None:
            wanted = wanted.where(archived_snapshots.c.committed_at < until)
        with self._state.read() as connection:
            return [_archived(row) for row in connection.execute(wanted)]

    def of_tables(
        self, uuids: Sequence[str], *, saying: str | None = None
    ) -> Mapping[str, Sequence[ArchivedSnapshot]]:
        """Expired snapshots by table uuid, in a few queries for any number of tables. With `key`, only
        snapshots whose summaries have it."""
        found: dict[str, list[ArchivedSnapshot]] = {}
        columns = archived_snapshots.c
        said = (
            [] if saying is None else [cast(columns.summary, Text).contains(f'"{saying}"', autoescape=True)]
        )
        with self._state.read() as connection:
            for start in range(0, len(uuids), _AT_ONCE):
                some = columns.table_uuid.in_(uuids[start : start + _AT_ONCE])
                for row in connection.execute(select(archived_snapshots).where(some, *said)):
                    found.setdefault(row.table_uuid, []).append(_archived(row))
        return found

    def moments(self, table_uuid: str) -> dict[int, datetime]:
        """The commit time of each snapshot id. If an id occurs several times, the newest time, so that none
        is folded too early."""
        columns = archived_snapshots.c
        wanted = select(columns.snapshot_id, columns.committed_at).where(columns.table_uuid == table_uuid)
        wanted = wanted.order_by(columns.committed_at)
        with self._state.read() as connection:
            return {row.snapshot_id: row.committed_at for row in connection.execute(wanted)}


def _row(view: TableView, snapshot: Snapshot, run_id: str, now: datetime) -> dict[str, Any]:
    return {
        "table_uuid": view.uuid,
        "snapshot_id": snapshot.id,
        "table_name": str(view.ref),
        "parent_id": snapshot.parent_id,
        "sequence_number": snapshot.sequence_number,
        "committed_at": snapshot.committed_at,
        "operation": snapshot.operation,
        "summary": dict(snapshot.summary),
        "run_id": run_id,
        "archived_at": now,
    }


def _archived(row: Row[Any]) -> ArchivedSnapshot:
    snapshot = Snapshot(
        row.snapshot_id, row.parent_id, row.sequence_number, row.committed_at, row.operation, row.summary
    )
    return ArchivedSnapshot(snapshot, row.table_name, row.run_id, row.archived_at)


_INDEX = [
    each.label("table") if each.name == "table_name" else each
    for each in history_details.c
    if each.name != "content"
]


class FoldLost(Exception):
    """Another process folded the same entries first; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Range:
    """Snapshots of one month with the same operation and writer.

    `operation` is the lineage key of that name, or the format's own operation if a commit had none; that one
    is `format_operation`. Iceberg ids are random: `first_id` and `last_id` are by time, `min_id` and `max_id`
    by number.
    """

    operation: str
    format_operation: str
    writer: str
    entries: int
    rows: int
    bytes: int
    with_operator: int
    with_inputs: int
    first_id: int
    last_id: int
    min_id: int
    max_id: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Detail:
    """Where the snapshots of one table and month are stored: in the state database, or in the file `path`."""

    id: str
    table_uuid: str
    table: str
    month: str
    entries: int
    bytes: int
    sha256: str
    run_id: str
    made_at: datetime
    path: str | None = None
    ranges: tuple[Range, ...] = ()


class HistoryIndex:
    def __init__(self, state: State) -> None:
        self._state = state

    def details(self, table_uuid: str) -> tuple[Detail, ...]:
        """The details of a table with their ranges, newest month first. No detail is opened."""
        found = select(*_INDEX).where(history_details.c.table_uuid == table_uuid)
        of_them = (
            select(history_ranges)
            .join(history_details, history_details.c.id == history_ranges.c.detail_id)
            .where(history_details.c.table_uuid == table_uuid)
            .order_by(history_ranges.c.detail_id, history_ranges.c.number)
        )
        ranges: dict[str, list[Range]] = defaultdict(list)
        with self._state.read() as connection:
            for row in connection.execute(of_them):
                told = dict(row._mapping)
                detail = told.pop("detail_id")
                told.pop("number")
                ranges[detail].append(Range(**told))
            rows = connection.execute(found.order_by(history_details.c.month.desc())).all()
        return tuple(Detail(**dict(row._mapping), ranges=tuple(ranges[row.id])) for row in rows)

    def folded(self) -> frozenset[str]:
        """The uuids of tables that have folded snapshots."""
        with self._state.read() as connection:
            return frozenset(connection.execute(select(history_details.c.table_uuid).distinct()).scalars())

    def contents(self, details: Iterable[Detail]) -> Iterator[bytes | None]:
        """The stored bytes of each detail; None if the detail was replaced since."""
        with self._state.read() as connection:
            for each in details:
                wanted = select(history_details.c.content).where(history_details.c.id == each.id)
                found = connection.execute(wanted).scalar_one_or_none()
                yield None if found is None else bytes(found)

    def made_by(self, run_id: str) -> int:
        """The number of details that a run created."""
        wanted = select(history_details.c.id).where(history_details.c.run_id == run_id)
        with self._state.read() as connection:
            return len(connection.execute(wanted).all())

    def fold(
        self, made: Detail, content: bytes | None, old: Detail | None, folded: Sequence[ArchivedSnapshot]
    ) -> None:
        """Replace the old detail and these archived snapshots by the new detail: all of it, or FoldLost.

        One transaction. A second process finds the old detail or a snapshot gone, or the month taken.
        """
        try:
            with self._state.write() as connection:
                if old is not None:
                    _take_away(connection, old)
                _put(connection, made, content)
                _take_out(connection, made.table_uuid, folded)
        except IntegrityError:
            raise FoldLost(f"another process folded the month {made.month} first") from None


def _take_away(connection: Connection, old: Detail) -> None:
    connection.execute(delete(history_ranges).where(history_ranges.c.detail_id == old.id))
    gone = connection.execute(delete(history_details).where(history_details.c.id == old.id))
    if gone.rowcount != 1:
        raise FoldLost(f"another process replaced the detail of {old.month} first")


def _put(connection: Connection, made: Detail, content: bytes | None) -> None:
    row = {each.name: getattr(made, each.name) for each in _INDEX if each.name != "table"}
    connection.execute(insert(history_details).values(**row, table_name=made.table, content=content))
    ranges = [
        {"detail_id": made.id, "number": number, **_values(each)} for number, each in enumerate(made.ranges)
    ]
    connection.execute(insert(history_ranges), ranges)


def _take_out(connection: Connection, table_uuid: str, folded: Sequence[ArchivedSnapshot]) -> None:
    """Delete exactly the rows that were read: a row that was written again since then has another time."""
    columns = archived_snapshots.c
    gone = delete(archived_snapshots).where(
        columns.table_uuid == table_uuid,
        columns.snapshot_id == bindparam("gone_id"),
        columns.committed_at == bindparam("gone_at"),
    )
    rows = [{"gone_id": each.snapshot.id, "gone_at": each.snapshot.committed_at} for each in folded]
    found = connection.execute(gone, rows).rowcount
    if found != len(rows):
        raise FoldLost(f"{len(rows) - found} of {len(rows)} entries were folded by another process first")


def _values(range_: Range) -> dict[str, Any]:
    return {name: getattr(range_, name) for name in Range.__slots__}
