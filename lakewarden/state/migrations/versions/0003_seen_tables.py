"""tables as last read, so that commands without Spark know their properties"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seen_tables",
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("uuid", sa.Text, nullable=False),
        sa.Column("properties", sa.JSON, nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
    )
