"""`lakewarden where`: which catalog and tier has a moment of a table's past."""

from __future__ import annotations

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import AsOf, AtSnapshot, AtTag, JsonFlag, TableName, table_ref
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("where")(where)


def where(
    ctx: typer.Context,
    table: TableName,
    snapshot: AtSnapshot = None,
    as_of: AsOf = None,
    tag: AtTag = None,
    as_json: JsonFlag = False,
) -> int:
    """Say where a moment of a table's past can be read, the table itself or its colder tier, and the query to run.

    Never changes anything. The exit code is 1 where nobody has it any more.

    Example: `lakewarden where lake.db.events --as-of 2026-01-31T12:00`
    """
    from lakewarden.jobs.cold.locate import GONE, Asked
    from lakewarden.policy.duration import moment
    from lakewarden.report.where import WhereReport

    screen, ref = Screen(as_json), table_ref(table)
    Asked(snapshot, moment(as_of, "as-of"), tag)  # what is asked wrongly is told before Spark starts
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        found = lakewarden.tiers.where(ref, snapshot_id=snapshot, as_of=as_of, tag=tag)
    screen.show(WhereReport(str(ref), found))
    return 1 if found.tier == GONE else 0
