"""`lakewarden run` and `lakewarden maintain`: do it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from lakewarden.cli.screen import Interrupted, Screen

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.model.run import Trigger
    from lakewarden.model.table_name import TableRef


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
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="File a request for the worker, and leave at once.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Do everything a table is due for, in order, as its policy says: by the worker where one leads, else here.

    Never does what the policy switches off, and never beside a scheduled pass of the table; ends at a run whose outcome is
    unknown. A request stays filed when you stop waiting for it.

    Example: `lakewarden maintain lake.db.events`
    """
    from lakewarden.report.run import PassReport
    from lakewarden.report.upkeep import RequestReport

    screen, ref = Screen(as_json), options.table_ref(table)
    why = options.trigger(trigger, operator, ticket)
    called = invocation(ctx)
    with called.open(screen, spark=False) as lakewarden:
        leader = lakewarden.schedule.leader()
        if no_wait:
            if not lakewarden.names.knows(ref):
                screen.nothing_of(ref)
            screen.show(RequestReport(lakewarden.schedule.request(ref, why), leader))
            return 0
        if leader is not None and leader.live:
            return _by_the_worker(screen, lakewarden, ref, why)
        with called.started(screen, lakewarden):
            report = PassReport(str(ref), lakewarden.maintain(ref, why, screen.progress()))
        screen.show(report)
        return report.exit_code


def _by_the_worker(screen: Screen, lakewarden: Lakewarden, ref: TableRef, why: Trigger) -> int:
    from lakewarden.cli.asking import follow, runs_of
    from lakewarden.errors import LakewardenError
    from lakewarden.report.run import PassReport
    from lakewarden.state.requests import RequestState

    filed = lakewarden.schedule.request(ref, why)
    try:
        ended = follow(lakewarden, filed, screen.progress())
    except KeyboardInterrupt:
        hint = f"request {filed.id} stays filed, and the worker does it: see `lakewarden requests {ref}`"
        raise Interrupted(hint=hint) from None
    failed = ended.state is RequestState.FAILED
    if failed and not ended.run_ids:
        raise LakewardenError(reason=ended.reason, hint=f"see `lakewarden requests {ref}`")
    report = PassReport(str(ref), runs_of(lakewarden, ended))
    screen.show(report)
    return report.exit_code or int(failed)
