"""Which pictures a page has: what is known, laid out for `charts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from markupsafe import Markup

from lakewarden.config.schema import HealthConfig
from lakewarden.console.charts import Box, Line, Mark, graph, line_chart, timeline
from lakewarden.console.pages.table import TablePage, kind_of
from lakewarden.formatting import counted, moment, number, size
from lakewarden.lineage.audit import Downstream
from lakewarden.state.health import Point

_BOXES = 60


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    newest: str
    svg: Markup


def _count(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 10_000 else f"{value:,g}"


def _short_size(value: float) -> str:
    return size(value).replace(".0 ", " ")


_Pick = Callable[[Point], float]
_FIGURES: tuple[tuple[str, _Pick, Callable[[float], str]], ...] = (
    ("score", lambda each: each.score, _count),
    ("data files", lambda each: each.numbers.files, _count),
    ("small files", lambda each: each.numbers.small_files, _count),
    ("delete files", lambda each: each.numbers.delete_files, _count),
    ("snapshots", lambda each: each.numbers.snapshots, _count),
    ("data", lambda each: each.numbers.bytes, _short_size),
)


@dataclass(frozen=True, slots=True)
class TablePictures:
    page: TablePage
    limits: HealthConfig

    def figures(self) -> list[Figure]:
        points, bounds = self.page.points, {"small files": float(self.limits.small_files)}
        made = []
        for title, pick, show in _FIGURES:
            values = tuple((each.at, float(pick(each))) for each in points)
            most = 100.0 if title == "score" else None
            line = Line(title, values, show, bounds.get(title), most)
            newest = show(values[-1][1]) if values else "–"
            made.append(Figure(title, newest, line_chart(line, self.page.since, self.page.now)))
        return made

    def rows(self, most: int = 12) -> list[tuple[datetime, list[str]]]:
        """The same as numbers, the newest first."""
        points = self.page.points[:: -max(1, len(self.page.points) // most)]
        return [(each.at, [show(pick(each)) for _, pick, show in _FIGURES]) for each in points]

    def headings(self) -> list[str]:
        return [title for title, _, _ in _FIGURES]

    def timeline(self) -> Markup | None:
        portrait = self.page.portrait
        if portrait is None or not portrait.snapshots:
            return None
        names: dict[int, list[str]] = {}
        for ref in portrait.refs:
            names.setdefault(ref.snapshot_id, []).append(ref.name)
        for pin in self.page.pins.pins:
            names.setdefault(pin.snapshot_id, []).append(f"pin {pin.holder}")
        lines = sorted(portrait.snapshots, key=lambda each: each.at)
        marks = [
            Mark(
                each.at,
                kind_of(each),
                f"{each.id}, {moment(each.at)}, {each.operation}: {each.kept or 'nothing keeps it: the next expire drops it'}",
                ", ".join(names.get(each.id, ())),
                each.current,
            )
            for each in lines
        ]
        since = marks[0].at - (self.page.now - marks[0].at) / 30
        return timeline(marks, since, self.page.now, self._window())

    def _window(self) -> datetime | None:
        policy = self.page.policy
        return None if policy is None else self.page.now - policy.hours("snapshot_retention_hours")

    def kin(self) -> Markup | None:
        kin = self.page.kin
        if not kin.edges:
            return None
        boxes = [
            *(_table(name, f"in {counted(count, 'commit')}") for name, count in kin.sources),
            Box(kin.table, kin.table, "this table", "", "here"),
            *(_table(name, f"in {counted(count, 'commit')}") for name, count in kin.results),
        ]
        # A table may be both: it is drawn once.
        unique = {each.id: each for each in boxes}
        return graph(list(unique.values()), kin.edges, f"where the data of {kin.table} came from and went")


def _table(name: str, under: str) -> Box:
    return Box(name, name, under, f"/tables/{quote(name, safe='')}")


def downstream_graph(found: Downstream) -> Markup:
    """The nearest snapshots; the table beside it has all."""
    start = found.start
    known = found.entry.operation if found.entry else "unknown"
    boxes = [Box(str(start), start.table, f"{start.snapshot_id} {known}", _to(start.table), "here")]
    boxes += [
        Box(
            str(each.node),
            each.node.table,
            f"{each.node.snapshot_id} {each.entry.operation}",
            _to(each.node.table),
        )
        for each in found.affected[: _BOXES - 1]
    ]
    edges = [(str(one), str(other)) for one, other in found.edges]
    more = len(found.affected) - (_BOXES - 1)
    told = f"what was made from {start}" + (f" (and {number(more)} more)" if more > 0 else "")
    return graph(boxes, edges, told)


def _to(table: str) -> str:
    return f"/tables/{quote(table, safe='')}"
