"""indexes for queries of health and metrics over all tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("runs_by_end", "runs", ["ended_at", "id"])
    live = sa.text("state IN ('doomed', 'erasing')")
    op.create_index(
        "doomed_live", "doomed", ["verdict_id", "size"], sqlite_where=live, postgresql_where=live
    )
