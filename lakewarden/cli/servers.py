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
    from lakewarden.console.server import ConsoleAddress
    from lakewarden.gateway.server import GatewayAddress


# Seconds between two checks that Spark answers.
_WATCH_SECONDS = 2.0


def register(app: typer.Typer) -> None:
    app.command("console")(console)
    app.command("gateway")(gateway)


def console(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on (default: [console] host).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Port to listen on (default: [console] port); 0 picks a free port.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Serve the console and the REST API.

    The worker serves them too, unless [worker] console is false. Never runs a job. Spark starts only when a
    request needs to read a table. Without tokens it listens on the loopback address only. Runs until it is
    stopped.

    Example: `lakewarden console --port 8480`
    """
    from lakewarden.console.server import ConsoleServer
    from lakewarden.worker.spark_session import Session

    screen = Screen(as_json)

    def ready(listening: ConsoleAddress) -> None:
        screen.show(ConsoleReport(listening.to_dict()))
        sys.stdout.flush()  # a script that waits for it reads a pipe

    # Ctrl-C is the normal end, after open requests are answered.
    with invocation(ctx).open(screen, spark=False) as lakewarden, suppress(KeyboardInterrupt):
        # No job runs in this process, so a dead Spark session may be replaced here; inside a worker, the worker decides.
        session = Session(lakewarden)
        server = ConsoleServer(lakewarden, host=host, port=port, revive=session.revive)
        with clock.repeating(session.watch, _WATCH_SECONDS, "lakewarden-spark-watch"):
            server.serve(ready)
    return 0


@dataclass(frozen=True, slots=True)
class ConsoleReport(Plain):
    """`listening` has `address`, `docs`, `metrics`, `health`, and `tokens`: whether the server requires a
    token."""

    listening: Mapping[str, Any]

    JSON_KEYS = "**listening"

    def render(self, width: int) -> Text:
        listening = self.listening
        who = (
            "a token of [console] is required"
            if listening["tokens"]
            else "no token is required: only this machine can reach it"
        )
        return Text(f"listening on {listening['address']}, where {who}\n  REST API: {listening['docs']}")


def gateway(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on (default: [gateway] host).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65535, help="Port to listen on (default: [gateway] port)."),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Serve an Iceberg REST catalog that forwards to the real catalog and rejects commits that break a
    table's rules.

    Never starts Spark, never sends a commit twice, and never reports a commit as failed if its outcome is
    unknown. Runs until it is stopped. Several gateways may run at the same time.

    Example: `lakewarden gateway --port 8181`
    """
    from lakewarden.gateway.server import serve

    screen = Screen(as_json)

    def ready(listening: GatewayAddress) -> None:
        screen.show(GatewayReport(listening))
        sys.stdout.flush()  # a script that waits for it reads a pipe

    # Ctrl-C is the normal end, after forwarded requests are answered.
    with invocation(ctx).open(screen, spark=False) as lakewarden, suppress(KeyboardInterrupt):
        serve(lakewarden.config, lakewarden.state, host, port, ready)
    return 0


@dataclass(frozen=True, slots=True)
class GatewayReport:
    listening: GatewayAddress

    def to_dict(self) -> dict[str, Any]:
        listening = self.listening
        return {
            "address": listening.address,
            "catalog": listening.catalog,
            "upstream": listening.upstream,
            "metrics": f"{listening.address}/metrics",
            "health": f"{listening.address}/health",
        }

    def render(self, width: int) -> Text:
        listening = self.listening
        return Text(
            f"listening on {listening.address} for catalog {listening.catalog}, forwarding to {listening.upstream}\n"
            f"  set {listening.address} as the catalog uri of clients; metrics are at {listening.address}/metrics"
        )
