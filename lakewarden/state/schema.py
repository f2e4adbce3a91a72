"""The tables as the newest revision has them. A change here needs a revision in `migrations/versions`; a test compares the two."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

VERSION_TABLE = "lakewarden_version"

# In order; the last is the one this code works with. Kept here so that opening needs no Alembic.
REVISIONS = ("0001", "0002", "0003", "0004")
HEAD = REVISIONS[-1]


class UtcTime(TypeDecorator[datetime]):
    """A moment, stored in UTC and read back aware of it: SQLite keeps no zone, PostgreSQL answers in the session's."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a moment without a zone cannot be stored: {value}")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("table_name", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("beat_at", UtcTime, nullable=False),
    Column("owner_host", Text, nullable=False),
    Column("owner_pid", Integer, nullable=False),
    Column("owner_started", Double, nullable=False),
    Column("owner_token", Text, nullable=False),
    Column("trigger_type", Text, nullable=False),
    Column("trigger_operator", Text),
    Column("trigger_ticket", Text),
    Column("plan", JSON, nullable=False),
    Column("policy", JSON, nullable=False),
    Column("counters", JSON, nullable=False),
    Column("snapshot_ids", JSON, nullable=False),
    Column("last_step", Integer, nullable=False),
    Column("slot", Text, nullable=False, server_default=""),
)

Index(
    "one_open_run",
    runs.c.table_name,
    runs.c.slot,
    unique=True,
    sqlite_where=runs.c.ended_at.is_(None),
    postgresql_where=runs.c.ended_at.is_(None),
)
Index("runs_by_table", runs.c.table_name, runs.c.started_at)
Index("runs_by_start", runs.c.started_at)

run_steps = Table(
    "run_steps",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("detail", JSON, nullable=False),
)

table_policies = Table(
    "table_policies",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", JSON, nullable=False),
    Column("set_by", Text),
    Column("set_at", UtcTime, nullable=False),
)

seen_tables = Table(
    "seen_tables",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("uuid", Text, nullable=False),
    Column("properties", JSON, nullable=False),
    Column("seen_at", UtcTime, nullable=False),
)
