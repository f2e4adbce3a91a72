"""The interface of every report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType


class Report(Protocol):
    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints. Its keys are a contract: keys may be added, never renamed."""

    def render(self, width: int) -> RenderableType:
        """The same for people, for a screen of `width` columns. It prints nothing itself."""
