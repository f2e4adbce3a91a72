"""One table on which tools take turns: each starts from the same snapshot and must leave the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.findings import Turn
from bench.lab import Lab, Say
from bench.meter import measure
from bench.report import line
from bench.rows import fingerprint
from bench.scale import DAYS, Scale
from bench.telemetry import Prepared, Totals, reset, totals
from bench.tools import Goal, Site, Tool

# Target size over average output size, so that uneven inputs still give the requested number of outputs.
_SLACK = 1.03
# Below this size, Iceberg's writer counts its buffers as a full file and starts the next file too early.
_LEAST_TARGET = 8 << 20

# Observations of a table, by name.
Watch = Callable[[Any, str], Mapping[str, float]]


def watch_nothing(spark: Any, table: str) -> Mapping[str, float]:
    return {}


@dataclass(frozen=True, slots=True)
class Stage:
    lab: Lab
    site: Site
    prepared: Prepared
    start: Totals
    watch: Watch = watch_nothing

    def turn(self, tool: Tool, number: int) -> Turn:
        """One turn. It counts only if it changed the table and every row is still there. Then the table is
        reset."""
        spark, table = self.site.spark, self.site.table
        result, cost = measure(spark, partial(tool.work, self.site), self.lab.scale.patience)
        told = tool.tell(self.site, result)
        found, made = fingerprint(spark, table), totals(spark, table)
        if found != self.prepared.rows:
            raise RuntimeError(
                f"{tool.name} changed the rows of {table}: {self.prepared.rows} became {found}"
            )
        if made == self.start:
            raise RuntimeError(f"{tool.name} left {table} as it was: nothing was compacted")
        seen = self.watch(spark, table)
        reset(spark, table)
        return Turn(tool.name, number, cost, made, seen, told)


@contextmanager
def on_stage(
    lab: Lab,
    prepared: Prepared,
    goal: Callable[[Totals], Goal],
    config: Mapping[str, Any] | None = None,
    watch: Watch = watch_nothing,
) -> Iterator[Stage]:
    """The prepared table with a Lakewarden of this configuration."""
    start = totals(lab.spark, prepared.name)
    lab.say(
        f"{prepared.name}: {start.files} files, {start.bytes / 1e6:,.0f} MB, {start.deletes} delete files"
    )
    with lab.warden(config or {}) as warden:
        yield Stage(lab, Site(lab.spark, warden, prepared.name, goal(start)), prepared, start, watch)


def take_turns(plays: Sequence[tuple[Stage, Tool]], rounds: int, say: Say) -> list[Turn]:
    """In every round each tool plays once. The order alternates, so that no tool always gets the warmer
    machine."""
    turns: list[Turn] = []
    for number in range(1, rounds + 1):
        for stage, tool in plays if number % 2 else reversed(plays):
            if not tool.once or number == rounds:
                turns.append(stage.turn(tool, number))
                say(line(turns[-1]))
    return turns


def even_outputs(scale: Scale, cores: int) -> Callable[[Totals], Goal]:
    """As many outputs as the scale asks for, of equal size."""

    def goal(start: Totals) -> Goal:
        target = int(start.bytes / scale.outputs * _SLACK) + 1
        groups = groups_to_fill(cores, scale.outputs // DAYS)
        return Goal(max(target, _LEAST_TARGET), min(5, scale.files // DAYS), groups)

    return goal


def groups_to_fill(cores: int, tasks_per_group: int) -> int:
    """Iceberg's concurrent groups: just enough to use all cores, which took it 7 % less time than all five."""
    return max(1, -(-cores // tasks_per_group))
