"""What a table costs a month, tier by tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.jobs.cost import TableCost
from lakewarden.report import look
from lakewarden.words import counted, number, size

if TYPE_CHECKING:
    from rich.console import RenderableType


def dollars(amount: float) -> str:
    """To the cent, or to two digits that count where it is less."""
    if amount < 0:
        return f"-{dollars(-amount)}"
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.2g}" if amount else "$0"


@dataclass(frozen=True, slots=True)
class CostReport:
    found: TableCost

    def to_dict(self) -> dict[str, Any]:
        return self.found.to_dict()

    def render(self, width: int) -> RenderableType:
        rows = [
            (
                each.tier,
                each.storage_class,
                number(each.files),
                size(each.bytes),
                f"{dollars(each.month)} a month",
                f"{dollars(each.padding_month)} of it for small objects" if each.padding_month else "",
                f"{dollars(each.read_once)} to read all of it" if each.read_once else "",
                f"{dollars(each.leave_early)} if it were deleted now" if each.leave_early else "",
            )
            for each in self.found.tiers
        ]
        return look.stack(
            look.title("cost", self.found.table),
            look.lines(rows, ("left", "left", "right", "right", "right", "left", "left", "left")),
            look.facts(self._facts()),
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
