"""the location of each table when it was first seen: a later change comes from its writer"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "homes",
        sa.Column("table_uuid", sa.Text, primary_key=True),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("location", sa.Text, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
    )
