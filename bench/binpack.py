"""Bin-packing a telemetry table: Iceberg's own procedure and Lakewarden, turn by turn, in one session.

`python -m bench.binpack` prints each turn as it ends. Both start from the same snapshot of the same table, and after each
turn every row is read back and compared. The first round warms the JVM and the workers; the rounds after it count.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.meter import Cost, measure
from bench.report import MODERN, OURS, PEER, Report, Turn, chart, markdown, to_json
from bench.rows import Fingerprint, fingerprint
from bench.scale import DAYS, Scale
from bench.telemetry import Totals, reset, small_telemetry, telemetry, totals
from bench.tools import Goal, Phases, Stopwatch, iceberg
from lakewarden import Lakewarden
from lakewarden.engine.jars import ensure_jars
from lakewarden.engine.session import close_session, open_session

_CATALOG = "bench_lake"
# How far over the average output the target lies, so that uneven inputs still make as many outputs as asked for.
_SLACK = 1.03
# Below this, Iceberg's writer takes its buffers for a full file and starts the next one too early.
_LEAST_TARGET = 8 << 20
_SMALL_TARGET = 128 << 20

_BEGIN, _END = "<!-- figures: written by python -m bench -->", "<!-- end of figures -->"

Say = Callable[[str], None]
Tool = Callable[[int], Turn]


@dataclass(frozen=True, slots=True)
class Bench:
    """One table, the rows it must keep, and what both tools are asked to make of it."""

    spark: Any
    warden: Lakewarden
    table: str
    goal: Goal
    groups_at_once: int
    start: Totals
    rows: Fingerprint

    @classmethod
    def on(cls, spark: Any, warden: Lakewarden, table: str, goal: Goal, tasks_per_group: int) -> Bench:
        groups = groups_to_fill(int(spark.sparkContext.defaultParallelism), tasks_per_group)
        return cls(spark, warden, table, goal, groups, totals(spark, table), fingerprint(spark, table))

    def iceberg(self, number: int) -> Turn:
        _, cost = measure(
            self.spark, partial(iceberg, self.spark, self.table, self.goal, self.groups_at_once)
        )
        return self._close(PEER, number, cost, None)

    def lakewarden(self, number: int) -> Turn:
        return self._lakewarden(OURS, number, "classic")

    def modern(self, number: int) -> Turn:
        return self._lakewarden(MODERN, number, "modern")

    def _lakewarden(self, tool: str, number: int, encodings: str) -> Turn:
        work = partial(Stopwatch.time, self.warden, self.table, self.goal, encodings)
        watch, cost = measure(self.spark, work)
        return self._close(tool, number, cost, watch.phases(self.warden.run_by_id(watch.run.id)[1]))

    def _close(self, tool: str, number: int, cost: Cost, phases: Phases | None) -> Turn:
        """A turn counts only if the table has every row it had, in fewer files. Then back to the start."""
        found, made = fingerprint(self.spark, self.table), totals(self.spark, self.table)
        if found != self.rows:
            raise RuntimeError(f"{tool} changed the rows of {self.table}: {self.rows} became {found}")
        if made.files >= self.start.files:
            raise RuntimeError(f"{tool} left {made.files} of {self.start.files} files: nothing was compacted")
        reset(self.spark, self.table)
        return Turn(tool, number, cost, made, phases)


def take_turns(tools: Sequence[Tool], rounds: int, say: Say) -> list[Turn]:
    """Every round each tool once. Who goes first alternates, so that none always meets the warmer machine."""
    turns: list[Turn] = []
    for number in range(1, rounds + 1):
        for tool in tools if number % 2 else reversed(tools):
            turns.append(tool(number))
            say(turns[-1].line())
    return turns


def run(spark: Any, folder: Path, scale: Scale, say: Say) -> Report:
    """The whole benchmark on a session that knows the catalog. The tables may stay; the journal is always a new one."""
    with (
        tempfile.TemporaryDirectory(prefix="state-", dir=folder) as state,
        Lakewarden({"state": {"url": f"sqlite:///{state}/state.db"}}, spark=spark, environ={}) as warden,
    ):
        return _run(spark, warden, scale, say)


def _run(spark: Any, warden: Lakewarden, scale: Scale, say: Say) -> Report:
    say(f"building {scale.rows:,} rows in {scale.files} files, unless they are there")
    large = telemetry(spark, _CATALOG, scale)
    bench = Bench.on(spark, warden, large, _goal(totals(spark, large), scale), scale.outputs // DAYS)
    say(f"{bench.start.files} files, {bench.start.bytes / 1e6:,.0f} MB into about {scale.outputs}")
    turns = take_turns([bench.iceberg, bench.lakewarden, bench.modern], scale.rounds, say)
    say("five files of 60 KB, from call to commit")
    few = Bench.on(spark, warden, small_telemetry(spark, _CATALOG), Goal(_SMALL_TARGET, 5), 1)
    latencies = take_turns([few.iceberg, few.lakewarden], scale.small_repeats, say)
    return Report.of(spark, scale, bench.start, turns, few.start, latencies)


def groups_to_fill(cores: int, tasks_per_group: int) -> int:
    """The peer's groups at once: enough to fill the cores and no more, which took it 7 % less time than all five."""
    return max(1, -(-cores // tasks_per_group))


def _goal(start: Totals, scale: Scale) -> Goal:
    target = int(start.bytes / scale.outputs * _SLACK) + 1
    return Goal(max(target, _LEAST_TARGET), min(5, scale.files // DAYS))


def add_catalog(spark: Any, folder: Path) -> None:
    """An Iceberg catalog in a SQLite file: it commits as a shared one does, and needs no server."""
    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True, exist_ok=True)
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        ".warehouse": str(warehouse),
        ".jdbc.schema-version": "V1",
        ".clients": "1",
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{_CATALOG}{key}", value)


@contextmanager
def _folder(named: str | None) -> Iterator[Path]:
    """The folder that was named, which stays; else one for this run only."""
    if named:
        yield Path(named).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="lakewarden-bench-") as folder:
        yield Path(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.binpack", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--chart", type=Path, help="draw the warm figures here, as SVG")
    parser.add_argument("--page", type=Path, help="put the warm figures between the markers of this page")
    options = parser.parse_args(arguments)
    scale = Scale.from_environment(os.environ)
    with _folder(os.environ.get("BENCH_DIR")) as folder:
        spark = open_session("local[*]", {}, ensure_jars(["base", "jdbc"]))
        add_catalog(spark, folder)
        try:
            report = run(spark, folder, scale, partial(print, flush=True))
        finally:
            close_session(spark)
    print(report.text())
    if options.out:
        _write(options.out, to_json(report))
    if options.chart:
        _write(options.chart, chart(report))
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        _write(options.page, with_figures(page, markdown(report)))
    return 0


def with_figures(page: str, figures: str) -> str:
    """The page with what stands between its two markers replaced."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page needs the lines {_BEGIN} and {_END}")
    return f"{before}{begin}\n{figures}\n{end}{after}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
