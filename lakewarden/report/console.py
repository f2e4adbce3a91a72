"""Where `lakewarden console` listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text


@dataclass(frozen=True, slots=True)
class ConsoleReport:
    """`listening` has `address`, `docs`, `metrics`, `health`, and `tokens`: whether it asks for them."""

    listening: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.listening)

    def render(self, width: int) -> Text:
        told = self.listening
        who = (
            "a token of [console] is asked for"
            if told["tokens"]
            else "no token is asked for: only this machine reaches it"
        )
        return Text(
            f"listening on {told['address']}, where {who}\n  the REST API is described at {told['docs']}"
        )
