"""`lakewarden tables` and `lakewarden show`: the tables, their numbers, and what each job would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lakewarden import clock
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, TableName, table_ref
from lakewarden.cli.screen import Screen
from lakewarden.errors import LakewardenError
from lakewarden.model.run import RunState
from lakewarden.model.table import TableRef

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.report.table import TableRow


def register(app: typer.Typer) -> None:
    app.command("tables")(tables)
    app.command("show")(show)


def tables(ctx: typer.Context, as_json: JsonFlag = False) -> int:
    """List every table of the configured catalogs, with its numbers.

    Never changes a table. A table that cannot be read is listed with its error, and the exit code is 3 (1 if
    no table can be read).

    Example: `lakewarden tables`
    """
    from lakewarden.report.table import TablesReport

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=True) as lakewarden, screen.waiting("reading tables"):
        rows = [row for catalog in lakewarden.lake.catalogs() for row in _rows(lakewarden, catalog)]
    screen.show(TablesReport(tuple(rows), clock.now()))
    return _exit_code([bool(row.error) for row in rows])


def _exit_code(failed: list[bool]) -> int:
    if not any(failed):
        return 0
    return (RunState.FAILED if all(failed) else RunState.PARTIAL).exit_code


def _rows(lakewarden: Lakewarden, catalog: str) -> list[TableRow]:
    from lakewarden.report.table import TableRow

    try:
        return [_row(lakewarden, table) for table in lakewarden.tables(catalog)]
    except LakewardenError as error:
        return [TableRow(f"{catalog}.*", error=error.message)]


def _row(lakewarden: Lakewarden, table: TableRef) -> TableRow:
    from lakewarden.report.table import TableRow

    try:
        return TableRow.of(lakewarden.health.counted(lakewarden.view(table)))
    except Exception as error:  # any error of one table is shown on its line; the others are still listed
        return TableRow(str(table), error=(str(error).splitlines() or [type(error).__name__])[0])


def show(ctx: typer.Context, table: TableName, as_json: JsonFlag = False) -> int:
    """Show one table: its files, snapshots, newest commits, and what each job would do now.

    Never changes it. Sweep is left out, because it would list the whole table: use `lakewarden plan sweep`
    for that.

    Example: `lakewarden show lake.db.events`
    """
    from lakewarden.report.table import TableReport

    screen, ref = Screen(as_json), table_ref(table)
    with invocation(ctx).open(screen, spark=True) as lakewarden, screen.waiting(f"reading {ref}"):
        report = TableReport.read(lakewarden, ref)
    screen.show(report)
    return 0
