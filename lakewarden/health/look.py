"""The result of one look at the whole fleet."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.model.plain import Plain


@dataclass(frozen=True, slots=True)
class Sweep(Plain):
    """One look at the whole fleet. `behind` is the age of the oldest earlier look at any table."""

    tables: int
    changed: int
    failed: int
    forgotten: int
    raised: int
    cleared: int
    seconds: float
    behind: float

    JSON_KEYS = (
        "tables changed failed forgotten warnings_raised=raised warnings_cleared=cleared seconds:3 "
        "behind_seconds=behind:1"
    )
