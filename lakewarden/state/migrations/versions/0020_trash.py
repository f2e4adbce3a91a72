"""rename doomed to trash, reap to purge, and spared to skipped"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

STILL_THERE = sa.text("state IN ('trashed', 'erasing')")
KEYS = {
    "doomed": "trash",
    "spared": "skipped",
    "doomed_at": "trashed_at",
    "files_doomed": "files_trashed",
    "files_doomed_unsized": "files_trashed_unsized",
    "bytes_doomed": "bytes_trashed",
    "data_files_doomed": "data_files_trashed",
    "already_doomed": "already_trashed",
    "groups_spared": "groups_skipped",
    "doomed_files": "trashed_files",
    "doomed_bytes": "trashed_bytes",
    "due_doomed_files": "due_trashed_files",
    "due_doomed_bytes": "due_trashed_bytes",
    "files_to_doom": "files_to_trash",
    "reap_run_id": "purge_run_id",
    "reap_outside_location": "purge_outside_location",
}
JSONS = {
    "runs": ("plan", "policy", "counters"),
    "run_steps": ("detail",),
    "verdicts": ("detail",),
    "table_health": ("numbers", "portrait"),
    "health_history": ("numbers",),
    "operator_actions": ("detail",),
}
VALUES = {
    ("runs", "job"): {"reap": "purge"},
    ("run_steps", "name"): {"dooming": "trashing", "doomed": "trashed", "spared": "skipped"},
    ("standings", "slot"): {"reap": "purge"},
    ("warnings", "kind"): {"doomed-backlog": "trash-backlog"},
    ("table_policies", "key"): {"reap_outside_location": "purge_outside_location"},
    ("trash", "state"): {"doomed": "trashed"},
}


def upgrade() -> None:
    for index in ("doomed_by_state", "doomed_by_run", "doomed_live"):
        op.drop_index(index, "doomed")
    op.rename_table("doomed", "trash")
    op.alter_column("trash", "reap_run_id", new_column_name="purge_run_id")
    op.alter_column("verdicts", "doomed_at", new_column_name="trashed_at")
    for (table, column), words in VALUES.items():
        for old, new in words.items():
            change = sa.text(f"UPDATE {table} SET {column} = :new WHERE {column} = :old")
            op.execute(change.bindparams(old=old, new=new))
    for table, columns in JSONS.items():
        for column in columns:
            _rename_keys(table, column)
    op.create_index("trash_by_state", "trash", ["verdict_id", "state"])
    op.create_index("trash_by_run", "trash", ["purge_run_id"])
    op.create_index(
        "trash_live", "trash", ["verdict_id", "size"], sqlite_where=STILL_THERE, postgresql_where=STILL_THERE
    )


def _rename_keys(table: str, column: str) -> None:
    """A key is followed by a colon, a value is not. Quotes inside a value are escaped."""
    postgres = op.get_bind().dialect.name == "postgresql"
    text = f"CAST({column} AS TEXT)" if postgres else column
    for old, new in KEYS.items():
        renamed = f"REPLACE({text}, '\"{old}\":', '\"{new}\":')"
        to = f"CAST({renamed} AS JSON)" if postgres else renamed
        statement = f"UPDATE {table} SET {column} = {to} WHERE {text} LIKE '%\"{old}\":%'"
        op.get_bind().exec_driver_sql(statement.replace("%", "%%") if postgres else statement)
