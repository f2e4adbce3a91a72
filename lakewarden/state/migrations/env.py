"""Runs the revisions on the given connection, inside its transaction."""

from __future__ import annotations

from alembic import context

from lakewarden.state.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
