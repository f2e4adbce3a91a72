"""`lakewarden where`, `recall` and `cost`: where the past of a table is, how to make it readable, what its tiers cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import AsOf, AtSnapshot, AtTag, JsonFlag, TableName, table_ref
from lakewarden.cli.screen import Screen
from lakewarden.formatting import counted, duration, moment, size
from lakewarden.report import look
from lakewarden.report.cost import dollars

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.jobs.cold.recall import Recall


def register(app: typer.Typer) -> None:
    app.command("where")(where)
    app.command("recall")(recall)
    app.command("cost")(cost)


def where(
    ctx: typer.Context,
    table: TableName,
    snapshot: AtSnapshot = None,
    as_of: AsOf = None,
    tag: AtTag = None,
    as_json: JsonFlag = False,
) -> int:
    """Say where a moment of a table's past can be read, the table itself or its colder tier, and the query to run.

    Never changes anything. The exit code is 1 where nobody has it any more.

    Example: `lakewarden where lake.db.events --as-of 2026-01-31T12:00`
    """
    from lakewarden.jobs.cold.locate import GONE, Asked
    from lakewarden.policy.duration import moment
    from lakewarden.report.where import WhereReport

    screen, ref = Screen(as_json), table_ref(table)
    Asked(snapshot, moment(as_of, "as-of"), tag)  # what is asked wrongly is told before Spark starts
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        found = lakewarden.tiers.where(ref, snapshot_id=snapshot, as_of=as_of, tag=tag)
    screen.show(WhereReport(str(ref), found))
    return 1 if found.tier == GONE else 0


def recall(
    ctx: typer.Context,
    table: TableName,
    snapshot: AtSnapshot = None,
    as_of: AsOf = None,
    tag: AtTag = None,
    days: Annotated[int, typer.Option("--days", metavar="N", help="For how many days.")] = 7,
    bulk: Annotated[
        bool, typer.Option("--bulk", help="Slower, up to two days, and cheaper as a rule.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Come back when all of it can be read.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Make a snapshot of the colder tier readable whose files lie in an archive, for some days, and say when it is.

    Never moves or changes a file: the archive lends a copy of each. What is on its way already is not asked for again. The exit
    code is 0 when it can be read now, 3 when it has to be waited for, 1 where nobody has it any more.

    Example: `lakewarden recall lake.db.events --as-of 2024-01-31T12:00 --days 3 --wait`
    """
    from lakewarden import clock
    from lakewarden.jobs.cold.locate import GONE, Asked
    from lakewarden.policy.duration import moment
    from lakewarden.report.where import WhereReport

    screen, ref = Screen(as_json), table_ref(table)
    Asked(snapshot, moment(as_of, "as-of"), tag)  # what is asked wrongly is told before Spark starts
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        found = lakewarden.tiers.recall(
            ref,
            snapshot_id=snapshot,
            as_of=as_of,
            tag=tag,
            days=days,
            bulk=bulk,
            wait=wait,
            progress=screen.progress(),
        )
    if found.where.tier == GONE:
        screen.show(WhereReport(str(ref), found.where))
        return 1
    screen.show(RecallReport(str(ref), found, clock.now()))
    return 0 if found.ready else 3


@dataclass(frozen=True, slots=True)
class RecallReport:
    table: str
    found: Recall
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {"of": self.table, **self.found.to_dict(), "told": self.told()}

    def told(self) -> str:
        """In one sentence, what a reader wants to know."""
        found = self.found
        if not found.archived:
            return "nothing to recall: every file it needs can be read now"
        if found.ready_by is None:
            return "it can be read now" + ("" if found.until is None else f", until {moment(found.until)}")
        left = duration((found.ready_by - self.now).total_seconds())
        return f"it can be read in {left} at the latest, by {moment(found.ready_by)}"

    def render(self, width: int) -> RenderableType:
        found, where = self.found, self.found.where
        rows: list[tuple[str, str | Text]] = [("asked for", str(where.asked)), ("tier", where.tier)]
        if found.archived:
            archived = f"{counted(found.archived, 'file')} of {found.files:,}, {size(found.bytes)}"
            rows.append(("archived", archived))
            told = f"{found.readable:,} readable, {found.restoring:,} on their way, {found.asked:,} asked for now"
            rows.append(("of these", told))
        if found.asked:
            rows.append(("costs", f"{dollars(found.dollars)} once"))
        rows.append(("result", self.told()))
        rows.append(("query", where.query))
        return look.stack(look.title("recall", self.table), look.facts(rows))


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
