"""`lakewarden worker`: lead or stand by, and look after every table until told to stop."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

import typer

from lakewarden.cli.invocation import invocation, quiet_spark
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.worker.daemon import Attendant
    from lakewarden.worker.periodic import Chore


def register(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(ctx: typer.Context, as_json: JsonFlag = False) -> int:
    """Look after every table for as long as it runs: on schedule, on request, inside the budgets.

    Of several on one state database one leads, and the others take over when it is gone. SIGTERM or Ctrl-C lets it finish what
    runs; a second one stops that cleanly. Never starts anything without the lease. With --json its log is JSON, a line each.

    Example: `lakewarden worker`
    """
    from lakewarden.worker.daemon import Worker
    from lakewarden.worker.log import tell

    screen = Screen(as_json)
    _log_to_stderr(as_json)
    with invocation(ctx).open(screen, spark=False) as lakewarden, quiet_spark():
        working: Worker  # the console that it serves asks it before a table is read
        chores, attendants, address = company(lakewarden, lambda: working.revive_spark())
        working = Worker(lakewarden, chores, attendants, address)
        if address is not None:
            tell("console", address=address)
        working.run()
        if working.busy():
            _leave_at_once()
    return 0


def _leave_at_once() -> NoReturn:
    """What is still at work hangs in a call that nobody answers, a catalog's or Spark's: waiting for its thread has no end."""
    logging.shutdown()
    os._exit(1)


def company(
    lakewarden: Lakewarden, revive: Callable[[], None]
) -> tuple[list[Chore], list[Attendant], str | None]:
    """What runs beside the schedule: periodic chores while it leads, servers as long as it lives, and where those are.

    `revive` is for servers that need Spark: see `Worker.revive_spark`.
    """
    from lakewarden.console.server import ConsoleServer
    from lakewarden.worker.periodic import Chore

    config = lakewarden.config

    def look(over: Callable[[], bool]) -> None:
        lakewarden.health.look(stop=over)

    chores = [Chore("health", float(config.health.stats_interval_seconds), look)]
    if not config.worker.console:
        return chores, [], None
    server = ConsoleServer(lakewarden, revive=revive)
    return chores, [server], server.address


def _log_to_stderr(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Plain())
    logger = logging.getLogger("lakewarden")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_at(record)} {record.levelname} {record.getMessage()}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        event = getattr(record, "event", None)
        said = {"event": event, **facts} if event else {"event": "log", "message": record.getMessage()}
        document = {"at": _at(record), "level": record.levelname.lower(), **said}
        return json.dumps(document, ensure_ascii=False, default=str)


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
