"""`lakewarden cost`: what a table costs a month, tier by tier."""

from __future__ import annotations

import typer

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, TableName, table_ref
from lakewarden.cli.screen import Screen


def register(app: typer.Typer) -> None:
    app.command("cost")(cost)


def cost(ctx: typer.Context, table: TableName, as_json: JsonFlag = False) -> int:
    """Show what the table costs a month in each of its tiers, and what the next hand-off would cost and save.

    Never changes anything. Counts every file that a snapshot needs, by the prices of the settings (`[prices.CLASS]`); the defaults
    are Amazon's list prices for us-east-1.

    Example: `lakewarden cost lake.db.events`
    """
    from lakewarden.report.cost import CostReport

    screen, ref = Screen(as_json), table_ref(table)
    with (
        invocation(ctx).open(screen, spark=True) as lakewarden,
        screen.waiting(f"reading what {ref} and its colder tier are made of"),
    ):
        found = lakewarden.tiers.cost(ref)
    screen.show(CostReport(found))
    return 0
