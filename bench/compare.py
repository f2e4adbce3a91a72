"""The same work by several tools, in turns, on one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.findings import Check, Found, Grid, Turn, warm
from bench.lab import Lab
from bench.scale import Scale
from bench.stage import Stage, Watch, even_outputs, on_stage, take_turns, watch_nothing
from bench.telemetry import Prepared, Totals
from bench.tools import OURS, PEER, Goal, Tool

Prepare = Callable[[Any, Scale], Prepared]
# Additional turns on the same stage, and their checks.
Epilogue = Callable[[Stage], tuple[Sequence[Turn], Sequence[Check]]]


def no_epilogue(stage: Stage) -> tuple[Sequence[Turn], Sequence[Check]]:
    return (), ()


def _rounds(scale: Scale) -> int:
    return scale.rounds


def no_settings(scale: Scale) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Comparison:
    """`goal` overrides the even outputs, `config` is Lakewarden's; `exchanges`: groups must be larger than a
    task's memory."""

    prepare: Prepare
    tools: tuple[Tool, ...]
    goal: Goal | None = None
    rounds: Callable[[Scale], int] = _rounds
    config: Callable[[Scale], Mapping[str, Any]] = no_settings
    watch: Watch = watch_nothing
    epilogue: Epilogue = no_epilogue
    exchanges: bool = False
    least_ratio: float | None = 1.0

    def __call__(self, lab: Lab) -> Found:
        scale = lab.scale
        prepared = self.prepare(lab.spark, scale)
        with on_stage(lab, prepared, self._goal(lab), self.config(scale), self.watch) as stage:
            before = self.watch(lab.spark, prepared.name)
            plays = [(stage, tool) for tool in self.tools if scale.peer or tool.name != PEER]
            turns = take_turns(plays, self.rounds(scale), lab.say)
            more, shown = self.epilogue(stage)
        checks = (*self._ratio(turns), *self._exchanged(turns), *shown)
        return Found(stage.start, (*turns, *more), checks, _seen(before, turns))

    def _goal(self, lab: Lab) -> Callable[[Totals], Goal]:
        fixed = self.goal
        return even_outputs(lab.scale, lab.cores) if fixed is None else lambda start: fixed

    def _ratio(self, turns: Sequence[Turn]) -> list[Check]:
        if not any(turn.tool == PEER for turn in turns):
            return []
        ratio = warm(turns, PEER).wall / warm(turns, OURS).wall
        return [Check("wall time, the other tool's divided by Lakewarden's", ratio, least=self.least_ratio)]

    def _exchanged(self, turns: Sequence[Turn]) -> list[Check]:
        """Checks that every turn of Lakewarden that sorts rows used the exchange between tasks."""
        counts = [int(turn.told.counters["groups_exchanged"]) for turn in turns if turn.told]
        if self.exchanges:
            return [Check("groups ordered by several tasks, at least", min(counts), least=1)]
        return [Check("groups ordered by several tasks", max(counts), most=0)]


def _seen(before: Mapping[str, float], turns: Sequence[Turn]) -> tuple[Grid, ...]:
    """Observations before and after; for Lakewarden also what the run itself counted."""
    if not before:
        return ()
    last = {turn.tool: turn for turn in turns}
    rows = [
        (name, _one(value), *(_one(turn.seen[name]) for turn in last.values()))
        for name, value in before.items()
    ]
    counted = {tool: turn.told.counters["clustering"] if turn.told else {} for tool, turn in last.items()}
    for column, share in counted[OURS].items():
        after = (_share(each[column]["after"]) if each else "" for each in counted.values())
        rows.append(
            (f"{column}: share of a partition's files, as the run counts", _share(share["before"]), *after)
        )
    return (Grid(("files a query opens", "before", *last), tuple(rows)),)


def _one(value: float) -> str:
    return f"{value:,.1f}"


def _share(value: float) -> str:
    return f"{value:.0%}"
