"""`lakewarden migrate`: bring the state database up to this version."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("migrate")(migrate)


def migrate(
    ctx: typer.Context,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored", help="The database was restored from a backup: start every grace again, from now."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Bring the state database's schema up to this version.

    Never loses what is stored and never touches a table. Without `--restored`, running it again changes nothing. With `--restored`,
    the grace of every trashed file starts again, each time: use it only after a restore from a backup, on SQLite too.

    Example: `lakewarden migrate`
    """
    from lakewarden import clock
    from lakewarden.report.migrate import MigrateReport
    from lakewarden.state.database import migrate as upgrade
    from lakewarden.state.generation import Generations

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        # Not through `lakewarden.state`: opening an older PostgreSQL is refused until this has run.
        done = upgrade(lakewarden.config.state.url)
        started = Generations(lakewarden.state).restored(clock.now()) if restored else None
    screen.show(MigrateReport(done, started))
    return 0
