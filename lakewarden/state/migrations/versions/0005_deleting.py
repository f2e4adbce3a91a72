"""deletion batches and their files, pins, heartbeats, loads, summaries of expired snapshots"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    _doomed()
    _holds()
    _archive()


def _doomed() -> None:
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("table_uuid", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("made_at", _TIME, nullable=False),
        sa.Column("doomed_at", _TIME),
        sa.Column("detail", sa.JSON, nullable=False),
    )
    op.create_index("verdicts_by_table", "verdicts", ["table_name", "state"])
    op.create_table(
        "doomed",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("verdict_id", sa.Text, sa.ForeignKey("verdicts.id"), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger),
        sa.Column("stamp", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reap_run_id", sa.Text),
        sa.Column("ended_at", _TIME),
        sa.Column("note", sa.Text, nullable=False),
        sa.UniqueConstraint("verdict_id", "path", name="one_verdict_per_file"),
    )
    op.create_index("doomed_by_state", "doomed", ["verdict_id", "state"])


def _holds() -> None:
    op.create_table(
        "pins",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("table_uuid", sa.Text, nullable=False),
        sa.Column("snapshot_id", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("tag", sa.Text),
    )
    op.create_index("pins_by_table", "pins", ["table_name"])
    op.create_table(
        "heartbeats",
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("writer", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("beat_at", _TIME, nullable=False),
        sa.Column("ttl_seconds", sa.Integer, nullable=False),
        sa.Column("prefixes", sa.JSON, nullable=False),
    )
    op.create_table(
        "loads",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("table_uuid", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("paths", sa.JSON, nullable=False),
        sa.Column("prefixes", sa.JSON, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("ended_at", _TIME),
        sa.Column("run_id", sa.Text),
    )
    op.create_index("loads_by_table", "loads", ["table_name", "state"])


def _archive() -> None:
    op.create_table(
        "archived_snapshots",
        sa.Column("table_uuid", sa.Text, primary_key=True),
        sa.Column("snapshot_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("parent_id", sa.BigInteger),
        sa.Column("sequence_number", sa.BigInteger, nullable=False),
        sa.Column("committed_at", _TIME, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("summary", sa.JSON, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("archived_at", _TIME, nullable=False),
    )
    op.create_index("archived_by_table", "archived_snapshots", ["table_name", "committed_at"])
