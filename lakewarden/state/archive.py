"""What snapshots said about themselves before they expired, kept so that questions about them can be answered for years."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Text, cast, select
from sqlalchemy.dialects import postgresql, sqlite

from lakewarden.model.table import Snapshot, TableView
from lakewarden.state.database import State
from lakewarden.state.schema import archived_snapshots

# Databases take so many values in one question.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Archived:
    """A snapshot as it was written down: the table's name at that time, the run that expired it, and when."""

    snapshot: Snapshot
    table: str
    run_id: str
    archived_at: datetime


class Archive:
    """Snapshots are added before they expire: one that then stays after all is simply known twice."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, view: TableView, snapshots: Iterable[Snapshot], run_id: str, now: datetime) -> None:
        """All of them or none. A commit that is there already stays as it was first written down.

        One of another moment is another commit, though it has the same number: a Paimon table that was rolled back counts on
        from there, and a copy of one, which has its uuid, from where it was made. Both are kept.
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
        """The newest first."""
        return [each.snapshot for each in self.rows(table_uuid, limit)]

    def rows(
        self,
        table_uuid: str,
        limit: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Sequence[Archived]:
        """The newest first; those committed at `since` or later, and before `until`."""
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
    ) -> Mapping[str, Sequence[Archived]]:
        """By uuid, in a few questions however many tables there are; only those whose summaries have the key, where one is said."""
        found: dict[str, list[Archived]] = {}
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
        """When each was committed, by id; of several of one id the newest, so that none is folded too early."""
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


def _archived(row: Row[Any]) -> Archived:
    snapshot = Snapshot(
        row.snapshot_id, row.parent_id, row.sequence_number, row.committed_at, row.operation, row.summary
    )
    return Archived(snapshot, row.table_name, row.run_id, row.archived_at)
