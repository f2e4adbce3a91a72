"""the storage class and state of each copy in the colder tier, and when each snapshot was handed off"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("cold_files", sa.Column("storage_class", sa.Text))
    op.add_column("cold_files", sa.Column("class_since", _TIME))
    op.add_column("cold_files", sa.Column("etag", sa.Text))
    op.add_column("cold_files", sa.Column("proven_at", _TIME))
    op.add_column("cold_files", sa.Column("let_go_at", _TIME))
    op.create_index("cold_files_by_copy", "cold_files", ["table_uuid", "cold_path"])
    op.create_table(
        "cold_snapshots",
        sa.Column("table_uuid", sa.Text, primary_key=True),
        sa.Column("snapshot_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("handed_at", _TIME, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("left_at", _TIME),
    )
    _remember_hand_offs()


def _remember_hand_offs() -> None:
    """Hand-offs before this revision: their journal steps have the snapshots and times, their copies have the
    table."""
    connection = op.get_bind()
    told = connection.execute(
        sa.text(
            "SELECT DISTINCT c.table_uuid, s.run_id, s.seq FROM run_steps s JOIN cold_files c ON c.run_id = s.run_id "
            "WHERE s.name = 'handed'"
        )
    ).all()
    steps = sa.table(
        "run_steps",
        *(sa.column("run_id", sa.Text), sa.column("seq", sa.Integer)),
        *(sa.column("at", _TIME), sa.column("detail", sa.JSON)),
    )
    known = sa.table(
        "cold_snapshots",
        *(sa.column("table_uuid", sa.Text), sa.column("snapshot_id", sa.BigInteger)),
        *(sa.column("handed_at", _TIME), sa.column("run_id", sa.Text)),
    )
    rows: dict[tuple[str, int], dict[str, object]] = {}
    for uuid, run_id, seq in told:
        wanted = sa.select(steps.c.at, steps.c.detail).where(steps.c.run_id == run_id, steps.c.seq == seq)
        at, detail = connection.execute(wanted).one()
        read = json.loads(detail) if isinstance(detail, str) else detail
        for snapshot_id in read["snapshot_ids"]:
            row = {"table_uuid": uuid, "snapshot_id": snapshot_id, "handed_at": at, "run_id": run_id}
            rows[uuid, snapshot_id] = row
    if rows:
        connection.execute(sa.insert(known), list(rows.values()))
