"""`lakewarden fsck`: is everything there that the table names?"""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, TableName, table_ref
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("fsck")(fsck)


def fsck(
    ctx: typer.Context,
    table: TableName,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            metavar="",
            help="Also open every Parquet file of the current snapshot at its footer and compare its rows.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Check that everything the table names is there and whole: metadata, manifests, data files, deletes, statistics.

    Never changes anything; it goes on after what is broken, names all of it, and says how to repair it. The exit code is 0 when
    nothing is wrong, 3 when there is an error or a warning.

    Example: `lakewarden fsck lake.db.events --deep`
    """
    from lakewarden.report.fsck import FsckReport

    screen, ref = Screen(as_json), table_ref(table)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        done = lakewarden.fsck(ref, deep=deep, progress=screen.progress())
    screen.show(FsckReport(done))
    return done.exit_code
