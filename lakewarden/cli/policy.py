"""`lakewarden policy`: show a table's policy with the origin of each value, or change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Operator, TableName, complete_key, complete_setting
from lakewarden.cli.screen import Screen
from lakewarden.errors import UsageError

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.model.table import TableRef
    from lakewarden.report.policy import PolicyReport


def register(app: typer.Typer) -> None:
    app.command("policy")(policy)


def policy(
    ctx: typer.Context,
    table: TableName,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Store a value for the table. May be repeated.",
            autocompletion=complete_setting,
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="Remove a stored value. May be repeated.", autocompletion=complete_key
        ),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Remove all values stored for the table.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Read the table's own properties again (starts Spark).")
    ] = False,
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Show a table's policy with the origin of every value, or change the values stored for the table.

    Never writes to the table: values are stored in the state database. The table's own `lakewarden.*`
    properties are shown as last read.

    Example: `lakewarden policy lake.db.events --set rewrite_target_bytes=256MiB --unset rewrite_where`
    """
    screen, ref = Screen(as_json), options.table_ref(table)
    values, forgotten = options.settings(sets), tuple(unset or ())
    both = sorted(set(values) & set(forgotten))
    if both:
        raise UsageError(
            reason=f"cannot set and unset {', '.join(both)} in one call", hint="leave out one of the two"
        )
    with invocation(ctx).open(screen, spark=refresh) as lakewarden:
        changes = bool(values or forgotten or reset)
        report = (
            _change(lakewarden, ref, values, forgotten, reset, refresh, operator)
            if changes
            else _report(lakewarden, ref, refresh)
        )
    screen.show(report)
    return 0


def _report(lakewarden: Lakewarden, table: TableRef, refresh: bool) -> PolicyReport:
    from lakewarden.report.policy import PolicyReport

    return PolicyReport(lakewarden.policy(table, refresh=refresh))


def _change(
    lakewarden: Lakewarden,
    table: TableRef,
    values: dict[str, str],
    unset: tuple[str, ...],
    reset: bool,
    refresh: bool,
    operator: str | None,
) -> PolicyReport:
    from lakewarden.report.policy import PolicyReport

    before = lakewarden.policy(table, refresh=refresh)
    after = lakewarden.set_policy(table, values, unset=unset, reset=reset, operator=operator)
    return PolicyReport(after, before)
