"""`lakewarden plan`: what would be done, and what is skipped, with reasons."""

from __future__ import annotations

import typer

from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import Branch, JobName, JsonFlag, Settings, TableName
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    ctx: typer.Context,
    job: JobName,
    table: TableName,
    sets: Settings = None,
    branch: Branch = None,
    as_json: JsonFlag = False,
) -> int:
    """Say what a job would do to a table now, and what it would leave alone and why.

    Never changes anything: not the table, not the journal.

    Example: `lakewarden plan compact lake.db.events --set rewrite_min_input_files=2`
    """
    from lakewarden.report.plan import PlanReport

    screen, call = Screen(as_json), invocation(ctx)
    ref, settings = options.table_ref(table), options.settings(sets, branch)
    with call.open(screen, spark=True) as lakewarden, screen.waiting(f"planning {job} {ref}"):
        made = lakewarden.plan(job, ref, settings)
    screen.show(PlanReport(made, call.command("run", job, str(ref), settings=settings)))
    return 0
