"""`lakewarden holds`, `pin`, `unpin`, `pins`, `tag`, `untag`: what keeps a snapshot from expiring."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewarden import clock
from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, TableName
from lakewarden.cli.screen import Screen

Snapshot = Annotated[
    int | None, typer.Option("--snapshot", metavar="ID", help="Snapshot to keep (default: the current one).")
]
Holder = Annotated[
    str,
    typer.Option("--holder", metavar="NAME", help="Who needs it; shown wherever it blocks a job."),
]
Purpose = Annotated[str, typer.Option("--purpose", metavar="TEXT", help="What it is needed for.")]
Ttl = Annotated[
    str | None,
    typer.Option("--ttl", metavar="TIME", help="How long, such as 30m, 2h, 7d (default: forever)."),
]


def register(app: typer.Typer) -> None:
    app.command("holds")(holds)
    app.command("pin")(pin)
    app.command("unpin")(unpin)
    app.command("pins")(pins)
    app.command("tag")(tag)
    app.command("untag")(untag)


def holds(ctx: typer.Context, table: TableName, as_json: JsonFlag = False) -> int:
    """Show what holds the table's snapshots and files, and how many bytes are kept only because of each hold.

    Never changes anything.

    Example: `lakewarden holds lake.db.events`
    """
    from lakewarden.report.holds import HoldsReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with (
        invocation(ctx).open(screen, spark=True) as lakewarden,
        screen.waiting(f"reading what each hold of {ref} keeps"),
    ):
        found = lakewarden.holds.costs(ref)
    holds, sizes = tuple(each for each, _ in found), tuple(cost for _, cost in found)
    screen.show(HoldsReport(str(ref), holds, clock.now(), sizes))
    return 0


def pin(
    ctx: typer.Context,
    table: TableName,
    holder: Holder,
    snapshot: Snapshot = None,
    purpose: Purpose = "",
    ttl: Ttl = None,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Also create a tag, for tools that do not know pins.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Keep a snapshot readable until the pin expires or is removed, whatever the policy says.

    Never pins a snapshot that is gone or about to expire: then it exits with 12, and the snapshot must not be
    read.

    Example: `lakewarden pin lake.db.events --holder month-end --ttl 2h`
    """
    from lakewarden.report.holds import PinReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        made = lakewarden.pin(ref, snapshot, holder=holder, purpose=purpose, ttl=ttl, mirror=mirror)
    screen.show(PinReport(made.pin, clock.now()))
    return 0


def unpin(
    ctx: typer.Context,
    pin_id: Annotated[str, typer.Argument(metavar="PIN", help="Id of the pin, from `lakewarden pins`.")],
    as_json: JsonFlag = False,
) -> int:
    """Remove a pin, and the tag that mirrors it. The snapshot stays until it expires.

    Never removes a snapshot. Starts Spark only if the pin has a mirror tag.

    Example: `lakewarden unpin 1f0c9a3e`
    """
    from lakewarden.report.holds import PinReport

    screen = Screen(as_json)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        gone = lakewarden.holds.unpin(pin_id)
    screen.show(PinReport(gone, clock.now(), removed=True))
    return 0


def pins(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only this table's pins.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """List the pins, including expired pins, which hold nothing any more.

    Never starts Spark and never touches a table.

    Example: `lakewarden pins lake.db.events`
    """
    from lakewarden.report.holds import PinsReport

    screen = Screen(as_json)
    ref = None if table is None else options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        found = lakewarden.holds.pins(ref)
    screen.show(PinsReport(found, clock.now()))
    return 0


def tag(
    ctx: typer.Context,
    table: TableName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tag.")],
    snapshot: Snapshot = None,
    retain: Annotated[
        str | None,
        typer.Option("--retain", metavar="TIME", help="How long to keep it from now, such as 90d."),
    ] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Keep it until it is removed.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Create a tag on a snapshot in the table itself. The tag keeps the snapshot, for a limited time or
    forever.

    Never moves an existing tag.

    Example: `lakewarden tag lake.db.events audit-2026 --forever`
    """
    from lakewarden.report.holds import TagReport
    from lakewarden.services.holds import check_stay

    screen, ref = Screen(as_json), options.table_ref(table)
    check_stay(ref, retain, forever)  # before Spark starts
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        view = lakewarden.holds.tag(ref, name, snapshot, retain=retain, forever=forever)
    screen.show(TagReport(str(ref), name, view.refs))
    return 0


def untag(
    ctx: typer.Context,
    table: TableName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tag to remove.")],
    as_json: JsonFlag = False,
) -> int:
    """Remove a tag. Its snapshot stays until it expires.

    Never removes a snapshot or a branch.

    Example: `lakewarden untag lake.db.events audit-2026`
    """
    from lakewarden.report.holds import TagReport

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        view = lakewarden.holds.untag(ref, name)
    screen.show(TagReport(str(ref), name, view.refs, removed=True))
    return 0
