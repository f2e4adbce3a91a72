"""the worker: its lease, requests, schedule state, health, warnings, and operators' actions"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _column(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    op.add_column("runs", sa.Column("lease_term", sa.BigInteger))
    op.create_table(
        "leases",
        sa.Column("role", sa.Text, primary_key=True),
        _column("term", sa.BigInteger),
        _column("token", sa.Text),
        _column("host", sa.Text),
        _column("pid", sa.Integer),
        _column("taken_at", _TIME),
        _column("until", _TIME),
        _column("note", sa.JSON),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.Text, primary_key=True),
        _column("table_name", sa.Text),
        _column("state", sa.Text),
        _column("trigger_type", sa.Text),
        sa.Column("trigger_operator", sa.Text),
        sa.Column("trigger_ticket", sa.Text),
        _column("made_at", _TIME),
        _column("refreshed_at", _TIME),
        sa.Column("claimed_at", _TIME),
        sa.Column("term", sa.BigInteger),
        sa.Column("ended_at", _TIME),
        _column("run_ids", sa.JSON),
        _column("reason", sa.Text),
    )
    pending = sa.text("state = 'pending'")
    op.create_index(
        "one_pending_request",
        "requests",
        ["table_name"],
        unique=True,
        sqlite_where=pending,
        postgresql_where=pending,
    )
    op.create_index("requests_by_state", "requests", ["state", "made_at"])
    op.create_table(
        "standings",
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("slot", sa.Text, primary_key=True),
        sa.Column("began_at", _TIME),
        sa.Column("ended_at", _TIME),
        _column("state", sa.Text),
        _column("reason", sa.Text),
        _column("failures", sa.Integer),
        sa.Column("retry_at", _TIME),
        _column("run_ids", sa.JSON),
    )
    op.create_table(
        "suspensions",
        sa.Column("table_name", sa.Text, primary_key=True),
        _column("since", _TIME),
        _column("reason", sa.Text),
        _column("by", sa.Text),
    )
    op.create_table(
        "run_progress",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        _column("what", sa.Text),
        _column("done_bytes", sa.BigInteger),
        _column("total_bytes", sa.BigInteger),
        _column("note", sa.Text),
        _column("at", _TIME),
    )
    op.create_table(
        "run_cancels",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        _column("by", sa.Text),
        _column("at", _TIME),
    )
    op.create_table(
        "table_health",
        sa.Column("table_name", sa.Text, primary_key=True),
        _column("table_uuid", sa.Text),
        _column("at", _TIME),
        _column("version", sa.Text),
        _column("score", sa.Integer),
        _column("debt", sa.Double),
        _column("numbers", sa.JSON),
        _column("error", sa.Text),
        _column("portrait", sa.JSON),
    )
    op.create_table(
        "health_history",
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("at", _TIME, primary_key=True),
        _column("score", sa.Integer),
        _column("numbers", sa.JSON),
    )
    op.create_table(
        "warnings",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        _column("table_name", sa.Text),
        _column("kind", sa.Text),
        _column("text", sa.Text),
        _column("since", _TIME),
        _column("seen_at", _TIME),
        sa.Column("cleared_at", _TIME),
    )
    still = sa.text("cleared_at IS NULL")
    op.create_index(
        "one_open_warning",
        "warnings",
        ["table_name", "kind"],
        unique=True,
        sqlite_where=still,
        postgresql_where=still,
    )
    op.create_table(
        "operator_actions",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        _column("at", _TIME),
        _column("who", sa.Text),
        _column("role", sa.Text),
        _column("action", sa.Text),
        _column("target", sa.Text),
        _column("outcome", sa.Text),
        _column("detail", sa.JSON),
        _column("address", sa.Text),
    )
    op.create_index("actions_by_time", "operator_actions", ["at"])
