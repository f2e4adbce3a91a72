"""count passes that were never ended by their worker separately from failed ones"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("standings", sa.Column("left_open", sa.Integer, nullable=False, server_default="0"))
