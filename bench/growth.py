"""Whether time grows linearly with the data: the same work on one, two and four times the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

from bench.compare import Prepare
from bench.findings import Check, Found, Grid, Turn, warm
from bench.lab import Lab
from bench.scale import Scale
from bench.stage import Stage, even_outputs, on_stage, take_turns
from bench.tools import Ours

_MOST = 1.10


@dataclass(frozen=True, slots=True)
class Growth:
    """Kinds of work, each with the table it needs."""

    works: Mapping[str, tuple[Prepare, Ours]]

    def __call__(self, lab: Lab) -> Found:
        sizes = lab.scale.growth()
        turns: list[Turn] = []
        for name, (prepare, tool) in self.works.items():
            with ExitStack() as stack:
                stages = {
                    times: stack.enter_context(_stage(lab, prepare, scale)) for times, scale in sizes.items()
                }
                plays = [(stage, replace(tool, name=label(name, times))) for times, stage in stages.items()]
                turns += take_turns(plays, lab.scale.rounds, lab.say)
        table = tuple(self._row(turns, name, sizes) for name in self.works)
        return Found(stages[4].start, tuple(turns), tuple(self._checks(turns, sizes)), (Grid(_HEAD, table),))

    def _row(self, turns: list[Turn], name: str, sizes: Mapping[int, Scale]) -> tuple[str, ...]:
        found = {times: warm(turns, label(name, times)) for times in sizes}
        seconds = [f"{each.wall:.1f} s ({each.cpu:.1f} s CPU)" for each in found.values()]
        per_row = [f"{wall:.2f} ({cpu:.2f})" for _, wall, cpu in _per_row(turns, name, sizes)]
        return (name, *seconds, *per_row)

    def _checks(self, turns: list[Turn], sizes: Mapping[int, Scale]) -> Iterator[Check]:
        for name in self.works:
            for times, wall, _ in _per_row(turns, name, sizes):
                yield Check(
                    f"{name}: seconds per row at {times} times the rows, divided by those at once",
                    wall,
                    most=_MOST,
                )


_HEAD = ("wall (CPU)", "1x", "2x", "4x", "per row, 2x over 1x", "per row, 4x over 1x")


def label(name: str, times: int) -> str:
    return f"{name} {times}x"


def _stage(lab: Lab, prepare: Prepare, scale: Scale) -> AbstractContextManager[Stage]:
    """A stage with the table of this size."""
    return on_stage(lab, prepare(lab.spark, scale), even_outputs(scale, lab.cores))


def _per_row(turns: list[Turn], name: str, sizes: Mapping[int, Scale]) -> Iterator[tuple[int, float, float]]:
    """Wall and CPU seconds per row of the larger sizes, divided by those of the smallest."""
    once = warm(turns, label(name, 1))
    for times in sizes:
        if times > 1:
            each = warm(turns, label(name, times))
            yield times, each.wall / once.wall / times, each.cpu / once.cpu / times
