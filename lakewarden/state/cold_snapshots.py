"""When each snapshot of a table was handed off, and when it left the colder tier again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import select, update

from lakewarden.state.database import State
from lakewarden.state.schema import cold_snapshots
from lakewarden.state.upsert import upsert

_AT_ONCE = 500


class ColdSnapshots:
    """`table_uuid` is the live table's."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, table_uuid: str, snapshot_ids: Collection[int], run_id: str, at: datetime) -> None:
        """They are in the cold table since then. One that had left counts anew."""
        with self._state.write() as connection:
            for snapshot_id in snapshot_ids:
                row = {
                    "table_uuid": table_uuid,
                    "snapshot_id": snapshot_id,
                    "handed_at": at,
                    "run_id": run_id,
                    "left_at": None,
                }
                upsert(connection, cold_snapshots, row, ["table_uuid", "snapshot_id"])

    def leave(self, table_uuid: str, snapshot_ids: Collection[int], at: datetime) -> None:
        """Their time in the colder tier is over."""
        ids, mine = list(snapshot_ids), cold_snapshots.c.table_uuid == table_uuid
        with self._state.write() as connection:
            for start in range(0, len(ids), _AT_ONCE):
                these = cold_snapshots.c.snapshot_id.in_(ids[start : start + _AT_ONCE])
                connection.execute(update(cold_snapshots).where(mine, these).values(left_at=at))

    def handed(self, table_uuid: str) -> Mapping[int, datetime]:
        """When each of those that have not left was handed off."""
        wanted = select(cold_snapshots.c.snapshot_id, cold_snapshots.c.handed_at).where(
            cold_snapshots.c.table_uuid == table_uuid, cold_snapshots.c.left_at.is_(None)
        )
        with self._state.read() as connection:
            return {row.snapshot_id: row.handed_at for row in connection.execute(wanted)}

    def left(self, table_uuid: str) -> frozenset[int]:
        """Those that were handed off, and whose time in the colder tier is over."""
        wanted = select(cold_snapshots.c.snapshot_id).where(
            cold_snapshots.c.table_uuid == table_uuid, cold_snapshots.c.left_at.is_not(None)
        )
        with self._state.read() as connection:
            return frozenset(row.snapshot_id for row in connection.execute(wanted))
