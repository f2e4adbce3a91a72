"""`lakewarden fsck`: is everything there that the table names?"""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Operator, TableName, table_ref
from lakewarden.cli.screen import Screen
from lakewarden.errors import UsageError


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
            help="Also decode every page of every Parquet file of the current snapshot, and count its rows.",
        ),
    ] = False,
    adopt_folder: Annotated[
        bool,
        typer.Option(
            "--adopt-folder",
            metavar="",
            help="Instead, show the metadata files that stop sweep and purge; with --yes mark them for deletion.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", metavar="", help="With --adopt-folder: mark it for deletion.")
    ] = False,
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Check that everything the table names is there and whole: metadata, manifests, data files, deletes, statistics.

    Never changes anything, except with --adopt-folder --yes. It does not stop at the first error: it names each one and how to repair it. The exit code is 0 when
    nothing is wrong, 3 when there is an error or a warning.

    Example: `lakewarden fsck lake.db.events --deep`
    """
    from lakewarden.report.fsck import AdoptReport, FsckReport
    from lakewarden.services.trigger import current_user

    screen, ref = Screen(as_json), table_ref(table)
    if yes and not adopt_folder:
        raise UsageError(
            reason="cannot use --yes: it needs --adopt-folder", hint="add --adopt-folder, or leave out --yes"
        )
    if adopt_folder:
        with invocation(ctx).open(screen, spark=True) as lakewarden:
            claim = lakewarden.holds.adopt_folder(ref, operator=operator or current_user(), confirm=yes)
        screen.show(AdoptReport(claim))
        return 0
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        done = lakewarden.fsck(ref, deep=deep, progress=screen.progress())
    screen.show(FsckReport(done))
    return done.exit_code
