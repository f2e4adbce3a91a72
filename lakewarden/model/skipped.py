"""What a plan skips and what it marks, added up for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the nouns stay light to import: commands that touch no table never load Arrow
    pass


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something a plan looked at and leaves alone, and why. Alike ones are counted together."""

    what: str
    count: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trashed:
    """A file marked for deletion: still on disk until its grace is over. A size of -1 is not known."""

    path: str
    size: int
    reason: str
