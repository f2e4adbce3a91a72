"""`lakewarden demo`: a messy sample lake, looked after before your eyes."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakewarden.cli.invocation import Invocation, invocation
from lakewarden.cli.options import JsonFlag, current_trigger
from lakewarden.cli.screen import Screen
from lakewarden.model.run import Run, RunState

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.demo.telemetry import Telemetry
    from lakewarden.report.demo import DemoReport, Picture, Proof

FOLDER = Path("lakewarden-demo")


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where the lake is made.")] = FOLDER,
    as_json: JsonFlag = False,
) -> int:
    """Make a messy sample lake, compact it, and show before and after with proof; about a minute.

    Never touches anything outside its folder, and never overwrites a folder it did not make. The lake is kept.

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
    from lakewarden.report.demo import DemoReport
    from lakewarden.report.plan import PlanReport

    table = telemetry.table
    _make_mess(telemetry, screen)
    with screen.waiting("asking the messy table", log=True):
        before = _picture(lakewarden, telemetry)
    screen.say(_mess(before))
    screen.say(
        PlanReport(lakewarden.plan("compact", table), call.command("run", "compact", table)).render(80)
    )
    run = lakewarden.run("compact", table, trigger=current_trigger(), progress=screen.progress())
    with screen.waiting("asking again, and checking", log=True):
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
    from lakewarden.report.demo import Picture

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
        f"the mess: {counted(before.files, 'file')} of {small} for {number(before.rows)} rows; "
        f"a query over 2 of 6 days opens {number(before.query_files)} of them and takes {duration(before.query_seconds)}\n"
    )


def _proofs(telemetry: Telemetry, before: Picture, after: Picture, run: Run, again: Run) -> tuple[Proof, ...]:
    from lakewarden.formatting import counted
    from lakewarden.report.demo import Proof

    old = telemetry.content(before.snapshot_id)
    same = (before.rows, before.checksum) == (after.rows, after.checksum)
    return (
        Proof("it ran to its end", run.state is RunState.DONE, run.state),
        Proof("the rows are equal", same, f"{counted(after.rows, 'row')}, checksum {after.checksum[:16]}"),
        Proof(
            "old snapshots still read",
            (old.rows, old.checksum) == (before.rows, before.checksum),
            f"version {before.snapshot_id}, the same rows",
        ),
        Proof("a second run does nothing", again.state is RunState.NOTHING_TO_DO, again.state),
    )


def _lineage(lakewarden: Lakewarden, table: str) -> dict[str, str]:
    """What the newest commit says about itself, from the table alone."""
    view = lakewarden.view(table)
    head = view.snapshot(view.current_snapshot_id or 0)
    return {} if head is None else dict(head.summary)


def _commands(call: Invocation, table: str) -> tuple[tuple[str, str], ...]:
    program = _program()
    return (
        (call.command("show", table, program=program), "the table's health, and what is due:"),
        (call.command("runs", program=program), "what was done, from the journal:"),
        (call.command("policy", table, program=program), "every setting, and where its value came from:"),
    )


def _program() -> str:
    """As it can be typed here: in a checkout it is in the environment's folder, which is not on the path."""
    beside = Path(sys.executable).with_name("lakewarden")
    if shutil.which("lakewarden") or not beside.exists():
        return "lakewarden"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
