"""`lakewarden schedule`, `requests`, `suspend`, `resume` and `cancel`: see and change what the worker does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden import clock
from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Operator, TableName
from lakewarden.cli.screen import Screen
from lakewarden.errors import NoSuchTable
from lakewarden.formatting import age, counted, duration
from lakewarden.model.plain import Plain
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.model.run import Run
    from lakewarden.state.locks import Lease
    from lakewarden.state.requests import PassRequest
    from lakewarden.state.schedule import Suspension
    from lakewarden.worker.schedule import Decision, DueTable, WaitingTable


def register(app: typer.Typer) -> None:
    for name, command in (
        ("schedule", schedule),
        ("requests", requests),
        ("suspend", suspend),
        ("resume", resume),
        ("cancel", cancel),
    ):
        app.command(name)(command)


def schedule(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only this table.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """List the tables that the worker maintains: which are due, in which order, and when the others are due.

    Tables that are not started now are shown with the reason. Never starts Spark and never touches a table.

    Example: `lakewarden schedule lake.db.events`
    """
    from lakewarden.worker.schedule_view import current_decision

    screen = Screen(as_json)
    ref = None if table is None else options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        decision, leader = current_decision(lakewarden, clock.now()), lakewarden.schedule.leader()
    if ref is not None:
        if decision.of(str(ref)) is None:
            raise NoSuchTable(table=ref, reason="no worker maintains a table of that name")
        decision = decision.only(str(ref))
    screen.show(ScheduleReport(decision, leader))
    return 0


def requests(
    ctx: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Only requests for this table.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show at most this many, newest first.")
    ] = 20,
    as_json: JsonFlag = False,
) -> int:
    """List the passes that were requested from the worker, and how they ended.

    Never starts Spark and never touches a table.

    Example: `lakewarden requests lake.db.events`
    """
    screen = Screen(as_json)
    ref = None if table is None else options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        found = lakewarden.schedule.requests(ref, limit)
        if ref is not None and not found and not lakewarden.names.knows(ref):
            screen.nothing_of(ref)
    screen.show(RequestsReport(found, clock.now()))
    return 0


def suspend(
    ctx: typer.Context,
    table: TableName,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; shown wherever the table is listed.")
    ],
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Remove a table from the schedule until it is resumed.

    Never stops a run that is in progress (see `cancel`), and never blocks a manual `run` or `maintain`.

    Example: `lakewarden suspend lake.db.events --reason "backfill until Friday"`
    """
    from lakewarden.services.deps import current_user

    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        made = lakewarden.schedule.suspend(ref, reason, operator or current_user())
    screen.show(SuspensionReport(str(ref), made))
    return 0


def resume(ctx: typer.Context, table: TableName, as_json: JsonFlag = False) -> int:
    """Put a suspended table back into the schedule and reset its failure count.

    Never runs anything itself: the worker starts the table's due jobs soon after.

    Example: `lakewarden resume lake.db.events`
    """
    screen, ref = Screen(as_json), options.table_ref(table)
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        was = lakewarden.schedule.resume(ref)
    screen.show(SuspensionReport(str(ref), None, was))
    return 0


def cancel(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the run, from `lakewarden runs`.")],
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Stop a run cleanly, on whichever host it runs. It ends as `interrupted` within seconds.

    Never undoes what the run has committed, and never stops a commit that has begun.

    Example: `lakewarden cancel 20261116-003012-7f3a9c`
    """
    from lakewarden.services.deps import current_user

    screen, who = Screen(as_json), operator or current_user()
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        run = lakewarden.schedule.cancel(run_id, who)
    screen.show(CancelReport(run, who))
    return 0


_STYLES = {"due": "bold green", "at-work": "cyan", "suspended": "bold red", "backing-off": "bold yellow"}


@dataclass(frozen=True, slots=True)
class ScheduleReport(Plain):
    """The leading worker, the due tables in order, and for all other tables when they are due and why not
    now."""

    decision: Decision
    leader: Lease | None

    JSON_KEYS = "leader **decision"

    def render(self, width: int) -> RenderableType:
        decision = self.decision
        rows = [_due(each) for each in decision.due] + [
            _waiting(each, decision.at) for each in decision.waiting
        ]
        if not rows:
            return look.stack(leading(self.leader), look.dim("no worker maintains any table yet"))
        headings = ("table", "state", "when", "debt", "jobs", "why")
        table = look.lines(rows, look.left(len(headings)), headings, indent=0, wraps=(4, 5))
        return look.stack(leading(self.leader), table)


def leading(leader: Lease | None) -> Text:
    if leader is None:
        return look.dim("no worker has ever run here; start one with `lakewarden worker`")
    if not leader.live:
        return Text(
            f"no worker is running; the last one was {leader.holder}, term {leader.term}", style="bold yellow"
        )
    return look.dim(f"{leader.holder} leads, term {leader.term}")


def _due(each: DueTable) -> tuple[str | Text, ...]:
    left = "".join(f"; excluded: {pattern}" for pattern in each.left_out)
    state = Text("due", style=_STYLES["due"])
    return each.table, state, "now", f"{each.debt:.0f}", ", ".join(each.jobs), each.reason + left


def _waiting(each: WaitingTable, now: datetime) -> tuple[str | Text, ...]:
    state = Text(str(each.why), style=_STYLES.get(each.why, "dim"))
    when = "–" if each.next_at is None else f"in {duration(max(0.0, (each.next_at - now).total_seconds()))}"
    # For a whole pass the reason says enough; listing its eight jobs on every line would add nothing.
    jobs = "" if each.whole else ", ".join(each.jobs)
    return each.table, state, when, f"{each.debt:.0f}", jobs, each.reason


_REQUEST_STYLES = {
    "pending": "cyan",
    "claimed": "cyan",
    "done": "bold green",
    "failed": "bold red",
}


@dataclass(frozen=True, slots=True)
class RequestsReport(Plain):
    requests: tuple[PassRequest, ...]
    now: datetime

    JSON_KEYS = "requests"

    def render(self, width: int) -> RenderableType:
        if not self.requests:
            return look.dim("no requests yet")
        rows = [
            (
                each.id,
                each.table,
                Text(str(each.state), style=_REQUEST_STYLES[each.state]),
                age(each.refreshed_at, self.now),
                each.trigger.operator or each.trigger.type,
                _what_came(each),
            )
            for each in self.requests
        ]
        headings = ("request", "table", "state", "asked", "by", "result")
        return look.lines(rows, look.left(len(headings)), headings, indent=0)


@dataclass(frozen=True, slots=True)
class RequestReport:
    """A request that was filed; `leader` is the worker that will run it, None if no worker leads."""

    request: PassRequest
    leader: Lease | None

    def to_dict(self) -> dict[str, Any]:
        led = self.leader is not None and self.leader.live
        return {**self.request.to_dict(), "led": led}

    def render(self, width: int) -> RenderableType:
        request = self.request
        rows: list[tuple[str, str | Text]] = [
            ("request", request.id),
            ("state", Text(str(request.state), style=_REQUEST_STYLES[request.state])),
            ("worker", leading(self.leader)),
            ("next", f"see it with `lakewarden requests {request.table}`"),
        ]
        return look.stack(look.title("maintain", request.table), look.facts(rows))


def _what_came(each: PassRequest) -> str:
    runs = counted(len(each.run_ids), "run") if each.run_ids else ""
    return "; ".join(part for part in (runs, each.reason) if part)


@dataclass(frozen=True, slots=True)
class SuspensionReport:
    """A table that was suspended or resumed. After a resume `suspension` is None, and `was` says whether it
    was suspended before."""

    table: str
    suspension: Suspension | None
    was: bool = True

    def to_dict(self) -> dict[str, Any]:
        held = self.suspension
        return {
            "table": self.table,
            "suspended": held is not None,
            "was_suspended": self.was,
            "since": held.since.isoformat() if held else None,
            "reason": held.reason if held else None,
            "by": held.by if held else None,
        }

    def render(self, width: int) -> RenderableType:
        if self.suspension is not None:
            back = f"resume it with `lakewarden resume {self.table}`"
            return Text(f"{self.table} is suspended: {self.suspension.reason}; {back}")
        said = "is back in the schedule" if self.was else "was not suspended"
        return Text(f"{self.table} {said}")


@dataclass(frozen=True, slots=True)
class CancelReport(Plain):
    """A run that was asked to stop."""

    run: Run
    by: str

    JSON_KEYS = "id=run.id table=run.table job=run.job cancelled_by=by"

    def render(self, width: int) -> RenderableType:
        return Text(
            f"{self.run.owner} is asked to stop {self.run.job} of {self.run.table}; it ends within seconds: "
            f"see `lakewarden run-show {self.run.id}`"
        )
