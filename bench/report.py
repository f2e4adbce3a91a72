"""What was measured, and how it is shown: lines, a table, JSON, a chart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import psutil
import pyarrow
import pyspark

from bench.bars import Bars, draw
from bench.meter import Cost
from bench.scale import Scale
from bench.telemetry import Totals
from bench.tools import Phases

PEER, OURS, MODERN = "iceberg", "lakewarden", "modern"
TOOLS = (PEER, OURS, MODERN)


@dataclass(frozen=True, slots=True)
class Turn:
    """One tool, once. `phases` only where the tool keeps a journal."""

    tool: str
    round: int
    cost: Cost
    made: Totals
    phases: Phases | None

    def line(self) -> str:
        cost = self.cost
        return (
            f"  {self.round} {self.tool:<10} {cost.wall:7.2f} s  {cost.cpu:7.2f} s CPU"
            f"  heap {_mb(cost.jvm_heap)}  JVM {_mb(cost.jvm_rss)}  workers {_mb(cost.workers_rss)}"
            f"  {self.made.files} files {_mb(self.made.bytes)}  rows equal{_phases(self.phases)}"
        )


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    memory_bytes: int
    spark: str
    iceberg: str
    pyarrow: str
    heap_bytes: int

    @classmethod
    def here(cls, spark: Any) -> Machine:
        jvm = spark._jvm
        return cls(
            cores=os.cpu_count() or 1,
            memory_bytes=int(psutil.virtual_memory().total),
            spark=pyspark.__version__,
            iceberg=str(jvm.org.apache.iceberg.IcebergBuild.version()),
            pyarrow=pyarrow.__version__,
            heap_bytes=int(jvm.java.lang.Runtime.getRuntime().maxMemory()),
        )


@dataclass(frozen=True, slots=True)
class Warm:
    """A tool's median over the rounds after the first."""

    wall: float
    cpu: float
    jvm_heap: int
    workers_rss: int
    files: int
    bytes: int

    @classmethod
    def of(cls, turns: Iterable[Turn]) -> Warm:
        kept = list(turns)
        return cls(
            wall=median(turn.cost.wall for turn in kept),
            cpu=median(turn.cost.cpu for turn in kept),
            jvm_heap=int(median(turn.cost.jvm_heap for turn in kept)),
            workers_rss=int(median(turn.cost.workers_rss for turn in kept)),
            files=int(median(turn.made.files for turn in kept)),
            bytes=int(median(turn.made.bytes for turn in kept)),
        )


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    scale: Scale
    start: Totals
    turns: tuple[Turn, ...]
    small_start: Totals
    small_turns: tuple[Turn, ...]

    @classmethod
    def of(
        cls,
        spark: Any,
        scale: Scale,
        start: Totals,
        turns: Sequence[Turn],
        small_start: Totals,
        small_turns: Sequence[Turn],
    ) -> Report:
        return cls(Machine.here(spark), scale, start, tuple(turns), small_start, tuple(small_turns))

    def warm(self, tool: str) -> Warm:
        return Warm.of(_warm(self.turns, tool))

    def ratios(self) -> dict[int, float]:
        """How many times longer the peer took, by round."""
        ours = {turn.round: turn.cost.wall for turn in self.turns if turn.tool == OURS}
        return {turn.round: turn.cost.wall / ours[turn.round] for turn in self.turns if turn.tool == PEER}

    def small_walls(self, tool: str) -> list[float]:
        return sorted(turn.cost.wall for turn in _warm(self.small_turns, tool))

    def text(self) -> str:
        """The warm figures side by side; a ratio is the peer's figure over Lakewarden's."""
        warm = [self.warm(tool) for tool in TOOLS]
        small = [f"{median(self.small_walls(tool)):.2f} s" for tool in (PEER, OURS)]
        rows = [
            ("wall", *(f"{each.wall:.1f} s" for each in warm), _over(warm[0].wall, warm[1].wall)),
            ("CPU", *(f"{each.cpu:.1f} s" for each in warm), _over(warm[0].cpu, warm[1].cpu)),
            ("output", *(_mb(each.bytes) for each in warm), _over(warm[0].bytes, warm[1].bytes)),
            (
                "five small files",
                *small,
                "",
                _over(*(median(self.small_walls(tool)) for tool in (PEER, OURS))),
            ),
        ]
        by_round = ", ".join(f"round {number}: {ratio:.2f}" for number, ratio in self.ratios().items())
        lines = [_row("", "Iceberg", "Lakewarden", "modern", "ratio"), *(_row(*row) for row in rows)]
        return "\n".join([*lines, f"wall ratio by round: {by_round}"])


def to_json(report: Report) -> str:
    summary = {
        "wall_ratio_by_round": {str(number): round(ratio, 2) for number, ratio in report.ratios().items()},
        "warm": {tool: asdict(report.warm(tool)) for tool in TOOLS},
        "small_wall": {tool: report.small_walls(tool) for tool in (PEER, OURS)},
    }
    return json.dumps(_rounded({"summary": summary, **asdict(report)}), indent=1) + "\n"


def markdown(report: Report) -> str:
    """The warm figures as the page shows them."""
    warm = [report.warm(tool) for tool in TOOLS]
    rows = [
        ("wall time", [f"{each.wall:.1f} s" for each in warm]),
        ("wall time, the peer's over ours", ["", *(_over(warm[0].wall, each.wall) for each in warm[1:])]),
        ("CPU time, driver, JVM and workers", [f"{each.cpu:.1f} s" for each in warm]),
        ("peak Java heap in use", [_mb(each.jvm_heap) for each in warm]),
        ("peak memory of the Python workers", ["", *(_mb(each.workers_rss) for each in warm[1:])]),
        ("outputs", [f"{each.files} files, {_mb(each.bytes)}" for each in warm]),
        (
            "five files of 60 KB, call to commit",
            [*(_spread(report.small_walls(tool)) for tool in (PEER, OURS)), ""],
        ),
    ]
    lines = [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    head = "| | Iceberg `rewrite_data_files` | Lakewarden `compact` | with `rewrite_encodings=modern` |"
    return "\n".join([_setting(report), "", head, "|---|---|---|---|", *lines])


def _setting(report: Report) -> str:
    machine, scale, start = report.machine, report.scale, report.start
    return (
        f"{scale.rows / 1e6:g} million rows, {start.files} files, {_mb(start.bytes)}; {machine.cores} cores,"
        f" {machine.heap_bytes / 1e9:.0f} GB heap; Spark {machine.spark}, Iceberg {machine.iceberg}, pyarrow {machine.pyarrow};"
        f" median of {max(1, scale.rounds - 1)} warm round{'s' if scale.rounds > 2 else ''}."
    )


def _spread(walls: Sequence[float]) -> str:
    return f"{median(walls):.2f} s ({walls[0]:.2f} to {walls[-1]:.2f})"


def chart(report: Report) -> str:
    peer, ours = report.warm(PEER), report.warm(OURS)
    small = [median(report.small_walls(tool)) for tool in (PEER, OURS)]
    return draw(
        f"Bin-packing {report.scale.rows / 1e6:g} M rows, {report.start.files} files into {ours.files}, {report.machine.cores} cores",
        ("Iceberg rewrite_data_files", "Lakewarden compact"),
        [
            Bars("wall time", "s", peer.wall, ours.wall),
            Bars("CPU time", "s", peer.cpu, ours.cpu),
            Bars("size of the outputs", "MB", peer.bytes / 1e6, ours.bytes / 1e6),
            Bars("five files of 60 KB, call to commit", "s", *small),
        ],
    )


def _warm(turns: Iterable[Turn], tool: str) -> list[Turn]:
    """Without the first round, unless it is the only one."""
    mine = [turn for turn in turns if turn.tool == tool]
    return mine[1:] or mine


def _phases(phases: Phases | None) -> str:
    if phases is None:
        return ""
    return (
        f"\n               planning {phases.planning:.2f}, preparing {phases.preparing:.2f}, writing {phases.writing:.2f}"
        f" ({phases.task_cpu:.2f} CPU in tasks), last commit {phases.last_commit:.2f}; {phases.commits} commits"
    )


def _row(name: str, peer: str, ours: str, modern: str, ratio: str) -> str:
    return f"{name:18}{peer:>10}{ours:>12}{modern:>10}{ratio:>8}"


def _over(peer: float, ours: float) -> str:
    return f"{peer / ours:.2f}"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"


def _rounded(value: Any) -> Any:
    """Milliseconds are finer than what repeats."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
