"""Where a past state of a table can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from lakewarden.formatting import moment
from lakewarden.jobs.cold.locate import GONE, SnapshotLocation
from lakewarden.model.plain import Plain
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class WhereReport(Plain):
    table: str
    found: SnapshotLocation

    JSON_KEYS = "of=table **found"

    def render(self, width: int) -> RenderableType:
        found = self.found
        rows: list[tuple[str, str | Text]] = [("asked for", str(found.asked)), ("tier", found.tier)]
        if found.table is not None:
            rows.append(("table", str(found.table)))
        if found.snapshot_id is not None and found.committed_at is not None:
            rows.append(("snapshot", f"{found.snapshot_id}, committed {moment(found.committed_at)}"))
        rows.append(("why", found.reason))
        if found.until is not None:
            rows.append(("readable", f"until {moment(found.until)}"))
        if found.tier != GONE:
            rows.append(("query", found.query))
        return look.stack(look.title("where", self.table), look.facts(rows))
