"""`lakewarden console` and `lakewarden gateway`: servers that run until they are stopped."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden import clock
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen
from lakewarden.model.plain import Plain

if TYPE_CHECKING:
    from lakewarden.console.server import Listening as ConsoleListening
    from lakewarden.gateway.server import Listening as GatewayListening


# Between two questions to Spark whether it answers.
_WATCH_SECONDS = 2.0


def register(app: typer.Typer) -> None:
    app.command("console")(console)
    app.command("gateway")(gateway)


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
    from lakewarden.worker.spark_session import Session

    screen = Screen(as_json)

    def ready(listening: ConsoleListening) -> None:
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


@dataclass(frozen=True, slots=True)
class ConsoleReport(Plain):
    """`listening` has `address`, `docs`, `metrics`, `health`, and `tokens`: whether it asks for them."""

    listening: Mapping[str, Any]

    JSON_KEYS = "**listening"

    def render(self, width: int) -> Text:
        told = self.listening
        who = (
            "a token of [console] is asked for"
            if told["tokens"]
            else "no token is asked for: only this machine reaches it"
        )
        return Text(
            f"listening on {told['address']}, where {who}\n  the REST API is described at {told['docs']}"
        )


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

    screen = Screen(as_json)

    def ready(listening: GatewayListening) -> None:
        screen.show(GatewayReport(listening))
        sys.stdout.flush()  # a script that waits for it reads a pipe

    # Ctrl-C is how it is meant to end, once what was forwarded has been answered.
    with invocation(ctx).open(screen, spark=False) as lakewarden, suppress(KeyboardInterrupt):
        serve(lakewarden.config, lakewarden.state, host, port, ready)
    return 0


@dataclass(frozen=True, slots=True)
class GatewayReport:
    listening: GatewayListening

    def to_dict(self) -> dict[str, Any]:
        told = self.listening
        return {
            "address": told.address,
            "catalog": told.catalog,
            "upstream": told.upstream,
            "metrics": f"{told.address}/metrics",
            "health": f"{told.address}/health",
        }

    def render(self, width: int) -> Text:
        told = self.listening
        return Text(
            f"listening on {told.address} for catalog {told.catalog}, which is at {told.upstream}\n"
            f"  clients take {told.address} as the catalog's uri; counts are at {told.address}/metrics"
        )
