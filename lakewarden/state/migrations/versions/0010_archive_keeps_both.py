"""keep two commits with the same id: of a Paimon table that was rolled back, or of a table and its copy"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_COLUMNS = (
    "table_uuid, snapshot_id, committed_at, table_name, parent_id, sequence_number, operation, summary, run_id, "
    "archived_at"
)


def upgrade() -> None:
    """Copies the table in the same transaction: SQLite cannot change a primary key."""
    op.drop_index("archived_by_table", "archived_snapshots")
    op.rename_table("archived_snapshots", "archived_before")
    op.create_table(
        "archived_snapshots",
        sa.Column("table_uuid", sa.Text, nullable=False),
        sa.Column("snapshot_id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("parent_id", sa.BigInteger),
        sa.Column("sequence_number", sa.BigInteger, nullable=False),
        sa.Column("committed_at", _TIME, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("summary", sa.JSON, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("archived_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("table_uuid", "snapshot_id", "committed_at", name="one_archived_commit"),
    )
    op.execute(f"INSERT INTO archived_snapshots ({_COLUMNS}) SELECT {_COLUMNS} FROM archived_before")
    op.drop_table("archived_before")
    op.create_index("archived_by_table", "archived_snapshots", ["table_name", "committed_at"])
