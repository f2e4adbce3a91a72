"""`lakewarden demo`: make a messy sample lake and compact it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden.cli.invocation import Invocation, invocation
from lakewarden.cli.options import JsonFlag, current_trigger
from lakewarden.cli.screen import Screen
from lakewarden.formatting import average, counted, duration, number, percent, size
from lakewarden.model.plain import Plain, pick
from lakewarden.model.run import Run, RunState
from lakewarden.report import look
from lakewarden.report.run import RunReport, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.client import Lakewarden
    from lakewarden.demo.telemetry import Telemetry
    from lakewarden.model.run import Run


FOLDER = Path("lakewarden-demo")


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder to make the lake in.")] = FOLDER,
    as_json: JsonFlag = False,
) -> int:
    """Make a messy sample lake, compact it, and show before and after with proof.

    Takes about a minute. Never touches anything outside its folder, and never overwrites a folder it did not
    make. The lake is kept, so that you can try other commands on it.

    Example: `lakewarden demo`
    """
    from lakewarden.demo.folder import TABLE, make_folder
    from lakewarden.demo.telemetry import Telemetry

    screen = Screen(as_json)
    make_folder(folder)
    call = replace(invocation(ctx), config=folder / "lakewarden.toml")
    with call.open(screen, spark=True) as lakewarden:
        report = _tell(lakewarden, Telemetry(lakewarden.lake.spark, TABLE), screen, call)
    screen.show(report)
    return 0 if report.held else 1


def _tell(lakewarden: Lakewarden, telemetry: Telemetry, screen: Screen, call: Invocation) -> DemoReport:
    from lakewarden.report.plan import PlanReport

    table = telemetry.table
    _make_mess(telemetry, screen)
    with screen.waiting("querying the messy table", log=True):
        before = _picture(lakewarden, telemetry)
    screen.say(_mess(before))
    screen.say(
        PlanReport(lakewarden.plan("compact", table), call.command("run", "compact", table)).render(80)
    )
    run = lakewarden.run("compact", table, trigger=current_trigger(), progress=screen.progress())
    with screen.waiting("querying again, and checking", log=True):
        after = _picture(lakewarden, telemetry)
        again = lakewarden.run("compact", table)
        proofs = _proofs(telemetry, before, after, run, again)
        lineage = _lineage(lakewarden, table)
    return DemoReport(table, str(call.config), before, after, run, lineage, proofs, _commands(call, table))


def _make_mess(telemetry: Telemetry, screen: Screen) -> None:
    from lakewarden.demo.telemetry import COMMITS

    telemetry.create()
    for commit in range(COMMITS):
        with screen.waiting(f"writing small files, commit {commit + 1} of {COMMITS}", log=True):
            telemetry.append(commit)


def _picture(lakewarden: Lakewarden, telemetry: Telemetry) -> Picture:
    view, content = lakewarden.view(telemetry.table), telemetry.content()
    return Picture(
        snapshot_id=view.current_snapshot_id or 0,
        files=view.counters.data_files,
        bytes=view.counters.bytes,
        rows=content.rows,
        checksum=content.checksum,
        query_seconds=round(telemetry.query_seconds(), 3),
        query_files=telemetry.files_opened(),
    )


def _mess(before: Picture) -> str:
    from lakewarden.formatting import average, counted, duration, number

    small = average(before.bytes, before.files)
    return (
        f"before: {counted(before.files, 'file')} of {small} for {number(before.rows)} rows; "
        f"a query over 2 of 6 days opens {number(before.query_files)} of them and takes {duration(before.query_seconds)}\n"
    )


def _proofs(
    telemetry: Telemetry, before: Picture, after: Picture, run: Run, again: Run
) -> tuple[DemoPromise, ...]:
    from lakewarden.formatting import counted

    old = telemetry.content(before.snapshot_id)
    same = (before.rows, before.checksum) == (after.rows, after.checksum)
    return (
        DemoPromise("the run finished", run.state is RunState.DONE, run.state),
        DemoPromise(
            "the rows are equal", same, f"{counted(after.rows, 'row')}, checksum {after.checksum[:16]}"
        ),
        DemoPromise(
            "old snapshots still read",
            (old.rows, old.checksum) == (before.rows, before.checksum),
            f"version {before.snapshot_id}, the same rows",
        ),
        DemoPromise("a second run does nothing", again.state is RunState.NOTHING_TO_DO, again.state),
    )


def _lineage(lakewarden: Lakewarden, table: str) -> dict[str, str]:
    """The lineage of the newest commit, read from the table."""
    view = lakewarden.view(table)
    head = view.snapshot(view.current_snapshot_id or 0)
    return {} if head is None else dict(head.summary)


def _commands(call: Invocation, table: str) -> tuple[tuple[str, str], ...]:
    program = _program()
    return (
        (call.command("show", table, program=program), "the table's health, and which jobs are due:"),
        (call.command("runs", program=program), "what was done, from the journal:"),
        (call.command("policy", table, program=program), "every setting, and where its value came from:"),
    )


def _program() -> str:
    """The command as the user can type it: in a checkout it is in the virtual environment, which may not be
    on PATH."""
    beside = Path(sys.executable).with_name("lakewarden")
    if shutil.which("lakewarden") or not beside.exists():
        return "lakewarden"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


LINEAGE = ("writer.id", "writer.commit_hash", "lineage.operation", "lineage.run_id", "trigger.type", "trigger.operator", "input.row_count")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Picture(Plain):
    """The table at one time, and what a query on it costs."""

    snapshot_id: int
    files: int
    bytes: int
    rows: int
    checksum: str
    query_seconds: float
    query_files: int


@dataclass(frozen=True, slots=True)
class DemoPromise(Plain):
    """One promise, and whether it was kept."""

    name: str
    held: bool
    found: str

    def line(self) -> tuple[Text, str, str]:
        mark = Text("yes", style="bold green") if self.held else Text("NO", style="bold red")
        return mark, self.name, self.found


@dataclass(frozen=True, slots=True)
class DemoReport:
    table: str
    config: str
    before: Picture
    after: Picture
    run: Run
    lineage: Mapping[str, str]
    proofs: tuple[DemoPromise, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def held(self) -> bool:
        return all(proof.held for proof in self.proofs)

    def to_dict(self) -> dict[str, Any]:
        return {
            **pick(self, "table config before after"),
            "run": RunReport(self.run).to_dict(),
            **pick(self, "lineage proofs"),
            "next": [command for command, _ in self.commands],
        }

    def render(self, width: int) -> RenderableType:
        took = duration(seconds(self.run) or 0)
        commits = counted(len(self.run.snapshot_ids), "commit")
        return look.stack(
            Text(),
            look.title("demo", self.table),
            look.lines(self._change(), ("left", "right", "right", "left"), ("", "before", "after", "")),
            look.dim(f"  compacted in {took}, {commits}: one per day, so writers of other days never wait"),
            Text("\nlineage of the commit", style="bold"),
            look.facts([(key, self.lineage[key]) for key in LINEAGE if key in self.lineage]),
            Text("\nproof", style="bold"),
            look.lines([proof.line() for proof in self.proofs], look.left(3)),
            Text("\ntry it yourself", style="bold"),
            *(_next(command, why) for command, why in self.commands),
        )

    def _change(self) -> list[tuple[str, str, str, Text]]:
        old, new = self.before, self.after
        return [
            ("data files", number(old.files), number(new.files), _gain(old.files, new.files, "fewer")),
            ("average file", average(old.bytes, old.files), average(new.bytes, new.files), Text()),
            ("data", size(old.bytes), size(new.bytes), look.dim(f"{percent(old.bytes - new.bytes, old.bytes)} smaller")),
            ("files a query opens", number(old.query_files), number(new.query_files), _gain(old.query_files, new.query_files, "fewer")),
            ("that query takes", duration(old.query_seconds), duration(new.query_seconds), _gain(old.query_seconds, new.query_seconds, "faster")),
        ]  # fmt: skip


def _gain(old: float, new: float, better: str) -> Text:
    """`3.8× faster`; empty where the new value is not better."""
    return Text(f"{old / new:.1f}× {better}", style="green") if new and old > new else Text()


def _next(command: str, why: str) -> Text:
    return Text.assemble(f"  {why}\n    ", look.command(command))
