"""`lakewarden health` and `lakewarden what-if`: the condition of tables, and the effect of another policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden import clock
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Settings, TableName, settings, table_ref
from lakewarden.cli.screen import Screen
from lakewarden.errors import UsageError
from lakewarden.formatting import age, average, counted, duration, number, percent, size
from lakewarden.model.plain import Plain, pick, to_plain
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.client import Lakewarden
    from lakewarden.health.collect import Sweep
    from lakewarden.health.score import Score
    from lakewarden.health.table_details import TableDetails
    from lakewarden.health.what_if import PolicyCurves, WhatIf
    from lakewarden.report.look import Report
    from lakewarden.state.health import Point, StoredWarning, TableHealth

_CHARTED = timedelta(days=7)


def register(app: typer.Typer) -> None:
    app.command("health")(health)
    app.command("what-if")(what_if)


def health(
    ctx: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Only this table (default: every table).")
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="Read the tables now, instead of showing what the worker last saw."),
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Show the health of tables: numbers, score, warnings, and which table needs work most.

    Shows what the worker saw last. Never changes a table. Without --refresh no table is read and Spark is not
    started. With --refresh only metadata is read; no files are listed. The exit code is 3 if a table has a
    warning.

    Example: `lakewarden health lake.db.events`
    """
    screen = Screen(as_json)
    ref = None if table is None else table_ref(table)
    with invocation(ctx).open(screen, spark=refresh) as lakewarden:
        sweep = None
        if refresh:
            with screen.waiting(f"reading {ref or 'every table'}"):
                sweep = lakewarden.health.look(None if ref is None else [ref])
        shown, warned = _fleet(lakewarden, sweep) if ref is None else _one(lakewarden, str(ref))
    screen.show(shown)
    return 3 if warned else 0


def _fleet(lakewarden: Lakewarden, sweep: Sweep | None) -> tuple[Report, bool]:
    warnings = lakewarden.health.warnings()
    return FleetHealth(lakewarden.health.all(), warnings, clock.now(), sweep), bool(warnings)


def _one(lakewarden: Lakewarden, table: str) -> tuple[Report, bool]:
    found = lakewarden.health.of(table)
    if found is None:
        raise UsageError(
            reason=f"cannot show the health of {table}: its health was never recorded",
            hint=f"read it now with `lakewarden health {table} --refresh`, or start the worker",
        )
    now, warnings = clock.now(), lakewarden.health.warnings(table)
    report = TableHealthReport(
        found,
        lakewarden.health.score(found),
        lakewarden.health.portrait_of(table),
        warnings,
        lakewarden.health.history(table, now - _CHARTED),
        now,
    )
    return report, bool(warnings)


def what_if(
    ctx: typer.Context,
    table: TableName,
    pairs: Settings = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=3650, help="Days to look back.")
    ] = 30,
    as_json: JsonFlag = False,
) -> int:
    """Simulate another policy on the table's past commits, and compare it with the current policy.

    Compares snapshots kept, bytes rewritten per day, and storage. Never changes anything and reads no table:
    it uses what the worker has recorded and the archive of expired snapshots.

    Example: `lakewarden what-if lake.db.events --set snapshot_retention_hours=7d`
    """
    screen, ref = Screen(as_json), table_ref(table)
    values = settings(pairs)
    if not values:
        raise UsageError(
            reason=f"cannot simulate a policy on {ref}: it is the same as the current one",
            hint="give at least one different value, for example --set snapshot_retention_hours=7d",
        )
    with invocation(ctx).open(screen, spark=False) as lakewarden:
        answer = lakewarden.health.what_if(ref, values, days)
    screen.show(WhatIfReport(answer))
    return 0


_GOOD, _FAIR = 80, 50
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Bars from zero to the largest value. If there are more values than bars, a bar shows the largest of its
    values."""
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    ends = [int((place + 1) * step) for place in range(min(width, len(values)))]
    shown = [max(values[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    top = max(shown) or 1.0
    return "".join(_BARS[round(max(0.0, each) / top * (len(_BARS) - 1))] for each in shown)


@dataclass(frozen=True, slots=True)
class FleetHealth:
    """Every table as last seen, most urgent first."""

    tables: tuple[TableHealth, ...]
    warnings: tuple[StoredWarning, ...]
    now: datetime
    sweep: Sweep | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"tables": to_plain(self._ordered()), **pick(self, "warnings sweep")}

    def render(self, width: int) -> RenderableType:
        if not self.tables:
            return look.stack(
                look.dim("no health recorded yet: start the worker, or read the tables now with"),
                look.command("  lakewarden health --refresh"),
            )
        return look.stack(
            look.lines(
                [self._line(each) for each in self._ordered()],
                ("left", *("right",) * 7, "left"),
                ("table", "score", "debt", "files", "small", "deletes", "snapshots", "data", "looked at"),
                indent=0,
            ),
            Text("\nwarnings", style="bold") if self.warnings else look.dim("\nno warnings"),
            _warnings(self.warnings, self.now, named=True) if self.warnings else None,
            look.dim(_swept(self.sweep)) if self.sweep else None,
        )

    def _ordered(self) -> list[TableHealth]:
        return sorted(self.tables, key=lambda each: (not each.error, -each.debt, each.score, each.table))

    def _line(self, each: TableHealth) -> tuple[str | Text, ...]:
        numbers = each.numbers
        return (
            each.table,
            _score(each.score),
            f"{each.debt:.1f}",
            number(numbers.files),
            number(numbers.small_files),
            number(numbers.delete_files),
            number(numbers.snapshots),
            size(numbers.bytes),
            Text(each.error, style="red") if each.error else age(each.at, self.now),
        )


@dataclass(frozen=True, slots=True)
class TableHealthReport:
    """One table: its numbers, how its score is computed, its warnings and the next jobs."""

    health: TableHealth
    score: Score
    portrait: TableDetails | None
    warnings: tuple[StoredWarning, ...]
    history: tuple[Point, ...]
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.health.to_dict(),
            "parts": [pick(each, "name weight value cost sentence") for each in self.score.parts],
            **pick(self, "debt_reason=score.debt.sentence warnings portrait"),
            "history": [pick(each, "at score numbers") for each in self.history],
        }

    def render(self, width: int) -> RenderableType:
        parts = [
            (f"-{each.cost:.0f}" if each.cost >= 0.5 else "–", f"of {each.weight}", each.name, each.sentence)
            for each in self.score.parts
        ]
        return look.stack(
            look.title("health", self.health.table),
            look.facts(self._facts()),
            Text("\nscore", style="bold"),
            look.lines(parts, ("right", "left", "left", "left")),
            Text("\nwarnings", style="bold") if self.warnings else look.dim("\nno warnings"),
            _warnings(self.warnings, self.now, named=False) if self.warnings else None,
            *self._next(),
        )

    def _facts(self) -> list[tuple[str, str | Text]]:
        numbers, health = self.health.numbers, self.health
        facts: list[tuple[str, str | Text]] = [
            ("score", Text.assemble(_score(health.score), " of 100")),
            ("debt", f"{health.debt:.2f}: {self.score.debt.sentence}"),
            ("data files", f"{number(numbers.files)}, {size(numbers.bytes)}, {average(numbers.bytes, numbers.files)} on average, {number(numbers.small_files)} small"),
            ("delete files", f"{number(numbers.delete_files)}, {percent(numbers.deleted_rows, numbers.records)} of rows deleted"),
            ("rows", number(numbers.records)),
            ("snapshots", f"{number(numbers.snapshots)}, {number(numbers.overdue_snapshots)} can expire"),
            ("manifests", f"{number(numbers.manifests)}, {size(numbers.manifest_bytes)}"),
            ("trashed", f"{counted(numbers.trashed_files, 'file')}, {size(numbers.trashed_bytes)}; {number(numbers.due_trashed_files)} past the grace period"),
            ("holds", f"{number(numbers.holds)}, {size(numbers.held_bytes)} kept because of them"),
            ("growth", f"{numbers.added_files_per_day:,.1f} files and {size(numbers.added_bytes_per_day)} a day, {numbers.commits_per_day:,.1f} commits"),
            ("looked at", age(health.at, self.now)),
        ]  # fmt: skip
        if len(self.history) > 1:
            facts.append(("small files", sparkline([each.numbers.small_files for each in self.history])))
        if health.error:
            facts.append(("error", Text(health.error, style="red")))
        return facts

    def _next(self) -> Sequence[RenderableType]:
        if self.portrait is None:
            return ()
        due = [each for each in self.portrait.due if each.due]
        rows = [(each.job, each.reason) for each in due]
        return (
            Text("\ndue", style="bold"),
            look.lines(rows, look.left(2)) if rows else look.dim("  nothing"),
        )


@dataclass(frozen=True, slots=True)
class WhatIfReport(Plain):
    answer: WhatIf

    JSON_KEYS = "**answer"

    def render(self, width: int) -> RenderableType:
        found = self.answer
        changes = [(each.key, each.old, Text(f"→ {each.new}", style="bold")) for each in found.changes]
        over = duration((found.until - found.since).total_seconds())
        return look.stack(
            look.title("what-if", found.table),
            look.lines(changes, look.left(3)) if changes else None,
            look.dim(
                f"  {counted(found.commits, 'commit')} of the last {over}, simulated under both policies"
            ),
            Text(),
            look.lines(self._rows(), ("left", "right", "right"), ("", "now", "then")),
            Text(),
            look.lines(self._curves(), look.left(3)),
            *(look.dim(f"  {note}") for note in found.notes),
        )

    def _rows(self) -> list[tuple[str, str, str]]:
        old, new = self.answer.old, self.answer.new
        return [
            ("snapshots kept", number(old.snapshots), number(new.snapshots)),
            ("small files waiting", number(old.small_files), number(new.small_files)),
            ("rewritten a day", size(old.rewritten_bytes_per_day), size(new.rewritten_bytes_per_day)),
            ("storage", size(old.storage_bytes), size(new.storage_bytes)),
            ("storage at most", size(old.storage_bytes_peak), size(new.storage_bytes_peak)),
        ]

    def _curves(self) -> list[tuple[str, str, str]]:
        sides: Mapping[str, PolicyCurves] = {"now": self.answer.old, "then": self.answer.new}
        return [
            (what, name, sparkline([getattr(each, field) for each in side.moments]))
            for what, field in (
                ("snapshots", "snapshots"),
                ("rewritten", "rewritten_bytes"),
                ("storage", "storage_bytes"),
            )
            for name, side in sides.items()
        ]


def _score(score: int) -> Text:
    style = "bold green" if score >= _GOOD else "bold yellow" if score >= _FAIR else "bold red"
    return Text(str(score), style=style)


def _warnings(found: Sequence[StoredWarning], now: datetime, *, named: bool) -> RenderableType:
    rows = [
        (
            *((each.table,) if named else ()),
            Text(each.kind, style="bold yellow"),
            age(each.since, now),
            each.text,
        )
        for each in found
    ]
    return look.lines(rows, look.left(4 if named else 3))


def _swept(sweep: Sweep) -> str:
    return f"\nread {counted(sweep.tables, 'table')} in {duration(sweep.seconds)}, {number(sweep.changed)} changed since the last time"
