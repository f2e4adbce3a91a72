"""`lakewarden heartbeat` and `stage begin|adopt|fail`: protect files that no snapshot uses yet."""

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

LoadId = Annotated[
    str, typer.Argument(metavar="LOAD", help="Id of the load, printed by `lakewarden stage begin`.")
]
Paths = Annotated[
    list[str] | None, typer.Option("--path", metavar="PATH", help="Full path of a file. May be repeated.")
]
Prefixes = Annotated[
    list[str] | None,
    typer.Option(
        "--prefix", metavar="PREFIX", help="Prefix of file paths, such as s3://b/in/. May be repeated."
    ),
]

_stage = typer.Typer(
    help="""Add files that another program wrote to a table, all or none: begin, adopt or fail.

Never copies a file and never deletes one. Each subcommand has its own --help and --json.

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
    writer: Annotated[str, typer.Option("--writer", metavar="NAME", help="Name of the writer.")],
    prefixes: Prefixes = None,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="How long it stays active without another heartbeat.")
    ] = "10m",
    stop: Annotated[bool, typer.Option("--stop", help="The writer has finished.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Say that a writer is active, so that a sweep keeps its files that no snapshot uses yet.

    Without --prefix the writer may write anywhere in the table: every file since its start is kept. Never
    starts Spark and never touches a table.

    Example: `lakewarden heartbeat lake.db.events --writer etl-7 --prefix s3://lake/db/events/data/day=12/`
    """
    from lakewarden.report.holds import HeartbeatsReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        if not stop:
            lakewarden.holds.heartbeat(ref, writer, prefixes=prefixes or (), ttl=ttl)
        elif not lakewarden.holds.stop_heartbeat(ref, writer):
            raise UsageError(
                reason=f"cannot stop writer {writer!r} of {ref}: there is no such writer",
                hint=f"see `lakewarden holds {ref}` for the known writers",
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
    """Hold files before they are written, until the load is adopted or fails.

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
    """Add a load's Parquet files to its table, all in one snapshot. Partition values are read from the
    footers.

    Never adds only some of them: if one file is missing, unreadable, spans several partitions or is already
    in the table, nothing is committed. Never adds a load twice.

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
    """Give up a load. Its registered files go to the trash, and a purge deletes them after
    `orphan_grace_hours`.

    Never deletes a file itself, never trashes files that were not registered by path, and never files that
    are part of the table.

    Example: `lakewarden stage fail load-1f0c9a3e`
    """
    from lakewarden.report.holds import LoadReport

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        failed = lakewarden.holds.stage_fail(load)
    screen.show(LoadReport(failed, clock.now()))
    return 0
