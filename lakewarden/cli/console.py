"""`lakewarden console`: the console and the REST API, without a worker."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lakewarden import clock
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen

if TYPE_CHECKING:
    from lakewarden.console.server import Listening


# Between two questions to Spark whether it answers.
_WATCH_SECONDS = 2.0


def register(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen; as [console] says, when not said.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="As [console] says; 0: a free one.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Serve the console and the REST API, as the worker does too unless [worker] console says otherwise.

    Never starts Spark before something asks for a table itself, and never works on a table. Without tokens it listens on the
    loopback only. Runs until it is stopped.

    Example: `lakewarden console --port 8480`
    """
    from lakewarden.console.server import ConsoleServer
    from lakewarden.report.console import ConsoleReport
    from lakewarden.worker.spark_session import Session

    screen = Screen(as_json)

    def ready(listening: Listening) -> None:
        screen.show(ConsoleReport(listening.to_dict()))
        sys.stdout.flush()  # a script that waits for it reads a pipe

    # Ctrl-C is how it is meant to end, once what was asked has been answered.
    with invocation(ctx).open(screen, spark=False) as lakewarden, suppress(KeyboardInterrupt):
        # Nobody else drives anything in this process, so a Spark that died may be replaced; beside a worker, that one is asked.
        session = Session(lakewarden)
        server = ConsoleServer(lakewarden, host=host, port=port, revive=session.revive)
        with clock.repeating(session.watch, _WATCH_SECONDS, "lakewarden-spark-watch"):
            server.serve(ready)
    return 0
