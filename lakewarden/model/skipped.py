"""What a plan skips and what it marks, added up for people."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.model.plain import Plain
from lakewarden.model.reason import Reason, ReasonKind

# What, how many, their bytes, and why: what planners collect before alike ones are added up.
SkippedRow = tuple[str, int, int, Reason]


@dataclass(frozen=True, slots=True)
class Skipped(Plain):
    """Something a plan looked at and leaves alone, and why. Alike ones are counted together."""

    what: str
    count: int
    bytes: int
    why: Reason

    JSON_KEYS = "what count bytes kind reason"

    @property
    def kind(self) -> ReasonKind:
        return self.why.kind

    @property
    def reason(self) -> str:
        """For people. Code looks at `kind`."""
        return self.why.text

    def row(self) -> SkippedRow:
        return self.what, self.count, self.bytes, self.why


@dataclass(frozen=True, slots=True)
class Trashed:
    """A file marked for deletion: still on disk until its grace is over. A size of -1 is not known."""

    path: str
    size: int
    reason: str
