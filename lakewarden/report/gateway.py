"""Where `lakewarden gateway` listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from lakewarden.gateway.server import Listening


@dataclass(frozen=True, slots=True)
class GatewayReport:
    listening: Listening

    def to_dict(self) -> dict[str, Any]:
        told = self.listening
        return {
            "address": told.address,
            "catalog": told.catalog,
            "upstream": told.upstream,
            "metrics": f"{told.address}/metrics",
            "health": f"{told.address}/health",
        }

    def render(self, width: int) -> Text:
        told = self.listening
        return Text(
            f"listening on {told.address} for catalog {told.catalog}, which is at {told.upstream}\n"
            f"  clients take {told.address} as the catalog's uri; counts are at {told.address}/metrics"
        )
