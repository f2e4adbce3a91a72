"""The interface of every report, and the few shapes and colours of all reports on a terminal.

Text is always passed as `Text`, never as markup: a partition or a master may be called `[red]` or `local[*]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType


class Report(Protocol):
    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints. Its keys are a contract: keys may be added, never renamed."""

    def render(self, width: int) -> RenderableType:
        """The same for people, for a screen of `width` columns. It prints nothing itself."""


Justify = Literal["left", "right"]

STATE_STYLES = {
    "done": "bold green",
    "nothing-to-do": "green",
    "running": "cyan",
    "partial": "bold yellow",
    "lost-race": "bold yellow",
    "refused": "bold yellow",
    "interrupted": "bold yellow",
    "unknown": "bold red",
    "failed": "bold red",
    "proven": "bold green",
    "cannot-tell": "bold yellow",
    "differs": "bold red",
}


def state(name: str) -> Text:
    return Text(name, style=STATE_STYLES.get(name, ""))


def title(first: str, second: str) -> Text:
    """`compact  lake.db.events`"""
    return Text.assemble((first, "bold"), "  ", (second, "bold cyan"))


def dim(text: str) -> Text:
    return Text(text, style="dim")


def command(text: str) -> Text:
    return Text(text, style="cyan")


def facts(rows: Iterable[tuple[str, str | Text]], indent: int = 2) -> Table:
    """Labels and values, one pair per line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(Text(" " * indent + label, style="dim"), _text(value))
    return grid


def left(columns: int) -> tuple[Justify, ...]:
    return tuple("left" for _ in range(columns))


def lines(
    rows: Sequence[Sequence[str | Text]],
    justify: Sequence[Justify],
    headings: Sequence[str] = (),
    indent: int = 2,
    wraps: Sequence[int] = (),
) -> Table:
    """Aligned columns. Those in `wraps` (by default the last) share the remaining width; the others never wrap."""
    table = Table(
        box=None,
        show_header=bool(headings),
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="dim",
        show_edge=False,
    )
    wide = wraps or (len(justify) - 1,)
    for index, side in enumerate(justify):
        heading = headings[index] if headings else ""
        table.add_column(
            Text(" " * indent + heading if index == 0 else heading),
            justify=side,
            no_wrap=index not in wide,
            overflow="fold" if index in wide else "ellipsis",
        )
    for row in rows:
        first, *rest = (_text(each) for each in row)
        table.add_row(Text(" " * indent) + first, *rest)
    return table


def _text(value: str | Text) -> Text:
    return Text(value) if isinstance(value, str) else value


def stack(*parts: RenderableType | None) -> RenderableType:
    """The parts that are not None, one below the other."""
    from rich.console import Group

    return Group(*(part for part in parts if part is not None))
