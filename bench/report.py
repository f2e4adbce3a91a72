"""Shows measurements: lines during the run, tables, JSON, a chart, and the figures in the docs page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from bench.bars import Bars, draw
from bench.findings import Check, Found, Grid, Report, Turn, Warm, warm
from bench.tools import MODERN, OURS, PEER, Phases

_TITLES = {PEER: "Iceberg", OURS: "Lakewarden", MODERN: "Lakewarden, modern encodings"}
_END = "<!-- end of figures -->"


def line(turn: Turn) -> str:
    """One turn, printed when it ends."""
    cost, made = turn.cost, turn.made
    return (
        f"  {turn.round} {turn.tool:<10} {cost.wall:7.2f} s  {cost.cpu:7.2f} s CPU"
        f"  heap {_mb(cost.jvm_heap)}  JVM {_mb(cost.jvm_rss)}  workers {_mb(cost.workers_rss)}"
        f"  {made.files} files {_mb(made.bytes)}  rows equal{_phases(turn.told.phases) if turn.told else ''}"
    )


def _phases(phases: Phases) -> str:
    return (
        f"\n               planning {phases.planning:.2f}, preparing {phases.preparing:.2f}, writing {phases.writing:.2f}"
        f" ({phases.task_cpu:.2f} CPU in tasks), last commit {phases.last_commit:.2f}; {phases.commits} commits"
    )


def grids(found: Found) -> list[Grid]:
    """The tables of a case: costs of the tools, other observations, and the goals."""
    shown = [_costs(found), *(_titled(grid) for grid in found.grids)]
    return [*shown, _goals(found.checks)] if found.checks else shown


def _costs(found: Found) -> Grid:
    head = ("", "wall", "CPU", "wall ratio", "CPU ratio", "Java heap", "Python workers", "largest", "outputs")
    warmed = {tool: warm(found.turns, tool) for tool in found.tools()}
    return Grid(head, tuple(_cost(tool, each, warmed.get(PEER)) for tool, each in warmed.items()))


def _cost(tool: str, each: Warm, peer: Warm | None) -> tuple[str, ...]:
    """A ratio is the other tool's figure divided by this tool's. A turn with different work (for example one
    day of the table) has none."""
    ours, same_work = tool != PEER, tool in (OURS, MODERN)
    ratios = (
        (f"{peer.wall / each.wall:.2f}", f"{peer.cpu / each.cpu:.2f}") if peer and same_work else ("", "")
    )
    workers = (_mb(each.workers_rss), _mb(each.worker_rss)) if ours else ("", "")
    left = f", {each.deletes} delete files" if each.deletes else ""
    return (
        _TITLES.get(tool, tool),
        _seconds(each.wall),
        _seconds(each.cpu),
        *ratios,
        _mb(each.jvm_heap),
        *workers,
        f"{each.files} files, {_mb(each.bytes)}{left}",
    )


def _titled(grid: Grid) -> Grid:
    return Grid(tuple(_TITLES.get(name, name) for name in grid.head), grid.rows)


def _goals(checks: Iterable[Check]) -> Grid:
    return Grid(
        ("figure", "found", "goal", ""),
        tuple((each.name, _figure(each.found, each.unit), _goal(each), _result(each)) for each in checks),
    )


def _goal(check: Check) -> str:
    least = None if check.least is None else _figure(check.least, check.unit)
    most = None if check.most is None else _figure(check.most, check.unit)
    if least and most:
        return f"{least} to {most}"
    return f"at least {least}" if least else f"at most {most}" if most else ""


def _result(check: Check) -> str:
    if check.least is None and check.most is None:
        return ""
    return "met" if check.met else "missed"


def text(report: Report) -> str:
    """The figures of the warm rounds for a terminal."""
    by_round = [f"round {number}: {ratio:.2f}" for number, ratio in report.found.ratios().items()]
    ratios = [f"  wall ratio by round: {', '.join(by_round)}"] if by_round else []
    tables = [_aligned(grid) for grid in grids(report.found)]
    return "\n".join([report.case, _setting(report), *tables, *ratios])


def _aligned(grid: Grid) -> str:
    rows = [grid.head, *grid.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(grid.head))]
    return "\n".join(
        "  "
        + "  ".join(
            cell.ljust(width) if not n else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def markdown(report: Report) -> str:
    """The figures of the warm rounds for the docs page."""
    return "\n\n".join([_setting(report), *(_table(grid) for grid in grids(report.found))])


def _table(grid: Grid) -> str:
    rows = [grid.head, tuple("---" for _ in grid.head), *grid.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _setting(report: Report) -> str:
    machine, start = report.machine, report.found.start
    rounds = max(turn.round for turn in report.found.turns)
    deletes = f", {start.deletes} delete files" if start.deletes else ""
    return (
        f"{start.files} files, {_mb(start.bytes)}{deletes}; {machine.cores} cores,"
        f" {machine.heap_bytes / 1e9:.0f} GB heap; Spark {machine.spark}, Iceberg {machine.iceberg}, pyarrow {machine.pyarrow};"
        f" {'one round' if rounds == 1 else f'median of {rounds - 1} warm round' + ('s' if rounds > 2 else '')}."
    )


def with_figures(page: str, case: str, figures: str) -> str:
    """The page with the text between the case's two markers replaced."""
    begin = f"<!-- figures of {case}: written by python -m bench -->"
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(_END)
    if not (found and end):
        raise ValueError(f"the page needs the lines {begin} and {_END}")
    return f"{before}{begin}\n{figures}\n{end}{after}"


def to_json(report: Report) -> str:
    found = report.found
    summary = {
        "wall_ratio_by_round": {str(number): round(ratio, 2) for number, ratio in found.ratios().items()},
        "warm": {tool: asdict(warm(found.turns, tool)) for tool in found.tools()},
        "goals": [{**asdict(check), "met": check.met} for check in found.checks],
    }
    return json.dumps(_rounded({"summary": summary, **asdict(report)}), indent=1) + "\n"


def chart(documents: Iterable[str]) -> str:
    """Wall time of both tools, one panel per case that compares them, from the output of `to_json`."""
    reports = [json.loads(each) for each in documents]
    pairs = [each for each in reports if {PEER, OURS} <= each["summary"]["warm"].keys()]
    scale, machine = pairs[0]["scale"], pairs[0]["machine"]
    walls = [
        (each["case"], *(each["summary"]["warm"][tool]["wall"] for tool in (PEER, OURS))) for each in pairs
    ]
    return draw(
        f"Wall time, {scale['rows'] / 1e6:g} M rows in {scale['files']} files, {machine['cores']} cores",
        ("Iceberg rewrite_data_files", "Lakewarden"),
        [Bars(case, "s", peer, ours) for case, peer, ours in walls],
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def _figure(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
    return f"{number} {unit}".rstrip()


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"


def _rounded(value: Any) -> Any:
    """Rounded to milliseconds; finer values are not repeatable."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
