"""The tables of the newest schema revision. A change here needs a revision in `migrations/versions`; a test
compares the two."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)


class UtcTime(TypeDecorator[datetime]):
    """A time stored in UTC and returned with its zone: SQLite stores no zone, and PostgreSQL answers in the
    session's zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"cannot store a time without a zone: {value}")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """SQLite stores text, which is parsed in one step: a list of a thousand tables has thousands of
        times."""
        return _utc if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


def _utc(stored: str | None) -> datetime | None:
    return None if stored is None else datetime.fromisoformat(f"{stored}+00:00")


VERSION_TABLE = "lakewarden_version"

# In order; the last is the one this code works with. Kept here so that opening needs no Alembic.
REVISIONS = tuple(f"{each:04}" for each in (*range(1, 18), 19, 20, 21))
HEAD = REVISIONS[-1]

metadata = MetaData()


def _where(rows: Any) -> dict[str, Any]:
    """The condition of a partial index, for both databases."""
    return {"sqlite_where": rows, "postgresql_where": rows}


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
    # Term of the worker's lease; null for a manual run.
    Column("lease_term", BigInteger),
)

Index("one_open_run", runs.c.table_name, runs.c.slot, unique=True, **_where(runs.c.ended_at.is_(None)))
Index("runs_by_table", runs.c.table_name, runs.c.started_at)
Index("runs_by_start", runs.c.started_at)
Index("runs_by_end", runs.c.ended_at, runs.c.id)

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

# The location of each table when it was first seen. A later change comes from its writer and is not trusted.
homes = Table(
    "homes",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("table_name", Text, nullable=False),
    Column("location", Text, nullable=False),
    Column("since", UtcTime, nullable=False),
)

# Deletion batches: why files are in the trash. One per run of expire or sweep, and per failed load. The files are in `trash`.
trash_batches = Table(
    "trash_batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("table_name", Text, nullable=False),
    Column("table_uuid", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("made_at", UtcTime, nullable=False),
    Column("trashed_at", UtcTime),
    Column("detail", JSON, nullable=False),
    Column("grace_from", UtcTime),  # set when the grace period started again, see `generation`
)

# One row: see `generation`.
generations = Table(
    "generations",
    metadata,
    Column("database", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("place", Text, nullable=False),
    Column("restarted_at", UtcTime),
)

Index("trash_batches_by_table", trash_batches.c.table_name, trash_batches.c.state)

# A file of a deletion batch, from marked to deleted. The row of a deleted file is its receipt and is never removed.
trashed = Table(
    "trash",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("batch_id", Text, ForeignKey("trash_batches.id"), nullable=False),
    Column("path", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("size", BigInteger),
    Column("stamp", Text),
    Column("state", Text, nullable=False),
    Column("purge_run_id", Text),
    Column("ended_at", UtcTime),
    Column("note", Text, nullable=False),
    UniqueConstraint("batch_id", "path", name="one_verdict_per_file"),
)

Index("trash_by_state", trashed.c.batch_id, trashed.c.state)
Index("trash_by_run", trashed.c.purge_run_id)
# Only files that still exist: the table also keeps the receipts of all deleted files.
STILL_THERE = "state IN ('trashed', 'erasing')"
Index("trash_live", trashed.c.batch_id, trashed.c.size, **_where(text(STILL_THERE)))

pins = Table(
    "pins",
    metadata,
    Column("id", Text, primary_key=True),
    Column("table_name", Text, nullable=False),
    Column("table_uuid", Text, nullable=False),
    Column("snapshot_id", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("tag", Text),
)

Index("pins_by_table", pins.c.table_name)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("writer", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("beat_at", UtcTime, nullable=False),
    Column("ttl_seconds", Integer, nullable=False),
    Column("prefixes", JSON, nullable=False),
)

loads = Table(
    "loads",
    metadata,
    Column("id", Text, primary_key=True),
    Column("table_name", Text, nullable=False),
    Column("table_uuid", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("paths", JSON, nullable=False),
    Column("prefixes", JSON, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("run_id", Text),
)

Index("loads_by_table", loads.c.table_name, loads.c.state)

# Summaries of expired snapshots, so that audits can be answered for years.
archived_snapshots = Table(
    "archived_snapshots",
    metadata,
    Column("table_uuid", Text, nullable=False),
    Column("snapshot_id", BigInteger, nullable=False, autoincrement=False),
    Column("table_name", Text, nullable=False),
    Column("parent_id", BigInteger),
    Column("sequence_number", BigInteger, nullable=False),
    Column("committed_at", UtcTime, nullable=False),
    Column("operation", Text, nullable=False),
    Column("summary", JSON, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("archived_at", UtcTime, nullable=False),
    PrimaryKeyConstraint("table_uuid", "snapshot_id", "committed_at", name="one_archived_commit"),
)

Index("archived_by_table", archived_snapshots.c.table_name, archived_snapshots.c.committed_at)

# Archived snapshots that were folded: one Parquet file per table and month, with the rows `archived_snapshots` had. It is
# in `content`, or where `path` says.
history_details = Table(
    "history_details",
    metadata,
    Column("id", Text, primary_key=True),
    Column("table_uuid", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("month", Text, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("made_at", UtcTime, nullable=False),
    Column("path", Text),
    Column("content", LargeBinary),  # last column, so that SQLite can read the others without it
    UniqueConstraint("table_uuid", "month", name="one_detail_per_month"),
)

# A short description of a detail: enough to decide whether a query must open it.
history_ranges = Table(
    "history_ranges",
    metadata,
    Column("detail_id", Text, ForeignKey("history_details.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("operation", Text, nullable=False),
    Column("format_operation", Text, nullable=False),
    Column("writer", Text, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("with_operator", BigInteger, nullable=False),
    Column("with_inputs", BigInteger, nullable=False),
    Column("first_id", BigInteger, nullable=False),
    Column("last_id", BigInteger, nullable=False),
    Column("min_id", BigInteger, nullable=False),
    Column("max_id", BigInteger, nullable=False),
    Column("first_at", UtcTime, nullable=False),
    Column("last_at", UtcTime, nullable=False),
)

# Which process may commit to a table now, by the table's location. The row is deleted when its holder is done.
commit_locks = Table(
    "commit_locks",
    metadata,
    Column("place", Text, primary_key=True),
    Column("table_name", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("taken_at", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),
)

# Commits rejected for missing lineage, and the newest reason.
lineage_rejections = Table(
    "lineage_rejections",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("door", Text, primary_key=True),
    Column("total", BigInteger, nullable=False),
    Column("last_at", UtcTime, nullable=False),
    Column("last_reason", Text, nullable=False),
)

# The copy of each file in the colder tier. `proven_at`: when the whole copy was last read and found correct. `etag`: the
# only value that an archive class still reports. `let_go_at`: since then no cold snapshot needs the copy.
cold_files = Table(
    "cold_files",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("cold_path", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("copied_at", UtcTime, nullable=False),
    Column("storage_class", Text),
    Column("class_since", UtcTime),
    Column("etag", Text),
    Column("proven_at", UtcTime),
    Column("let_go_at", UtcTime),
)

Index("cold_files_by_copy", cold_files.c.table_uuid, cold_files.c.cold_path)

# When each snapshot of a table was handed off, and when it left the colder tier.
cold_snapshots = Table(
    "cold_snapshots",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("snapshot_id", BigInteger, primary_key=True, autoincrement=False),
    Column("handed_at", UtcTime, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("left_at", UtcTime),
)

# The leader: one row per role. The term grows with every new leader and never goes back, so that writes of an earlier
# leader can be detected.
leases = Table(
    "leases",
    metadata,
    Column("role", Text, primary_key=True),
    Column("term", BigInteger, nullable=False),
    Column("token", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("taken_at", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),
    Column("note", JSON, nullable=False),
)

# Requested passes. Ended ones are kept for a while: see `retention.py`.
requests = Table(
    "requests",
    metadata,
    Column("id", Text, primary_key=True),
    Column("table_name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("trigger_type", Text, nullable=False),
    Column("trigger_operator", Text),
    Column("trigger_ticket", Text),
    Column("made_at", UtcTime, nullable=False),
    Column("refreshed_at", UtcTime, nullable=False),
    Column("claimed_at", UtcTime),
    Column("term", BigInteger),
    Column("ended_at", UtcTime),
    Column("run_ids", JSON, nullable=False),
    Column("reason", Text, nullable=False),
)

Index("one_pending_request", requests.c.table_name, unique=True, **_where(requests.c.state == "pending"))
Index("requests_by_state", requests.c.state, requests.c.made_at)
Index("requests_by_table", requests.c.table_name, requests.c.made_at)

# The schedule's state per table: when its pass, or with cron each of its jobs, last began and ended, and how often it
# failed in a row. `slot` is `pass` or a job's name.
standings = Table(
    "standings",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("slot", Text, primary_key=True),
    Column("began_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("retry_at", UtcTime),
    Column("run_ids", JSON, nullable=False),
    Column("left_open", Integer, nullable=False, server_default="0"),
)

# Tables that the schedule skips until an operator resumes them.
suspensions = Table(
    "suspensions",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("since", UtcTime, nullable=False),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
)

# The current progress of a run, and whether it was asked to stop.
run_progress = Table(
    "run_progress",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("what", Text, nullable=False),
    Column("done_bytes", BigInteger, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
)

run_cancels = Table(
    "run_cancels",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("by", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
)

# The newest health of every table: its numbers, its score, and what its page shows without reading the table.
table_health = Table(
    "table_health",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("table_uuid", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("version", Text, nullable=False),
    Column("score", Integer, nullable=False),
    Column("debt", Double, nullable=False),
    Column("numbers", JSON, nullable=False),
    Column("error", Text, nullable=False),
    Column("portrait", JSON, nullable=False),  # the last: lists of tables are read without it
)

# Rows for queries over all tables: holds, and live commits with their input snapshots.
painted_holds = Table(
    "painted_holds",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("line", JSON, nullable=False),
)

painted_inputs = Table(
    "painted_inputs",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("snapshot_id", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("operation", Text, nullable=False),
    Column("inputs", Text, nullable=False),
)

# Earlier health numbers, for charts and what-if: thinned out as they age.
health_history = Table(
    "health_history",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("at", UtcTime, primary_key=True),
    Column("score", Integer, nullable=False),
    Column("numbers", JSON, nullable=False),
)

# Warnings of a table, from when they were first seen until they were cleared.
warnings = Table(
    "warnings",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("table_name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("since", UtcTime, nullable=False),
    Column("seen_at", UtcTime, nullable=False),
    Column("cleared_at", UtcTime),
)

Index(
    "one_open_warning",
    warnings.c.table_name,
    warnings.c.kind,
    unique=True,
    **_where(warnings.c.cleared_at.is_(None)),
)

Index("warnings_by_table", warnings.c.table_name, warnings.c.cleared_at)

# Operators' actions in the console or the REST API with their outcome; refused attempts too.
operator_actions = Table(
    "operator_actions",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", UtcTime, nullable=False),
    Column("who", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", JSON, nullable=False),
    Column("address", Text, nullable=False),
)

Index("actions_by_time", operator_actions.c.at)
Index("actions_by_target", operator_actions.c.target, operator_actions.c.id)
