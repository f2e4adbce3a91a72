"""Results as values: turns, observations of the tables, and whether goals were met."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil
import pyarrow
import pyspark

from bench.meter import Cost
from bench.scale import Scale
from bench.telemetry import Totals
from bench.tools import OURS, PEER, Told


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one tool. `seen` are observations of the table it left; `told` exists only for tools with a
    journal."""

    tool: str
    round: int
    cost: Cost
    made: Totals
    seen: Mapping[str, float] = field(default_factory=dict)
    told: Told | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A result and its goal, if any: at least, at most, or between."""

    name: str
    found: float
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool:
        low = self.least is None or self.found >= self.least
        return low and (self.most is None or self.found <= self.most)


@dataclass(frozen=True, slots=True)
class Grid:
    """A small table; its first column has the names of the rows."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a case: the table at the start, every turn, and the checks."""

    start: Totals
    turns: tuple[Turn, ...]
    checks: tuple[Check, ...] = ()
    grids: tuple[Grid, ...] = ()

    def tools(self) -> list[str]:
        return list(dict.fromkeys(turn.tool for turn in self.turns))

    def ratios(self) -> dict[int, float]:
        """The other tool's wall time divided by Lakewarden's, by round."""
        ours = {turn.round: turn.cost.wall for turn in self.turns if turn.tool == OURS}
        theirs = {turn.round: turn.cost.wall for turn in self.turns if turn.tool == PEER}
        return {number: theirs[number] / ours[number] for number in theirs if number in ours}


@dataclass(frozen=True, slots=True)
class Warm:
    """A tool's median over the rounds after the first."""

    wall: float
    cpu: float
    jvm_heap: int
    workers_rss: int
    worker_rss: int
    files: int
    bytes: int
    deletes: int

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> Warm:
        costs, made = [turn.cost for turn in turns], [turn.made for turn in turns]
        return cls(
            wall=median(cost.wall for cost in costs),
            cpu=median(cost.cpu for cost in costs),
            jvm_heap=int(median(cost.jvm_heap for cost in costs)),
            workers_rss=int(median(cost.workers_rss for cost in costs)),
            worker_rss=int(median(cost.worker_rss for cost in costs)),
            files=int(median(each.files for each in made)),
            bytes=int(median(each.bytes for each in made)),
            deletes=int(median(each.deletes for each in made)),
        )


def warm(turns: Iterable[Turn], tool: str) -> Warm:
    """Without the first round, unless it is the only one."""
    mine = [turn for turn in turns if turn.tool == tool]
    return Warm.of([turn for turn in mine if turn.round > 1] or mine)


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
class Report:
    """One case, measured on this machine."""

    case: str
    sentence: str
    goal: str
    machine: Machine
    scale: Scale
    found: Found
