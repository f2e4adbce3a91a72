"""`lakewarden where`, `recall` and `cost`: where old snapshots are, how to make them readable, what the tiers
cost."""

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
    """Show where a snapshot can be read, the table itself or its colder tier, and the query to run.

    Never changes anything. The exit code is 1 if neither has the snapshot any more.

    Example: `lakewarden where lake.db.events --as-of 2026-01-31T12:00`
    """
    from lakewarden.jobs.cold.locate import GONE, SnapshotQuestion
    from lakewarden.policy.values import moment
    from lakewarden.report.snapshot_location import WhereReport

    screen, ref = Screen(as_json), table_ref(table)
    SnapshotQuestion(
        snapshot, moment(as_of, "as-of"), tag
    )  # a wrong argument is reported before Spark starts
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
    days: Annotated[int, typer.Option("--days", metavar="N", help="Days to keep the files readable.")] = 7,
    bulk: Annotated[
        bool,
        typer.Option("--bulk", help="Use the archive's bulk retrieval: up to two days, usually cheaper."),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all files can be read.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Make a snapshot readable whose files are in an archive of the colder tier, and show when it is ready.

    It stays readable for some days (--days). Never moves or changes a file: the archive provides a temporary
    copy of each. Files that are already requested are not requested again. The exit code is 0 if it can be
    read now, 3 if you have to wait, 1 if the snapshot is gone.

    Example: `lakewarden recall lake.db.events --as-of 2024-01-31T12:00 --days 3 --wait`
    """
    from lakewarden import clock
    from lakewarden.jobs.cold.locate import GONE, SnapshotQuestion
    from lakewarden.policy.values import moment
    from lakewarden.report.snapshot_location import WhereReport

    screen, ref = Screen(as_json), table_ref(table)
    SnapshotQuestion(
        snapshot, moment(as_of, "as-of"), tag
    )  # a wrong argument is reported before Spark starts
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
        """The result in one sentence."""
        found = self.found
        if not found.archived:
            return "nothing to recall: every file it needs can be read now"
        if found.ready_by is None:
            return "it can be read now" + ("" if found.until is None else f", until {moment(found.until)}")
        left = duration((found.ready_by - self.now).total_seconds())
        return f"it can be read in at most {left}, by {moment(found.ready_by)}"

    def render(self, width: int) -> RenderableType:
        found, where = self.found, self.found.where
        rows: list[tuple[str, str | Text]] = [("requested", str(where.asked)), ("tier", where.tier)]
        if found.archived:
            archived = f"{counted(found.archived, 'file')} of {found.files:,}, {size(found.bytes)}"
            rows.append(("archived", archived))
            progress = f"{found.readable:,} readable, {found.restoring:,} already requested, {found.asked:,} requested now"
            rows.append(("of these", progress))
        if found.asked:
            rows.append(("costs", f"{dollars(found.dollars)} once"))
        rows.append(("result", self.told()))
        rows.append(("query", where.query))
        return look.stack(look.title("recall", self.table), look.facts(rows))


def cost(ctx: typer.Context, table: TableName, as_json: JsonFlag = False) -> int:
    """Show what the table costs per month in each tier, and what the next hand-off would cost and save.

    Never changes anything. Counts every file that a snapshot needs, at the configured prices
    (`[prices.CLASS]`); the defaults are Amazon's list prices for us-east-1.

    Example: `lakewarden cost lake.db.events`
    """
    from lakewarden.report.cost import CostReport

    screen, ref = Screen(as_json), table_ref(table)
    with (
        invocation(ctx).open(screen, spark=True) as lakewarden,
        screen.waiting(f"reading the files of {ref} and its colder tier"),
    ):
        found = lakewarden.tiers.cost(ref)
    screen.show(CostReport(found))
    return 0
