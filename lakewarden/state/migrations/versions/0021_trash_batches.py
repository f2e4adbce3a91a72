"""what was a verdict on files is a deletion batch"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

JSONS = (("runs", "plan"), ("run_steps", "detail"), ("operator_actions", "detail"))


def upgrade() -> None:
    op.drop_index("verdicts_by_table", "verdicts")
    op.rename_table("verdicts", "trash_batches")
    op.alter_column("trash", "verdict_id", new_column_name="batch_id")
    op.create_index("trash_batches_by_table", "trash_batches", ["table_name", "state"])
    postgres = op.get_bind().dialect.name == "postgresql"
    for table, column in JSONS:
        _rename_key(table, column, postgres)


def _rename_key(table: str, column: str, postgres: bool) -> None:
    """A key is told from a value by its colon. Inside a value its quotes would be escaped."""
    text = f"CAST({column} AS TEXT)" if postgres else column
    renamed = f"REPLACE({text}, '\"verdict\":', '\"batch\":')"
    to = f"CAST({renamed} AS JSON)" if postgres else renamed
    statement = f"UPDATE {table} SET {column} = {to} WHERE {text} LIKE '%\"verdict\":%'"
    op.get_bind().exec_driver_sql(statement.replace("%", "%%") if postgres else statement)
