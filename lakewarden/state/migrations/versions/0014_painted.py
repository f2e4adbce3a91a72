"""narrow rows for queries over the details of all tables"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Fill the rows from existing details, because the details of an unchanged table are not built again."""
    holds = op.create_table(
        "painted_holds",
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("place", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("line", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("table_name", "place"),
    )
    inputs = op.create_table(
        "painted_inputs",
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("snapshot_id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("table_name", "snapshot_id"),
    )
    assert holds is not None and inputs is not None
    health = sa.table("table_health", sa.column("table_name", sa.Text), sa.column("portrait", sa.JSON))
    connection = op.get_bind()
    names = connection.execute(sa.select(health.c.table_name)).scalars().all()
    for name in names:  # one at a time: the details of a table can be large
        found = connection.execute(sa.select(health.c.portrait).where(health.c.table_name == name)).scalar_one()
        held = [
            {"table_name": name, "place": place, "line": line}
            for place, line in enumerate(found.get("holds", ()))
        ]
        made = {
            line["id"]: {
                "table_name": name,
                "snapshot_id": line["id"],
                "at": datetime.fromisoformat(line["at"]),
                "operation": line["operation"],
                "inputs": line["inputs"],
            }
            for line in found.get("snapshots", ())
            if line.get("inputs")
        }
        if held:
            connection.execute(holds.insert(), held)
        if made:
            connection.execute(inputs.insert(), list(made.values()))
