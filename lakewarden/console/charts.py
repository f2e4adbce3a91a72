"""Charts as SVG: lines over time, bars of parts, a timeline of snapshots, graphs of lineage, a week. Pure
functions from values to markup.

Colours and fonts come from the page's style sheet by class, so a chart follows dark and light mode. Every
chart has a title and a description for screen readers; its content is also on the page as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

from lakewarden.formatting import number

_WIDTH, _HEIGHT = 320, 112
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 18


@dataclass(frozen=True, slots=True)
class Line:
    """One number over time. `bound` is where a warning begins; `show` formats a value."""

    title: str
    points: tuple[tuple[datetime, float], ...]
    show: Callable[[float], str]
    bound: float | None = None
    most: float | None = None


def line_chart(line: Line, since: datetime, until: datetime) -> Markup:
    """A line with its area, the scale on the left and the time below. A value applies until the next one, the
    last one until now."""
    if not line.points:
        return _svg(
            "chart",
            _WIDTH,
            _HEIGHT,
            line.title,
            "no numbers yet",
            [_text(160, 60, "no numbers yet", "middle")],
        )
    top = line.most or _nice(max(value for _, value in line.points))
    across = _across(since, until, _LEFT, _WIDTH - _RIGHT)
    places = _stairs([(across(at), _up(value, top)) for at, value in line.points], across(until))
    ends = f"{line.show(line.points[0][1])} at first, {line.show(line.points[-1][1])} now"
    parts = [
        *_scale(top, line.show),
        *_times(since, until, across),
        *_bound(line, top),
        _area(places),
        _tag("polyline", points=_pairs(places), class_="line"),
        _tag("circle", cx=_n(places[-1][0]), cy=_n(places[-1][1]), r=2.5, class_="now"),
    ]
    return _svg("chart", _WIDTH, _HEIGHT, line.title, f"{line.title}: {ends}", parts)


def _stairs(places: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    made = [places[0]]
    for x, y in places[1:]:
        if x == made[-1][0]:
            made[-1] = (x, y)
        else:
            made += [(x, made[-1][1]), (x, y)]
    return [*made, (end, made[-1][1])]


def spark(values: Sequence[float], title: str) -> Markup:
    """A small line without a scale, for a row of a list."""
    if len(values) < 2:
        return Markup("")
    top, step = max(values) or 1, 76 / (len(values) - 1)
    places = [(2 + place * step, 18 - 16 * value / top) for place, value in enumerate(values)]
    return _svg("spark", 80, 20, title, title, [_tag("polyline", points=_pairs(places), class_="line")])


# ------------------------------------------------------------ snapshots


@dataclass(frozen=True, slots=True)
class Mark:
    """A snapshot on the timeline. `kind` decides its colour, `label` names what refers to it: a branch, a
    tag, a pin."""

    at: datetime
    kind: str
    title: str
    label: str = ""
    current: bool = False


def timeline(marks: Sequence[Mark], since: datetime, until: datetime, cut: datetime | None) -> Markup:
    """Snapshots from old to new. Those before `cut`, the start of the retention window, may expire unless
    something keeps them."""
    width, middle = 960, 58
    across = _across(since, until, 12, width - 12)
    parts: list[Markup] = []
    if cut is not None and cut > since:
        edge = min(across(cut), width - 12)
        parts.append(
            _tag(
                "rect",
                _title("older than the window"),
                x=12,
                y=34,
                width=_n(edge - 12),
                height=48,
                class_="past",
            )
        )
        parts.append(_tag("line", x1=_n(edge), x2=_n(edge), y1=30, y2=86, class_="cut"))
        parts.append(_text(edge, 100, f"window begins {cut:%b %d %H:%M}", _side(edge, width), "axis"))
    parts.append(_tag("line", x1=12, x2=width - 12, y1=middle, y2=middle, class_="rail"))
    parts += [_mark(each, across(each.at), middle) for each in marks]
    parts += _labels(marks, across, width)
    parts.append(_text(12, 118, f"{since:%Y-%m-%d %H:%M}", "start", "axis"))
    parts.append(_text(width - 12, 118, f"{until:%Y-%m-%d %H:%M} UTC", "end", "axis"))
    told = f"{number(len(marks))} snapshots from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
    return _svg("timeline", width, 124, "snapshots over time", told, parts)


def _mark(mark: Mark, x: float, middle: float) -> Markup:
    kind = f"mark mark-{mark.kind}" + (" mark-current" if mark.current else "")
    return _tag("circle", _title(mark.title), cx=_n(x), cy=middle, r=7 if mark.current else 5, class_=kind)


def _labels(marks: Sequence[Mark], across: Callable[[datetime], float], width: int) -> list[Markup]:
    """Names above the timeline, alternating on two lines. A name that would overlap the previous one is left
    out; the list below has it."""
    ends, parts = [-1.0, -1.0], list[Markup]()
    for mark in (each for each in marks if each.label):
        text, x = _cut(mark.label, 26), across(mark.at)
        left = {"start": x, "middle": x - 3.2 * len(text), "end": x - 6.4 * len(text)}[_side(x, width)]
        row = next((row for row, end in enumerate(ends) if left > end + 6), None)
        if row is None:
            continue
        ends[row] = left + 6.4 * len(text)
        y = 12 + 15 * row
        parts.append(_tag("line", x1=_n(x), x2=_n(x), y1=y + 4, y2=50, class_="stem"))
        parts.append(_text(x, y, text, _side(x, width), "label"))
    return parts


def _side(x: float, width: int) -> str:
    return "start" if x < 90 else "end" if x > width - 90 else "middle"


# ------------------------------------------------------------ graphs


@dataclass(frozen=True, slots=True)
class Box:
    """A node of a graph: two lines of text, its link, and its kind."""

    id: str
    title: str
    under: str = ""
    href: str = ""
    kind: str = ""


_BOX, _TALL, _GAP_X, _GAP_Y = 190, 40, 46, 12


def graph(boxes: Sequence[Box], edges: Sequence[tuple[str, str]], title: str) -> Markup:
    """Boxes in layers from left to right: each is one layer after the last of its sources."""
    layers = layered([each.id for each in boxes], edges)
    by_id = {each.id: each for each in boxes}
    tallest = max((len(layer) for layer in layers), default=0)
    width = max(len(layers) * (_BOX + _GAP_X) - _GAP_X + 4, _BOX)
    height = max(tallest * (_TALL + _GAP_Y) - _GAP_Y + 4, _TALL)
    places: dict[str, tuple[float, float]] = {}
    for column, layer in enumerate(layers):
        start = (height - len(layer) * (_TALL + _GAP_Y) + _GAP_Y) / 2
        for row, name in enumerate(layer):
            places[name] = (2 + column * (_BOX + _GAP_X), start + row * (_TALL + _GAP_Y))
    lines = [_edge(places[one], places[other]) for one, other in edges if one in places and other in places]
    drawn = [_box(by_id[name], *place) for name, place in places.items()]
    told = (
        f"{title}: {number(len(boxes))} boxes, {number(len(lines))} arrows; the table below has them as text"
    )
    return _svg("graph", width, height, title, told, [*lines, *drawn], fixed=True)


def layered(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Each name in a layer after all its sources. Names in a cycle are placed where they are first met, so
    that this ends."""
    known = set(names)
    parents: dict[str, list[str]] = {name: [] for name in names}
    for one, other in edges:
        if one in known and other in known and one != other:
            parents[other].append(one)
    depth: dict[str, int] = dict.fromkeys(names, 0)
    for _ in names:
        moved = False
        for name in names:
            wanted = max((depth[each] + 1 for each in parents[name]), default=0)
            if depth[name] < wanted < len(names):
                depth[name], moved = wanted, True
        if not moved:
            break
    used = sorted(set(depth.values()))
    return [[name for name in names if depth[name] == level] for level in used]


def _edge(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    x1, y1 = start[0] + _BOX, start[1] + _TALL / 2
    x2, y2 = end[0], end[1] + _TALL / 2
    bend = max(abs(x2 - x1) / 2, 14)
    path = f"M{_n(x1)} {_n(y1)} C{_n(x1 + bend)} {_n(y1)} {_n(x2 - bend)} {_n(y2)} {_n(x2)} {_n(y2)}"
    tip = f"M{_n(x2 - 6)} {_n(y2 - 3.5)} L{_n(x2)} {_n(y2)} L{_n(x2 - 6)} {_n(y2 + 3.5)}"
    return _tag("path", d=path, class_="edge") + _tag("path", d=tip, class_="edge")


def _box(box: Box, x: float, y: float) -> Markup:
    inside = (
        _title(f"{box.title} {box.under}".strip())
        + _tag("rect", x=_n(x), y=_n(y), width=_BOX, height=_TALL, rx=6, class_=f"box {box.kind}".strip())
        + _text(x + 10, y + 17, _tail(box.title, 27), "start", "name")
        + _text(x + 10, y + 31, _cut(box.under, 29), "start", "under")
    )
    return (
        Markup('<a href="{}">{}</a>').format(box.href, inside)
        if box.href
        else Markup("<g>{}</g>").format(inside)
    )


# ------------------------------------------------------------ a week


@dataclass(frozen=True, slots=True)
class Span:
    """A window in which nothing starts."""

    start: datetime
    end: datetime
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A time when something is due."""

    at: datetime
    kind: str
    title: str


def week(first: datetime, now: datetime, spans: Sequence[Span], ticks: Sequence[Tick]) -> Markup:
    """Seven days as rows of 24 hours: windows as bars, due times as ticks, now as a line."""
    left, width, tall, top = 92, 960, 26, 20
    hour = (width - left - 10) / 24
    parts: list[Markup] = []
    for day in range(7):
        begin, y = first + timedelta(days=day), top + day * (tall + 4)
        today = begin.date() == now.date()
        parts.append(_text(left - 10, y + 17, f"{begin:%a %d %b}", "end", "axis today" if today else "axis"))
        parts.append(_tag("rect", x=left, y=y, width=_n(24 * hour), height=tall, class_="day"))
        for span in spans:
            start, end = max(span.start, begin), min(span.end, begin + timedelta(days=1))
            if start < end:
                x, long = _hours(start, begin) * hour, (end - start).total_seconds() / 3600 * hour
                parts.append(
                    _tag(
                        "rect",
                        _title(span.title),
                        x=_n(left + x),
                        y=y,
                        width=_n(long),
                        height=tall,
                        class_=f"span span-{span.kind}",
                    )
                )
        for tick in (each for each in ticks if each.at.date() == begin.date()):
            x = left + _hours(tick.at, begin) * hour
            parts.append(
                _tag(
                    "circle",
                    _title(tick.title),
                    cx=_n(x),
                    cy=y + tall / 2,
                    r=5,
                    class_=f"tick tick-{tick.kind}",
                )
            )
        if today:
            x = left + _hours(now, begin) * hour
            parts.append(_tag("line", x1=_n(x), x2=_n(x), y1=y - 2, y2=y + tall + 2, class_="now-line"))
    parts += [_text(left + at * hour, 13, f"{at:02d}", "middle", "axis") for at in range(0, 25, 3)]
    told = f"{number(len(ticks))} times and {number(len(spans))} windows in the week from {first:%Y-%m-%d}"
    return _svg("week", width, top + 7 * (tall + 4) + 4, "the week, in UTC", told, parts)


def _hours(at: datetime, begin: datetime) -> float:
    return (at - begin).total_seconds() / 3600


# ------------------------------------------------------------ parts


def _svg(
    kind: str,
    width: float,
    height: float,
    title: str,
    told: str,
    parts: Sequence[Markup],
    *,
    fixed: bool = False,
) -> Markup:
    sizes = Markup(' width="{}" height="{}"').format(_n(width), _n(height)) if fixed else Markup("")
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}"{} role="img" aria-label="{}"><desc>{}</desc>{}</svg>'
    ).format(kind, _n(width), _n(height), sizes, title, told, Markup("").join(parts))


def _tag(name: str, inside: Markup | None = None, **attributes: object) -> Markup:
    told = Markup(" ").join(
        Markup('{}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    return Markup("<{} {}>{}</{}>").format(Markup(name), told, inside or Markup(""), Markup(name))


def _title(text: str) -> Markup:
    return Markup("<title>{}</title>").format(text)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "axis") -> Markup:
    return _tag("text", escape(text), x=_n(x), y=_n(y), text_anchor=anchor, class_=kind)


def _across(since: datetime, until: datetime, left: float, right: float) -> Callable[[datetime], float]:
    whole = max((until - since).total_seconds(), 1.0)
    return lambda at: left + (right - left) * min(max((at - since).total_seconds() / whole, 0.0), 1.0)


def _up(value: float, top: float) -> float:
    room = _HEIGHT - _TOP - _BOTTOM
    return _TOP + room * (1 - min(value / top, 1.0))


def _scale(top: float, show: Callable[[float], str]) -> list[Markup]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _up(top * share, top)
        parts.append(_tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_n(y), y2=_n(y), class_="grid"))
        if share != 0.5 or top >= 2:
            parts.append(_text(_LEFT - 5, y + 3.5, show(top * share), "end"))
    return parts


def _times(since: datetime, until: datetime, across: Callable[[datetime], float]) -> list[Markup]:
    form = "%H:%M" if until - since <= timedelta(days=2) else "%b %d"
    middle = since + (until - since) / 2
    sides = ((since, "start"), (middle, "middle"), (until, "end"))
    return [_text(across(at), _HEIGHT - 4, f"{at:{form}}", anchor) for at, anchor in sides]


def _bound(line: Line, top: float) -> list[Markup]:
    if line.bound is None or line.bound > top:
        return []
    y = _up(line.bound, top)
    told = _title(f"a warning begins at {line.show(line.bound)}")
    return [_tag("line", told, x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_n(y), y2=_n(y), class_="bound")]


def _area(places: Sequence[tuple[float, float]]) -> Markup:
    floor = _HEIGHT - _BOTTOM
    corners = [(places[0][0], floor), *places, (places[-1][0], floor)]
    return _tag("polygon", points=_pairs(corners), class_="area")


def _pairs(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in places)


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _nice(value: float) -> float:
    """The next of 1, 2, 5, 10 … at or above the value: a scale that is easy to halve."""
    if value <= 0:
        return 1.0
    step = 1.0
    while step * 10 <= value:
        step *= 10
    while step > value:
        step /= 10
    return next(step * each for each in (1, 2, 4, 5, 6, 8, 10) if step * each >= value)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _tail(text: str, most: int) -> str:
    """The end of a table's name: it says more than the catalog."""
    return text if len(text) <= most else "…" + text[-(most - 1) :]
