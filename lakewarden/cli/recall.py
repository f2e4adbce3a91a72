"""`lakewarden recall`: make a snapshot readable whose files lie in an archive."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import AsOf, AtSnapshot, AtTag, JsonFlag, TableName, table_ref
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("recall")(recall)


def recall(
    ctx: typer.Context,
    table: TableName,
    snapshot: AtSnapshot = None,
    as_of: AsOf = None,
    tag: AtTag = None,
    days: Annotated[int, typer.Option("--days", metavar="N", help="For how many days.")] = 7,
    bulk: Annotated[
        bool, typer.Option("--bulk", help="Slower, up to two days, and cheaper as a rule.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Come back when all of it can be read.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Make a snapshot of the colder tier readable whose files lie in an archive, for some days, and say when it is.

    Never moves or changes a file: the archive lends a copy of each. What is on its way already is not asked for again. The exit
    code is 0 when it can be read now, 3 when it has to be waited for, 1 where nobody has it any more.

    Example: `lakewarden recall lake.db.events --as-of 2024-01-31T12:00 --days 3 --wait`
    """
    from lakewarden import clock
    from lakewarden.jobs.cold.locate import GONE, Asked
    from lakewarden.policy.duration import moment
    from lakewarden.report.recall import RecallReport
    from lakewarden.report.where import WhereReport

    screen, ref = Screen(as_json), table_ref(table)
    Asked(snapshot, moment(as_of, "as-of"), tag)  # what is asked wrongly is told before Spark starts
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        found = lakewarden.tiers.recall(
            ref,
            snapshot_id=snapshot,
            as_of=as_of,
            tag=tag,
            days=days,
            bulk=bulk,
            wait=wait,
            progress=screen.progress(),
        )
    if found.where.tier == GONE:
        screen.show(WhereReport(str(ref), found.where))
        return 1
    screen.show(RecallReport(str(ref), found, clock.now()))
    return 0 if found.ready else 3
