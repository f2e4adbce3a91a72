"""`lakewarden heartbeat` and `stage begin|adopt|fail`: what keeps files that no snapshot names yet."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden import clock
from lakewarden.cli import options
from lakewarden.cli.holds import Holder, Purpose, Ttl
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Operator, TableName
from lakewarden.cli.screen import Screen
from lakewarden.errors import UsageError

LoadId = Annotated[str, typer.Argument(metavar="LOAD", help="As `lakewarden stage begin` printed it.")]
Paths = Annotated[
    list[str] | None, typer.Option("--path", metavar="PATH", help="A file, in full; may be repeated.")
]
Prefixes = Annotated[
    list[str] | None,
    typer.Option("--prefix", metavar="PREFIX", help="How paths begin, as s3://b/in/; may be repeated."),
]

_stage = typer.Typer(
    help="""Bring files that another program wrote into a table, whole or not at all: begin, adopt or fail.

Never copies a file and never deletes one. Each of the three has its own help, and --json.

Example: `lakewarden stage begin lake.db.events --holder backfill --prefix s3://lake/db/events/data/in/`
""",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def register(app: typer.Typer) -> None:
    app.command("heartbeat")(heartbeat)
    app.add_typer(_stage, name="stage")


def heartbeat(
    ctx: typer.Context,
    table: TableName,
    writer: Annotated[str, typer.Option("--writer", metavar="NAME", help="Which writer is at the table.")],
    prefixes: Prefixes = None,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="How long it counts without another beat.")
    ] = "10m",
    stop: Annotated[bool, typer.Option("--stop", help="The writer is done.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Say that a writer is at the table, so that a sweep leaves it the files no snapshot names yet.

    Without --prefix it may be writing anywhere: every file since it started is left alone. Never starts Spark and never
    touches a table.

    Example: `lakewarden heartbeat lake.db.events --writer etl-7 --prefix s3://lake/db/events/data/day=12/`
    """
    from lakewarden.report.holds import HeartbeatsReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        if not stop:
            lakewarden.holds.heartbeat(ref, writer, prefixes=prefixes or (), ttl=ttl)
        elif not lakewarden.holds.stop_heartbeat(ref, writer):
            raise UsageError(
                reason=f"stop writer {writer!r} of {ref}: it is not known",
                hint=f"see `lakewarden holds {ref}` for those that are",
            )
        found = lakewarden.holds.heartbeats(ref)
    screen.show(HeartbeatsReport(str(ref), found, clock.now()))
    return 0


@_stage.command("begin")
def begin(
    ctx: typer.Context,
    table: TableName,
    holder: Holder,
    paths: Paths = None,
    prefixes: Prefixes = None,
    purpose: Purpose = "",
    ttl: Ttl = None,
    as_json: JsonFlag = False,
) -> int:
    """Hold files before they are written, until they are adopted or the load fails.

    Never starts Spark and never touches a table.

    Example: `lakewarden stage begin lake.db.events --holder backfill --path s3://lake/in/1.parquet --ttl 2d`
    """
    from lakewarden.report.holds import LoadReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        load = lakewarden.holds.stage_begin(
            ref, holder, paths=paths or (), prefixes=prefixes or (), purpose=purpose, ttl=ttl
        )
    screen.show(LoadReport(load, clock.now()))
    return 0


@_stage.command("adopt")
def adopt(
    ctx: typer.Context,
    load: LoadId,
    paths: Paths = None,
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Make a load's Parquet files part of its table, all in one snapshot; partitions are read from their footers.

    Never adopts some of them: one file that is missing, unreadable, of several partitions or live already stops it before
    anything is committed. Never adopts twice.

    Example: `lakewarden stage adopt load-1f0c9a3e --path s3://lake/in/2.parquet`
    """
    from lakewarden.report.run import RunReport

    screen, trigger = Screen(as_json), options.trigger("manual", operator, None)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        run = lakewarden.holds.stage_adopt(load, paths or (), trigger)
    screen.show(RunReport(run))
    return run.state.exit_code


@_stage.command("fail")
def fail(ctx: typer.Context, load: LoadId, as_json: JsonFlag = False) -> int:
    """Give a load up: its registered files are in the trash, and deleted by a purge after `orphan_grace_hours`.

    Never deletes a file itself, never trashes what was not registered by its path, and never what is part of the table.

    Example: `lakewarden stage fail load-1f0c9a3e`
    """
    from lakewarden.report.holds import LoadReport

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        failed = lakewarden.holds.stage_fail(load)
    screen.show(LoadReport(failed, clock.now()))
    return 0
