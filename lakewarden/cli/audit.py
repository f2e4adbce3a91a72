"""`lakewarden history` and `audit ingested|downstream|who|gaps`: what is known of a table's past."""

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
        help="Ask the state database alone: expired snapshots only, without Spark, in an instant.",
    ),
]
_WHEN = "A date or moment (UTC), or how long ago: 2024-03-01, 90d."

_audit = typer.Typer(
    help="""Answer questions about a table's past: when data came in, what came of it, who did it, who did not say.

Live snapshots and history together. Never changes anything. Each has its own help, and --json.

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
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The newest so many.")] = 50,
    history_only: HistoryOnly = False,
    as_json: JsonFlag = False,
) -> int:
    """Show a table's commits, the newest first, live ones and expired ones, and what is folded into ranges.

    Never changes anything.

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
        str | None, typer.Option("--row-filter", metavar="SQL", help="Rows that match; all, when not said.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", metavar="PATH", help="A data file.")] = None,
    snapshot: Annotated[int | None, typer.Option("--snapshot", metavar="ID", help="A commit.")] = None,
    history_only: HistoryOnly = False,
    as_json: JsonFlag = False,
) -> int:
    """Tell when data came in, by which writer and commit; of rewritten files also what they were made from.

    Rows are told by the files that can hold them. Never reads a row, never changes anything.

    Example: `lakewarden audit ingested lake.db.events --row-filter "day = date'2024-03-01'"`
    """
    from lakewarden.report.audit import IngestedReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with (
        invocation(ctx).open(screen, spark=not history_only) as lakewarden,
        screen.waiting(f"looking for what brought the data of {ref}"),
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
    snapshot: Annotated[int, typer.Argument(metavar="SNAPSHOT", help="The snapshot in question.")],
    drawn: Annotated[
        Literal["text", "dot", "mermaid"],
        typer.Option("--format", help="As text, or as a graph for Graphviz or Mermaid."),
    ] = "text",
    carried: Annotated[
        bool,
        typer.Option(
            "--carried",
            help="Also what was made from later snapshots of the table, which still held the rows.",
        ),
    ] = False,
    history_only: HistoryOnly = False,
    as_json: JsonFlag = False,
) -> int:
    """List everything that was made from a snapshot, at any remove, in every table of every catalog.

    Goes by `input.snapshot_ids` of commits. A table that cannot be read is named, and the exit code is 3. Never changes anything.

    Example: `lakewarden audit downstream lake.db.events 4358109269873137077 --format mermaid`
    """
    from lakewarden.report.audit import DownstreamReport, dot, mermaid

    screen, ref = Screen(as_json), options.table_ref(table)
    if as_json and drawn != "text":
        raise UsageError(reason=f"print --json and --format {drawn}: they are two documents", hint="say one")
    with (
        invocation(ctx).open(screen, spark=not history_only) as lakewarden,
        screen.waiting("reading what every commit was made from"),
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
        typer.Option("--operation", metavar="NAME", help="Only such commits, as overwrite or compaction."),
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help=_WHEN)] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help=_WHEN)] = None,
    history_only: HistoryOnly = False,
    as_json: JsonFlag = False,
) -> int:
    """Tell who triggered the table's commits: type, operator, ticket and writer, the newest first.

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
    """List commits without the lineage the table's policy asks for, and count those that were turned away.

    Never changes anything.

    Example: `lakewarden audit gaps lake.db.events`
    """
    from lakewarden.report.audit import GapsReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=not history_only) as lakewarden:
        found = lakewarden.history.gaps(ref, history_only=history_only)
    screen.show(GapsReport(found))
    return 0
