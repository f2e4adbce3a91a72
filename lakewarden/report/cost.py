"""The monthly cost of a table, by tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from lakewarden.formatting import counted, number, size
from lakewarden.model.plain import Plain
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.jobs.cold.cost import TableCost

_HEADINGS = (
    "tier",
    "class",
    "files",
    "size",
    "a month",
    "of it for small objects",
    "to read it all",
    "to delete it now",
)
_RIGHT: tuple[look.Justify, ...] = ("right", "right", "right", "right", "right", "right")
_ELSEWHERE = "this table is in a local folder: the prices are those of S3 (change them in [prices.CLASS])"


def dollars(amount: float) -> str:
    """Rounded to cents; less than one cent is shown as such."""
    if 0 < abs(amount) < 0.01:
        return "under $0.01"
    return f"-{dollars(-amount)}" if amount < 0 else f"${amount:,.2f}" if amount else "$0"


@dataclass(frozen=True, slots=True)
class CostReport(Plain):
    found: TableCost

    JSON_KEYS = "**found"

    def render(self, width: int) -> RenderableType:
        rows = [
            (
                each.tier,
                each.storage_class,
                number(each.files),
                size(each.bytes),
                dollars(each.month),
                dollars(each.padding_month) if each.padding_month else "–",
                dollars(each.read_once) if each.read_once else "–",
                dollars(each.leave_early) if each.leave_early else "–",
            )
            for each in self.found.tiers
        ]
        return look.stack(
            look.title("cost", self.found.table),
            look.lines(rows, ("left", "left", *_RIGHT), _HEADINGS, wraps=(7,)),
            look.facts(self._facts()),
            look.dim(f"  {_ELSEWHERE}") if self.found.in_folders else None,
        )

    def _facts(self) -> list[tuple[str, str | Text]]:
        next_ = self.found.next
        total: tuple[str, str | Text] = ("together", f"{dollars(self.found.month)} a month")
        if not self.found.snapshots:
            return [total, ("next hand-off", "no snapshot expires that is not handed off")]
        told = f"{counted(self.found.snapshots, 'snapshot')}, {counted(next_.files, 'file')}, {size(next_.bytes)}"
        change = "saves" if next_.saved_month >= 0 else "costs"
        facts: list[tuple[str, str | Text]] = [
            total,
            ("next hand-off", told),
            ("", f"{dollars(next_.requests)} of requests once, then {dollars(next_.month)} a month"),
            ("", f"{change} {dollars(abs(next_.saved_month))} a month once the live files are gone"),
        ]
        if next_.padding_month:
            facts.append(("", f"compacting first would save {dollars(next_.padding_month)} a month of it"))
        return facts
