"""indexes: requests, actions and warnings by table, receipts by run"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("doomed_by_run", "doomed", ["reap_run_id"])
    op.create_index("requests_by_table", "requests", ["table_name", "made_at"])
    op.create_index("actions_by_target", "operator_actions", ["target", "id"])
    op.create_index("warnings_by_table", "warnings", ["table_name", "cleared_at"])
