"""passes that a worker did not live to end are counted apart from those that failed"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("standings", sa.Column("left_open", sa.Integer, nullable=False, server_default="0"))
