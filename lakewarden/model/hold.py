"""Holds: reasons why something must stay."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class HoldKind(StrEnum):
    """Why something must stay. The first five keep snapshots; the last two keep files that no snapshot names yet."""

    PIN = "pin"
    TAG = "tag"
    BRANCH = "branch"
    STREAM = "stream"
    CONSUMER = "consumer"
    WRITER = "writer"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason why something must stay, and its holder. `until` None: forever, or until it is removed."""

    kind: HoldKind
    name: str
    holder: str
    purpose: str = ""
    snapshot_id: int | None = None
    paths: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    chain: tuple[int, ...] = ()  # snapshots from a branch's head down to it
    since: datetime | None = None
    until: datetime | None = None
