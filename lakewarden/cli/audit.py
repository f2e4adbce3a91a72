"""`lakewarden history` and `audit ingested|downstream|who|gaps`: questions about a table's past."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, TableName
from lakewarden.cli.screen import Screen
from lakewarden.errors import UsageError

HistoryOnly = Annotated[
    bool,
    typer.Option(
        "--history-only",
        help="Read only the state database: expired snapshots only, fast, without Spark.",
    ),
]
_WHEN = "A date or time (UTC), or an age: 2024-03-01, 90d."

_audit = typer.Typer(
    help="""Show when data was added, what was derived from it, who changed the table, and which commits lack lineage.

Covers live and expired snapshots. Never changes anything. Each subcommand has its own --help and --json.

Example: `lakewarden audit who lake.db.events --operation overwrite --since 90d`
""",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def register(app: typer.Typer) -> None:
    app.command("history")(history)
    app.add_typer(_audit, name="audit")


def history(
    ctx: typer.Context,
    table: TableName,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Show at most this many, newest first.")
    ] = 50,
    history_only: HistoryOnly = False,
    as_json: JsonFlag = False,
) -> int:
    """Show a table's commits, newest first: live and expired snapshots.

    Old expired snapshots are shown as one line per range. Never changes anything.

    Example: `lakewarden history lake.db.events --limit 200`
    """
    from lakewarden.report.audit import HistoryReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=not history_only) as lakewarden:
        found = lakewarden.history.of(ref, limit, history_only=history_only)
    screen.show(HistoryReport(found))
    return 0


@_audit.command("ingested")
def ingested(
    ctx: typer.Context,
    table: TableName,
    row_filter: Annotated[
        str | None,
        typer.Option(
            "--row-filter",
            metavar="SQL",
            help="Only files that can contain rows matching this filter (default: all).",
        ),
    ] = None,
    file: Annotated[str | None, typer.Option("--file", metavar="PATH", help="Only this data file.")] = None,
    snapshot: Annotated[
        int | None, typer.Option("--snapshot", metavar="ID", help="Only this snapshot.")
    ] = None,
    history_only: HistoryOnly = False,
    as_json: JsonFlag = False,
) -> int:
    """Show when data was added to a table, by which writer and commit. For rewritten files, also show their
    source files.

    Never changes anything, and never reads the rows: it finds the files that can contain matching rows.

    Example: `lakewarden audit ingested lake.db.events --row-filter "day = date'2024-03-01'"`
    """
    from lakewarden.report.audit import IngestedReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with (
        invocation(ctx).open(screen, spark=not history_only) as lakewarden,
        screen.waiting(f"searching for the commits that added the data of {ref}"),
    ):
        found = lakewarden.history.ingested(
            ref, row_filter=row_filter, file=file, snapshot_id=snapshot, history_only=history_only
        )
    screen.show(IngestedReport(found))
    return 0


@_audit.command("downstream")
def downstream(
    ctx: typer.Context,
    table: TableName,
    snapshot: Annotated[int, typer.Argument(metavar="SNAPSHOT", help="The snapshot to start from.")],
    drawn: Annotated[
        Literal["text", "dot", "mermaid"],
        typer.Option("--format", help="Print text, or a graph for Graphviz or Mermaid."),
    ] = "text",
    carried: Annotated[
        bool,
        typer.Option(
            "--carried",
            help="Also follow later snapshots of the table, which still contained the rows.",
        ),
    ] = False,
    history_only: HistoryOnly = False,
    as_json: JsonFlag = False,
) -> int:
    """List all snapshots that were derived from a snapshot, directly or indirectly, in every table of every
    catalog.

    Uses the lineage key `input.snapshot_ids` of commits. A table that cannot be read is listed with its
    error, and the exit code is 3. Never changes anything.

    Example: `lakewarden audit downstream lake.db.events 4358109269873137077 --format mermaid`
    """
    from lakewarden.report.audit import DownstreamReport, dot, mermaid

    screen, ref = Screen(as_json), options.table_ref(table)
    if as_json and drawn != "text":
        raise UsageError(
            reason=f"cannot use --json together with --format {drawn}: only one document is printed",
            hint="leave out one of the two",
        )
    with (
        invocation(ctx).open(screen, spark=not history_only) as lakewarden,
        screen.waiting("reading the lineage of every commit"),
    ):
        found = lakewarden.history.downstream(ref, snapshot, carried=carried, history_only=history_only)
    if drawn == "text":
        screen.show(DownstreamReport(found))
    else:
        typer.echo(dot(found) if drawn == "dot" else mermaid(found))
    return 3 if found.unread else 0


@_audit.command("who")
def who(
    ctx: typer.Context,
    table: TableName,
    operation: Annotated[
        str | None,
        typer.Option(
            "--operation",
            metavar="NAME",
            help="Only commits of this operation, such as overwrite or compaction.",
        ),
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help=_WHEN)] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help=_WHEN)] = None,
    history_only: HistoryOnly = False,
    as_json: JsonFlag = False,
) -> int:
    """Show who triggered the table's commits: trigger type, operator, ticket and writer, newest first.

    Never changes anything.

    Example: `lakewarden audit who lake.db.events --operation overwrite --since 2024-03-01`
    """
    from lakewarden.report.audit import WhoReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=not history_only) as lakewarden:
        found = lakewarden.history.who(
            ref, operation=operation, since=since, until=until, history_only=history_only
        )
    screen.show(WhoReport(found))
    return 0


@_audit.command("gaps")
def gaps(
    ctx: typer.Context, table: TableName, history_only: HistoryOnly = False, as_json: JsonFlag = False
) -> int:
    """List commits that lack the lineage the table's policy requires, and count commits rejected for that
    reason.

    Never changes anything.

    Example: `lakewarden audit gaps lake.db.events`
    """
    from lakewarden.report.audit import GapsReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=not history_only) as lakewarden:
        found = lakewarden.history.gaps(ref, history_only=history_only)
    screen.show(GapsReport(found))
    return 0
