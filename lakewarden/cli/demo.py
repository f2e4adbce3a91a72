"""`lakewarden demo`: make a messy sample lake and compact it.

The lake's folder is created again each time; a folder that something else created is never used. The table
is telemetry by day, in many small files as a badly tuned stream writes it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden import clock
from lakewarden.cli.invocation import Invocation, invocation
from lakewarden.cli.options import JsonFlag, current_trigger
from lakewarden.cli.screen import Screen
from lakewarden.errors import Refused
from lakewarden.formatting import average, counted, duration, number, percent, size
from lakewarden.model.plain import Plain, pick
from lakewarden.model.run import Run, RunState
from lakewarden.report import look
from lakewarden.report.run import RunReport, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.client import Lakewarden
    from lakewarden.model.run import Run


FOLDER = Path("lakewarden-demo")
LINEAGE = ("writer.id", "writer.commit_hash", "lineage.operation", "lineage.run_id", "trigger.type", "trigger.operator", "input.row_count")  # fmt: skip

CATALOG = "lake"
TABLE = f"{CATALOG}.demo.events"

COMMITS = 4
DAYS = 6
FILES_PER_DAY = 15  # files per day and commit: one per writing task
ROWS_PER_COMMIT = 240_000
ASKED_DAYS = ("2026-03-02", "2026-03-03")


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


_MARK = ".made-by-lakewarden-demo"

_CONFIG = """\
# Written by `lakewarden demo`. Change any value and run the commands again.

[state]
url = "sqlite:///state.db"        # runs, steps and policies; beside this file

[catalogs.{catalog}]
type = "hadoop"                   # Iceberg's simplest catalog: a folder
warehouse = "{warehouse}"

[policy]
rewrite_min_input_files = 8       # small files a partition needs before it is compacted
"""


def make_folder(folder: Path) -> Path:
    """Create a new, empty lake in the folder and return its configuration file. The lake of an earlier demo
    is removed."""
    place = folder.absolute()
    if place.is_symlink() or (place.exists() and not (place / _MARK).is_file()):
        raise Refused(
            action="overwrite",
            target=str(folder),
            reason="it was not made by the demo",
            hint="name another folder: `lakewarden demo FOLDER`, or move this one away",
        )
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    (place / _MARK).write_text("`lakewarden demo` deletes this folder and creates it again\n", "utf-8")
    config = place / "lakewarden.toml"
    config.write_text(_CONFIG.format(catalog=CATALOG, warehouse=_quoted(place / "warehouse")), "utf-8")
    return config


def _quoted(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


_CREATE = """
create table {table} (
    device string, metric string, at timestamp, day date, value double, quality int
) using iceberg partitioned by (day)
tblproperties ('write.distribution-mode' = 'none', 'write.spark.fanout.enabled' = 'true', 'write.object-storage.enabled' = 'false')
"""

_ROWS = """
select
    concat('device-', lpad(cast(id % 500 as string), 4, '0')) as device,
    element_at(array('temperature', 'voltage', 'pressure', 'current'), cast(id % 4 as int) + 1) as metric,
    timestampadd(SECOND, cast((id * 7919 + {commit}) % 86400 as int), cast(date_add(date'2026-03-01', cast(id % {days} as int)) as timestamp)) as at,
    date_add(date'2026-03-01', cast(id % {days} as int)) as day,
    round(20 + 5 * sin(id / 1000.0) + (xxhash64(id, {commit}) % 1000) / 500.0, 3) as value,
    cast(id % 3 as int) as quality
from range({first}, {end}, 1, {tasks})
"""

_QUESTION = "select device, avg(value), max(value) from {table} where day in ({days}) group by device"


@dataclass(frozen=True, slots=True)
class Content:
    """A checksum of a snapshot's rows in two numbers: equal rows have equal numbers."""

    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Telemetry:
    spark: Any
    table: str

    def create(self) -> None:
        self.spark.sql(f"create namespace if not exists {self.table.rsplit('.', 1)[0]}")
        self.spark.sql(_CREATE.format(table=self.table))

    def append(self, commit: int) -> None:
        """One commit of many small files: every task writes a file for every day."""
        rows = _ROWS.format(
            commit=commit,
            days=DAYS,
            first=commit * ROWS_PER_COMMIT,
            end=(commit + 1) * ROWS_PER_COMMIT,
            tasks=FILES_PER_DAY,
        )
        self.spark.sql(rows).writeTo(self.table).append()

    def content(self, snapshot_id: int | None = None) -> Content:
        at = "" if snapshot_id is None else f" version as of {snapshot_id}"
        row = self.spark.sql(
            f"select count(*), bit_xor(xxhash64(*)), sum(crc32(cast(xxhash64(*) as string))) from {self.table}{at}"
        ).first()
        return Content(int(row[0]), f"{row[1] & 0xFFFFFFFFFFFFFFFF:016x}-{row[2]:x}")

    def query_seconds(self, times: int = 3) -> float:
        """The fastest of several queries, after a first one that only warms up."""
        query = _QUESTION.format(table=self.table, days=self._asked())
        return min([self._timed(query) for _ in range(times + 1)][1:])

    def _timed(self, query: str) -> float:
        began = clock.monotonic()
        self.spark.sql(query).collect()
        return clock.monotonic() - began

    def files_opened(self) -> int:
        """How many files the query has to read."""
        row = self.spark.sql(
            f"select count(*) from {self.table}.files where partition.day in ({self._asked()})"
        ).first()
        return int(row[0])

    def _asked(self) -> str:
        return ", ".join(f"date'{day}'" for day in ASKED_DAYS)
