"""What every report offers, whoever shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType


class Report(Protocol):
    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints. Fields are a contract: they may be added to, never renamed."""

    def render(self, width: int) -> RenderableType:
        """The same for people, for a screen of this many columns. Pure: it prints nothing itself."""
