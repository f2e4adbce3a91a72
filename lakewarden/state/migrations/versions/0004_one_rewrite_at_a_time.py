"""jobs that rewrite the same files share a slot: compact and compact-deletes never run on one table together"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("slot", sa.Text, nullable=False, server_default=""))
    op.execute("UPDATE runs SET slot = CASE WHEN job = 'compact' THEN 'rewrite' ELSE job END")
    op.drop_index("one_open_run", "runs")
    op.create_index(
        "one_open_run",
        "runs",
        ["table_name", "slot"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
