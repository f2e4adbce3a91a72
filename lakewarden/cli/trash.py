"""`lakewarden trash`, `restore` and `receipts`: files marked for deletion, restored files, deleted files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakewarden import clock
from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Operator, TableName
from lakewarden.cli.screen import Screen
from lakewarden.model.location import is_absolute

Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Show at most this many files.")]


def register(app: typer.Typer) -> None:
    app.command("trash")(trash)
    app.command("restore")(restore)
    app.command("receipts")(receipts)


def trash(ctx: typer.Context, table: TableName, limit: Limit = 20, as_json: JsonFlag = False) -> int:
    """List the files that are marked for deletion: why, by which run, and when they may be deleted.

    Never starts Spark and never touches a table.

    Example: `lakewarden trash lake.db.events --limit 100`
    """
    from lakewarden.report.trash import TrashedReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        found = lakewarden.trash(ref, limit)
        if not found.batches and not lakewarden.names.knows(ref):
            screen.nothing_of(ref)
    screen.show(TrashedReport(str(ref), found, clock.now()))
    return 0


def restore(
    ctx: typer.Context,
    table: TableName,
    path: Annotated[
        str | None,
        typer.Argument(metavar="[PATH]", help="Restore this file; any spelling of its path works."),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Restore every file this run trashed.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Restore every trashed file of the table.")
    ] = False,
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Restore trashed files permanently: no purge deletes them, and no sweep marks them again.

    Never adds a file back to a table's metadata, and cannot restore a file that is already deleted.

    Example: `lakewarden restore lake.db.events --run 20261116-003012-7f3a9c`
    """
    from lakewarden.report.trash import RestoreReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        done = lakewarden.restore(ref, _whole(path), run=run, everything=everything, operator=operator)
    screen.show(RestoreReport(str(ref), done))
    return 0


def _whole(path: str | None) -> str | None:
    """The absolute path of a local file; other paths are unchanged."""
    if path is None or is_absolute(path) or not Path(path).exists():
        return path
    return str(Path(path).absolute())


def receipts(ctx: typer.Context, table: TableName, limit: Limit = 20, as_json: JsonFlag = False) -> int:
    """List deleted files, newest first: when each was deleted, why it was trashed, and by which run.

    Never starts Spark and never touches a table. `lakewarden run-show` shows what a run checked before it
    deleted.

    Example: `lakewarden receipts lake.db.events --json`
    """
    from lakewarden.report.trash import ReceiptsReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        found = lakewarden.receipts(ref, limit)
        if not found and not lakewarden.names.knows(ref):
            screen.nothing_of(ref)
    screen.show(ReceiptsReport(str(ref), found, clock.now()))
    return 0
