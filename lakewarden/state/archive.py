"""What snapshots said about themselves before they expired, kept so that questions about them can be answered for years."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.dialects import postgresql, sqlite

from lakewarden.model import Snapshot, TableView
from lakewarden.state.database import State
from lakewarden.state.schema import archived_snapshots


class Archive:
    """Snapshots are added before they expire: one that then stays after all is simply known twice."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, view: TableView, snapshots: Iterable[Snapshot], run_id: str, now: datetime) -> None:
        """All of them or none. One that is there already stays as it was first written down."""
        rows = [_row(view, each, run_id, now) for each in snapshots]
        if not rows:
            return
        with self._state.write() as connection:
            dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
            connection.execute(dialect.insert(archived_snapshots).on_conflict_do_nothing(), rows)

    def list(self, table_uuid: str, limit: int = 1000) -> Sequence[Snapshot]:
        """The newest first."""
        wanted = (
            select(archived_snapshots)
            .where(archived_snapshots.c.table_uuid == table_uuid)
            .order_by(archived_snapshots.c.committed_at.desc(), archived_snapshots.c.sequence_number.desc())
            .limit(limit)
        )
        with self._state.read() as connection:
            return [_snapshot(row) for row in connection.execute(wanted)]


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


def _snapshot(row: Row[Any]) -> Snapshot:
    return Snapshot(
        row.snapshot_id, row.parent_id, row.sequence_number, row.committed_at, row.operation, row.summary
    )
