"""What a plan skips and what it puts in the trash, added up for people."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.model.plain import Plain
from lakewarden.model.reason import Reason, ReasonKind

# The noun, how many, their bytes, and why. Planners collect these rows and then add up equal ones.
SkippedRow = tuple[str, int, int, Reason]


@dataclass(frozen=True, slots=True)
class Skipped(Plain):
    """Things that a plan looked at and leaves unchanged, and why. Equal ones are counted together."""

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
class FileToTrash:
    """A file marked for deletion. It stays on disk until its grace period is over. Size -1: unknown."""

    path: str
    size: int
    reason: str
