"""the journal: runs and their steps"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("started_at", moment, nullable=False),
        sa.Column("ended_at", moment),
        sa.Column("beat_at", moment, nullable=False),
        sa.Column("owner_host", sa.Text, nullable=False),
        sa.Column("owner_pid", sa.Integer, nullable=False),
        sa.Column("owner_started", sa.Double, nullable=False),
        sa.Column("owner_token", sa.Text, nullable=False),
        sa.Column("trigger_type", sa.Text, nullable=False),
        sa.Column("trigger_operator", sa.Text),
        sa.Column("trigger_ticket", sa.Text),
        sa.Column("plan", sa.JSON, nullable=False),
        sa.Column("policy", sa.JSON, nullable=False),
        sa.Column("counters", sa.JSON, nullable=False),
        sa.Column("snapshot_ids", sa.JSON, nullable=False),
        sa.Column("last_step", sa.Integer, nullable=False),
    )
    still_open = sa.text("ended_at IS NULL")
    op.create_index(
        "one_open_run",
        "runs",
        ["table_name", "job"],
        unique=True,
        sqlite_where=still_open,
        postgresql_where=still_open,
    )
    op.create_index("runs_by_table", "runs", ["table_name", "started_at"])
    op.create_index("runs_by_start", "runs", ["started_at"])
    op.create_table(
        "run_steps",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
    )
