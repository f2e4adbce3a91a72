"""counts of commits that were rejected for missing lineage, by table and place"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lineage_rejections",
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("door", sa.Text, primary_key=True),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_reason", sa.Text, nullable=False),
    )
