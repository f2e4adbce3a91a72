"""`lakewarden worker`: maintain every table until it is stopped."""

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
    from lakewarden.worker.daemon import PeriodicTask, WorkerServer


def register(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(ctx: typer.Context, as_json: JsonFlag = False) -> int:
    """Maintain every table continuously: on schedule, on request, and inside the budgets.

    Several workers may share one state database: one leads, and another takes over if it stops. SIGTERM or
    Ctrl-C lets current runs finish; a second one stops them cleanly. Never starts a job without the leader's
    lease. With --json its log is one JSON document per line.

    Example: `lakewarden worker`
    """
    from lakewarden.worker.daemon import Worker
    from lakewarden.worker.log import tell

    screen = Screen(as_json)
    _log_to_stderr(as_json)
    with invocation(ctx).open(screen, spark=False) as lakewarden, quiet_spark():
        working: Worker  # the console in this process asks the worker before it reads a table
        chores, attendants, address = company(lakewarden, lambda: working.revive_spark())
        working = Worker(lakewarden, chores, attendants, address)
        if address is not None:
            tell("console", address=address)
        working.run()
        if working.busy():
            _leave_at_once()
    return 0


def _leave_at_once() -> NoReturn:
    """Exit without waiting for threads. A thread that still works hangs in a call to a catalog or to Spark
    that may never return."""
    logging.shutdown()
    os._exit(1)


def company(
    lakewarden: Lakewarden, revive: Callable[[], None]
) -> tuple[list[PeriodicTask], list[WorkerServer], str | None]:
    """What runs beside the schedule: periodic tasks while this worker leads, the servers, and their
    addresses.

    `revive` replaces a dead Spark session for the servers: see `Worker.revive_spark`.
    """
    from lakewarden.console.server import ConsoleServer
    from lakewarden.worker.daemon import PeriodicTask

    config = lakewarden.config

    def look(over: Callable[[], bool]) -> None:
        lakewarden.health.look(stop=over)

    chores = [PeriodicTask("health", float(config.health.stats_interval_seconds), look)]
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
