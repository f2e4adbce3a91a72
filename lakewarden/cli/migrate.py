"""`lakewarden migrate`: bring the state database up to this version."""

from __future__ import annotations

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("migrate")(migrate)


def migrate(ctx: typer.Context, as_json: JsonFlag = False) -> int:
    """Bring the state database's schema up to this version.

    Never loses what is stored and never touches a table; doing it again changes nothing. SQLite needs no such step.

    Example: `lakewarden migrate`
    """
    from lakewarden.report.migrate import MigrateReport
    from lakewarden.state.database import migrate as upgrade

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        # Not through `lakewarden.state`: opening an older PostgreSQL is refused until this has run.
        done = upgrade(lakewarden.config.state.url)
    screen.show(MigrateReport(done))
    return 0
