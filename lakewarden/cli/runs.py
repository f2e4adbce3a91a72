"""`lakewarden runs` and `lakewarden run-show`: past and current runs, from the journal."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden import clock
from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("runs")(runs)
    app.command("run-show")(run_show)


def runs(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only this table's runs.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show at most this many, newest first.")
    ] = 20,
    as_json: JsonFlag = False,
) -> int:
    """List the newest runs: what they did, how they ended and why.

    Never starts Spark and never touches a table.

    Example: `lakewarden runs lake.db.events --limit 5`
    """
    from lakewarden.report.run import RunsReport

    screen = Screen(as_json)
    ref = None if table is None else options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        found = lakewarden.runs(ref, limit)
        if ref is not None and not found and not lakewarden.names.knows(ref):
            screen.nothing_of(ref)
    screen.show(RunsReport(found, clock.now()))
    return 0


def run_show(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the run, from `lakewarden runs`.")],
    as_json: JsonFlag = False,
) -> int:
    """Show one run with every journaled step. With --json also its plan, its policy and every path.

    Never starts Spark and never touches a table.

    Example: `lakewarden run-show 20261116-003012-7f3a9c`
    """
    from lakewarden.report.run import RunReport

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        found, steps = lakewarden.run_by_id(run_id)
    screen.show(RunReport(found, steps))
    return 0
