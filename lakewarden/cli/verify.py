"""`lakewarden verify`: prove a past compaction again."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, TableName, table_ref
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    ctx: typer.Context,
    table: TableName,
    snapshot: Annotated[
        int, typer.Argument(metavar="SNAPSHOT", help="The id of a snapshot that rewrote data files.")
    ],
    as_json: JsonFlag = False,
) -> int:
    """Prove a past compaction again, anyone's: the files it added hold the rows of the files it removed.

    Never changes anything; it reads both sides in full, deletes applied, while the removed files still exist. The exit code is
    0 when proven, 1 when rows differ, 3 when it cannot be told because files are gone or cannot be read.

    Example: `lakewarden verify lake.db.events 5781947118336215154`
    """
    from lakewarden.report.verify import VerifyReport

    screen, ref = Screen(as_json), table_ref(table)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        done = lakewarden.verify(ref, snapshot, screen.progress())
    screen.show(VerifyReport(done))
    return done.state.exit_code
