"""`lakewarden run` and `lakewarden maintain`: do it now."""

from __future__ import annotations

import typer

from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import (
    Branch,
    JobName,
    JsonFlag,
    Operator,
    Settings,
    TableName,
    Ticket,
    TriggerOption,
)
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("run")(run)
    app.command("maintain")(maintain)


def run(
    ctx: typer.Context,
    job: JobName,
    table: TableName,
    sets: Settings = None,
    branch: Branch = None,
    operator: Operator = None,
    ticket: Ticket = None,
    trigger: TriggerOption = "manual",
    as_json: JsonFlag = False,
) -> int:
    """Plan a job on a table and do it now, with every step in the journal.

    Never loses a row that the policy keeps, and never deletes a file that any snapshot names. Ctrl-C stops it cleanly.

    Example: `lakewarden run compact lake.db.events --operator ana --ticket OPS-12`
    """
    from lakewarden.report.run import RunReport

    screen = Screen(as_json)
    ref, settings = options.table_ref(table), options.settings(sets, branch)
    why = options.trigger(trigger, operator, ticket)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        ended = lakewarden.run(job, ref, settings, why, screen.progress())
    screen.show(RunReport(ended))
    return ended.state.exit_code


def maintain(
    ctx: typer.Context,
    table: TableName,
    operator: Operator = None,
    ticket: Ticket = None,
    trigger: TriggerOption = "manual",
    as_json: JsonFlag = False,
) -> int:
    """Do everything a table is due for, in order, as its policy says.

    Never does what the policy switches off; stops at a run whose outcome is unknown.

    Example: `lakewarden maintain lake.db.events`
    """
    from lakewarden.report.run import PassReport

    screen, ref = Screen(as_json), options.table_ref(table)
    why = options.trigger(trigger, operator, ticket)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        report = PassReport(str(ref), lakewarden.maintain(ref, why, screen.progress()))
    screen.show(report)
    return report.exit_code
