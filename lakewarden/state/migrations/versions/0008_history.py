"""old lineage history as ranges, each with a pointer to its detail"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "history_details",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("table_uuid", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("month", sa.Text, nullable=False),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("path", sa.Text),
        sa.Column("content", sa.LargeBinary),
        sa.UniqueConstraint("table_uuid", "month", name="one_detail_per_month"),
    )
    op.create_table(
        "history_ranges",
        sa.Column(
            "detail_id",
            sa.Text,
            sa.ForeignKey("history_details.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("format_operation", sa.Text, nullable=False),
        sa.Column("writer", sa.Text, nullable=False),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("with_operator", sa.BigInteger, nullable=False),
        sa.Column("with_inputs", sa.BigInteger, nullable=False),
        sa.Column("first_id", sa.BigInteger, nullable=False),
        sa.Column("last_id", sa.BigInteger, nullable=False),
        sa.Column("min_id", sa.BigInteger, nullable=False),
        sa.Column("max_id", sa.BigInteger, nullable=False),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
    )
