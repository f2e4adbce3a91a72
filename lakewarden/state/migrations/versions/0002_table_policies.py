"""stored table policies"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "table_policies",
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.JSON, nullable=False),
        sa.Column("set_by", sa.Text),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
    )
