"""`lakewarden migrate`: upgrade the state database to this version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen
from lakewarden.formatting import counted
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
            "--restored",
            help="The database was restored from a backup: start every grace period again, from now.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Upgrade the state database's schema to this version of Lakewarden.

    Never loses stored data and never touches a table. Without `--restored`, running it again changes nothing.
    With `--restored`, the grace period of every trashed file starts again, each time: use it only after a
    restore from a backup, with SQLite too.

    Example: `lakewarden migrate`
    """
    from lakewarden import clock
    from lakewarden.state.database import migrate as upgrade
    from lakewarden.state.generation import Generations

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        # Not through `State.open`: it refuses an older PostgreSQL schema until this has run.
        done = upgrade(lakewarden.config.state.url)
        started = Generations(lakewarden.state).restored(clock.now()) if restored else None
    screen.show(MigrateReport(done, started))
    return 0


@dataclass(frozen=True, slots=True)
class MigrateReport:
    done: Migrated
    # Deletion batches whose grace period started again; None without --restored.
    started_again: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **pick(self.done, "database before after"),
            "changed": self.done.before != self.done.after,
            "graces_started_again": self.started_again,
        }

    def render(self, width: int) -> Text:
        done = self.done
        text = f"{done.database}: schema {done.before or 'none'} → {done.after}"
        if done.before == done.after:
            text = f"{done.database} already has schema {done.after}: nothing to do"
        if self.started_again is not None:
            text += f"\nthe grace period of every trashed file starts again now ({counted(self.started_again, 'deletion batch')})"
        return Text(text)
