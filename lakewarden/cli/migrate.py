"""`lakewarden migrate`: bring the state database up to this version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen
from lakewarden.model.plain import pick

if TYPE_CHECKING:
    from lakewarden.state.database import Migrated


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
    from lakewarden.state.database import migrate as upgrade
    from lakewarden.state.generation import Generations

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        # Not through `lakewarden.state`: opening an older PostgreSQL is refused until this has run.
        done = upgrade(lakewarden.config.state.url)
        started = Generations(lakewarden.state).restored(clock.now()) if restored else None
    screen.show(MigrateReport(done, started))
    return 0


@dataclass(frozen=True, slots=True)
class MigrateReport:
    done: Migrated
    started_again: int | None = None  # verdicts whose grace started again, where that was asked for

    def to_dict(self) -> dict[str, Any]:
        return {
            **pick(self.done, "database before after"),
            "changed": self.done.before != self.done.after,
            "graces_started_again": self.started_again,
        }

    def render(self, width: int) -> Text:
        done = self.done
        told = f"{done.database}: schema {done.before or 'none'} → {done.after}"
        if done.before == done.after:
            told = f"{done.database} has schema {done.after} already: nothing to do"
        if self.started_again is not None:
            told += f"\nthe grace of every trashed file starts again now ({self.started_again:,} verdicts)"
        return Text(told)
