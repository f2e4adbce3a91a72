"""`lakewarden gateway`: stand in front of a REST catalog and judge every engine's commits."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen

if TYPE_CHECKING:
    from lakewarden.gateway.server import Listening


def register(app: typer.Typer) -> None:
    app.command("gateway")(gateway)


def gateway(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen; as [gateway] says, when not said.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=1, max=65535, help="As [gateway] says, when not said.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Serve an Iceberg REST catalog that forwards to the one behind it, and turns away commits that break a table's rules.

    Never starts Spark, never sends a commit twice, and never tells a commit as failed whose outcome is not known. Runs until it
    is stopped; several may run side by side.

    Example: `lakewarden gateway --port 8181`
    """
    from lakewarden.gateway.server import serve
    from lakewarden.report.gateway import GatewayReport

    screen = Screen(as_json)

    def ready(listening: Listening) -> None:
        screen.show(GatewayReport(listening))
        sys.stdout.flush()  # a script that waits for it reads a pipe

    # Ctrl-C is how it is meant to end, once what was forwarded has been answered.
    with invocation(ctx).open(screen, spark=False) as lakewarden, suppress(KeyboardInterrupt):
        serve(lakewarden.config, lakewarden.state, host, port, ready)
    return 0
