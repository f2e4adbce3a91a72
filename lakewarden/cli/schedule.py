"""`lakewarden schedule`, `requests`, `suspend`, `resume` and `cancel`: looking at the worker's plans, and changing them."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden import clock
from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Operator, TableName
from lakewarden.cli.screen import Screen
from lakewarden.errors import NoSuchTable


def register(app: typer.Typer) -> None:
    for name, command in (
        ("schedule", schedule),
        ("requests", requests),
        ("suspend", suspend),
        ("resume", resume),
        ("cancel", cancel),
    ):
        app.command(name)(command)


def schedule(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only this table.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """List every table the worker looks after: who is due and in which order, and of the others why not and when.

    Never starts Spark and never touches a table.

    Example: `lakewarden schedule lake.db.events`
    """
    from lakewarden.report.upkeep import ScheduleReport
    from lakewarden.worker.schedule_view import outlook

    screen = Screen(as_json)
    ref = None if table is None else options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        decision, leader = outlook(lakewarden, clock.now()), lakewarden.schedule.leader()
    if ref is not None:
        if decision.of(str(ref)) is None:
            raise NoSuchTable(table=ref, reason="no worker has found a table of that name to look after")
        decision = decision.only(str(ref))
    screen.show(ScheduleReport(decision, leader))
    return 0


def requests(
    ctx: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Only requests for this table.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most this many, the newest first.")] = 20,
    as_json: JsonFlag = False,
) -> int:
    """List passes that somebody asked the worker for, and what became of them.

    Never starts Spark and never touches a table.

    Example: `lakewarden requests lake.db.events`
    """
    from lakewarden.report.upkeep import RequestsReport

    screen = Screen(as_json)
    ref = None if table is None else options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        found = lakewarden.schedule.requests(ref, limit)
        if ref is not None and not found and not lakewarden.names.knows(ref):
            screen.nothing_of(ref)
    screen.show(RequestsReport(found, clock.now()))
    return 0


def suspend(
    ctx: typer.Context,
    table: TableName,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; shown to whoever wonders.")],
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Leave a table out of the schedule until somebody resumes it.

    Never stops a run that is under way (see `cancel`), and never keeps anybody from `run` and `maintain` by hand.

    Example: `lakewarden suspend lake.db.events --reason "backfill until Friday"`
    """
    from lakewarden.report.upkeep import SuspensionReport
    from lakewarden.services.trigger import current_user

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        made = lakewarden.schedule.suspend(ref, reason, operator or current_user())
    screen.show(SuspensionReport(str(ref), made))
    return 0


def resume(ctx: typer.Context, table: TableName, as_json: JsonFlag = False) -> int:
    """Take a suspended table back into the schedule, its failures forgotten.

    Never runs anything itself: what the table owes is due at once.

    Example: `lakewarden resume lake.db.events`
    """
    from lakewarden.report.upkeep import SuspensionReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        was = lakewarden.schedule.resume(ref)
    screen.show(SuspensionReport(str(ref), None, was))
    return 0


def cancel(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="ID", help="As `lakewarden runs` lists it.")],
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Ask whoever drives a run to stop it cleanly, wherever that is; it ends as `interrupted` within seconds.

    Never undoes what the run has committed, and never stops a commit that has begun.

    Example: `lakewarden cancel 20261116-003012-7f3a9c`
    """
    from lakewarden.report.upkeep import CancelReport
    from lakewarden.services.trigger import current_user

    screen, who = Screen(as_json), operator or current_user()
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        run = lakewarden.schedule.cancel(run_id, who)
    screen.show(CancelReport(run, who))
    return 0
