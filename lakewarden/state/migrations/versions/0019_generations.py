"""the database's generation, and grace periods that start again"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.add_column("verdicts", sa.Column("grace_from", time))
    made = op.create_table(
        "generations",
        sa.Column("database", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("restarted_at", time),
    )
    assert made is not None
    op.bulk_insert(made, [{"database": secrets.token_hex(16), "number": 0, "place": ""}])
