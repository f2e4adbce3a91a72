"""Is this machine ready? One line per check, with what to do where one fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"ok": "bold green", "fail": "bold red", "skipped": "dim"}


@dataclass(frozen=True, slots=True)
class Check:
    """`state` is ok, fail or skipped (something it needs failed); `found` is what was seen, `advice` what to do."""

    name: str
    state: str
    found: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "found": self.found, "advice": self.advice}

    def render(self) -> RenderableType:
        rows: list[tuple[str | Text, ...]] = [
            (Text(f"{self.state:7}", style=_STYLES[self.state]), f"{self.name:18}", self.found)
        ]
        if self.advice:
            rows.append(("", "", Text(f"→ {self.advice}", style="yellow")))
        return look.lines(rows, look.left(3), indent=0)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        return all(check.state != "fail" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {"healthy": self.healthy, "checks": [check.to_dict() for check in self.checks]}

    def render(self, width: int) -> RenderableType:
        return look.stack(*(check.render() for check in self.checks), self.verdict())

    def verdict(self) -> Text:
        failed = [check.name for check in self.checks if check.state == "fail"]
        if not failed:
            return Text("everything is ready", style="bold green")
        return Text(f"not ready: {', '.join(failed)}", style="bold red")
