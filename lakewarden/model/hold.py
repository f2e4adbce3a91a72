"""Holds: reasons why something must stay."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the nouns stay light to import: commands that touch no table never load Arrow
    pass


class HoldKind(StrEnum):
    """Why something must stay. The first five keep snapshots, the last two keep files no snapshot names yet."""

    PIN = "pin"
    TAG = "tag"
    BRANCH = "branch"
    STREAM = "stream"
    CONSUMER = "consumer"
    WRITER = "writer"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason something must stay, and who gave it. `until` None: for ever, or until it is taken away."""

    kind: HoldKind
    name: str
    holder: str
    purpose: str = ""
    snapshot_id: int | None = None
    paths: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    chain: tuple[int, ...] = ()  # snapshots that lead from a branch's head to it
    since: datetime | None = None
    until: datetime | None = None
