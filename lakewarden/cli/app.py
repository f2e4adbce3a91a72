"""`lakewarden [--config FILE] COMMAND`: the root command, and the command groups of its help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lakewarden.cli import (
    audit,
    checks,
    demo,
    doctor,
    health,
    holds,
    migrate,
    policy,
    run,
    runs,
    schedule,
    servers,
    stage,
    tables,
    tiers,
    trash,
    worker,
)
from lakewarden.cli.invocation import VARIABLE, invocation
from lakewarden.cli.screen import Interrupted

# Every command is in one group. Groups and commands are ordered by what a newcomer needs first.
GROUPS = {
    "Start": ("demo", "doctor"),
    "Look at tables": ("tables", "show", "health", "what-if", "cost", "fsck", "verify"),
    "Do the work": ("plan", "run", "maintain", "policy"),
    "Keep snapshots and files": ("holds", "pin", "unpin", "pins", "tag", "untag", "heartbeat", "stage"),
    "Delete and restore": ("trash", "restore", "receipts"),
    "See the past": ("runs", "run-show", "history", "audit", "where", "recall"),
    "Serve and schedule": (
        "worker", "schedule", "requests", "suspend", "resume", "cancel", "console", "gateway", "migrate",
    ),
}  # fmt: skip


class Commands(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for panel, names in GROUPS.items():
            for name in names:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Typer would exit without a message.
            raise Interrupted from None


app = typer.Typer(
    name="lakewarden",
    cls=Commands,
    help="Keep the tables of a data lake small, fast and clean, and prove what was done.\n\n"
    "Example: `lakewarden demo` needs no set-up and shows what Lakewarden does.",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from lakewarden.version import build

        typer.echo(f"lakewarden {build()}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def lakewarden(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar=VARIABLE, help="Configuration file (default: ./lakewarden.toml)."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    ctx.obj = replace(invocation(ctx), config=config)
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


for family in (
    demo,
    tables,
    health,
    run,
    checks,
    policy,
    holds,
    stage,
    trash,
    runs,
    audit,
    tiers,
    worker,
    schedule,
    servers,
    migrate,
    doctor,
):
    family.register(app)
