"""`lakewarden health` and `lakewarden what-if`: how tables are, and what another policy would change."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from lakewarden import clock
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Settings, TableName, settings, table_ref
from lakewarden.cli.screen import Screen
from lakewarden.errors import UsageError

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.health.look import Sweep
    from lakewarden.report.seam import Report

_CHARTED = timedelta(days=7)


def register(app: typer.Typer) -> None:
    app.command("health")(health)
    app.command("what-if")(what_if)


def health(
    ctx: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="One table; every table when not said.")
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Look now, instead of telling what the worker saw last.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Show how tables are: numbers, score, warnings and what most needs work, as the worker saw them last.

    Never changes a table. Without --refresh no table is touched and Spark is not started; with it, only metadata is read and nothing
    is listed. The exit code is 3 where a table has a warning.

    Example: `lakewarden health lake.db.events`
    """
    screen = Screen(as_json)
    ref = None if table is None else table_ref(table)
    with invocation(ctx).open(screen, spark=refresh) as lakewarden:
        sweep = None
        if refresh:
            with screen.waiting(f"looking at {ref or 'every table'}"):
                sweep = lakewarden.health.look(None if ref is None else [ref])
        shown, warned = _fleet(lakewarden, sweep) if ref is None else _one(lakewarden, str(ref))
    screen.show(shown)
    return 3 if warned else 0


def _fleet(lakewarden: Lakewarden, sweep: Sweep | None) -> tuple[Report, bool]:
    from lakewarden.report.health import FleetHealth

    warnings = lakewarden.health.warnings()
    return FleetHealth(lakewarden.health.all(), warnings, clock.now(), sweep), bool(warnings)


def _one(lakewarden: Lakewarden, table: str) -> tuple[Report, bool]:
    from lakewarden.report.health import TableHealthReport

    found = lakewarden.health.of(table)
    if found is None:
        raise UsageError(
            reason=f"show the health of {table}: nobody has looked at it yet",
            hint=f"look now with `lakewarden health {table} --refresh`, or start the worker",
        )
    now, warnings = clock.now(), lakewarden.health.warnings(table)
    report = TableHealthReport(
        found,
        lakewarden.health.score(found),
        lakewarden.health.portrait_of(table),
        warnings,
        lakewarden.health.history(table, now - _CHARTED),
        now,
    )
    return report, bool(warnings)


def what_if(
    ctx: typer.Context,
    table: TableName,
    pairs: Settings = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=3650, help="How far back to replay.")
    ] = 30,
    as_json: JsonFlag = False,
) -> int:
    """Replay a policy on the table's own commits: snapshots kept, bytes rewritten a day and storage, beside the policy in force.

    Never changes anything, and touches no table: it works on what the worker saw and what the archive keeps.

    Example: `lakewarden what-if lake.db.events --set snapshot_retention_hours=7d`
    """
    from lakewarden.report.health import WhatIfReport

    screen, ref = Screen(as_json), table_ref(table)
    values = settings(pairs)
    if not values:
        raise UsageError(
            reason=f"replay a policy on {ref}: it says nothing that differs",
            hint="name what should be another way, as --set snapshot_retention_hours=7d",
        )
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        answer = lakewarden.health.what_if(ref, values, days)
    screen.show(WhatIfReport(answer))
    return 0
