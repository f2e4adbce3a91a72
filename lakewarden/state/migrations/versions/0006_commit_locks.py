"""locks on tables whose store has none, so that two Lakewarden processes never commit at the same time"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "commit_locks",
        sa.Column("place", sa.Text, primary_key=True),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("taken_at", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
    )
