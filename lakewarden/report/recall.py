"""What was asked of an archive, and when a snapshot can be read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import counted, duration, moment, size
from lakewarden.jobs.cold.recall import Recall
from lakewarden.report import look
from lakewarden.report.cost import dollars

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class RecallReport:
    table: str
    found: Recall
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {"of": self.table, **self.found.to_dict(), "told": self.told()}

    def told(self) -> str:
        """In one sentence, what a reader wants to know."""
        found = self.found
        if not found.archived:
            return "nothing to recall: every file it needs can be read now"
        if found.ready_by is None:
            return "it can be read now" + ("" if found.until is None else f", until {moment(found.until)}")
        left = duration((found.ready_by - self.now).total_seconds())
        return f"it can be read in {left} at the latest, by {moment(found.ready_by)}"

    def render(self, width: int) -> RenderableType:
        found, where = self.found, self.found.where
        rows: list[tuple[str, str | Text]] = [("asked for", str(where.asked)), ("tier", where.tier)]
        if found.archived:
            archived = f"{counted(found.archived, 'file')} of {found.files:,}, {size(found.bytes)}"
            rows.append(("archived", archived))
            told = f"{found.readable:,} readable, {found.restoring:,} on their way, {found.asked:,} asked for now"
            rows.append(("of these", told))
        if found.asked:
            rows.append(("costs", f"{dollars(found.dollars)} once"))
        rows.append(("result", self.told()))
        rows.append(("query", where.query))
        return look.stack(look.title("recall", self.table), look.facts(rows))
