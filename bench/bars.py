"""A small bar chart as SVG, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _BAR, _GAP, _PANEL, _TOP, _MOST = 640, 18, 4, 78, 66, 440

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .head { font-size: 15px; font-weight: 600 } .ratio { font-weight: 600 }
  .peer { fill: #9aa4b2 } .ours { fill: #1f7a8c }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .peer { fill: #6b7685 } .ours { fill: #3fb0c6 } }
"""


@dataclass(frozen=True, slots=True)
class Bars:
    """One measure of both tools; less is better."""

    name: str
    unit: str
    peer: float
    ours: float


def draw(title: str, tools: tuple[str, str], panels: Sequence[Bars]) -> str:
    height = _TOP + _PANEL * len(panels)
    body = [_legend(title, tools)]
    body += [_panel(bars, _TOP + _PANEL * number) for number, bars in enumerate(panels)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">\n'
        f" <style>{_STYLE} </style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _legend(title: str, tools: tuple[str, str]) -> str:
    return (
        f' <text class="head" x="0" y="18">{escape(title)}</text>\n'
        f' <rect class="peer" x="0" y="32" width="12" height="12"/><text x="18" y="43">{escape(tools[0])}</text>\n'
        f' <rect class="ours" x="230" y="32" width="12" height="12"/><text x="248" y="43">{escape(tools[1])}</text>'
    )


def _panel(bars: Bars, top: int) -> str:
    most = max(bars.peer, bars.ours)
    rows = [("peer", bars.peer, ""), ("ours", bars.ours, _comparison(bars))]
    drawn = [f' <text x="0" y="{top + 12}">{escape(bars.name)}</text>']
    for number, (kind, value, remark) in enumerate(rows):
        y = top + 18 + number * (_BAR + _GAP)
        width = max(1, round(_MOST * value / most))
        label = f'{_number(value)} {bars.unit}<tspan class="ratio" dx="8">{remark}</tspan>'
        drawn.append(f' <rect class="{kind}" x="0" y="{y}" width="{width}" height="{_BAR}"/>')
        drawn.append(f' <text x="{width + 6}" y="{y + 14}">{label}</text>')
    return "\n".join(drawn)


def _comparison(bars: Bars) -> str:
    """`3.1× faster`, `1.7× larger`; "the same" if the values differ by less than 5 %."""
    less, more = ("faster", "slower") if bars.unit == "s" else ("smaller", "larger")
    factor = max(bars.peer, bars.ours) / min(bars.peer, bars.ours)
    return "the same" if factor < 1.05 else f"{factor:.1f}× {less if bars.ours < bars.peer else more}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
