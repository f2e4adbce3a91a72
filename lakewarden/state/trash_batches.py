"""Words about files that are to go: a verdict says why, a trashed file is under one from marked to gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

# The cause of what left a colder tier by its own retention.
COLD_RETENTION = "cold-retention"
# The cause of metadata that an operator claimed with the table's folder.
CLAIMED = "claimed"
# The cause whose files wait as long as an orphan, because they lie in the table's folder without ever being part of it.
FAILED_LOAD = "failed-load"


class VerdictState(StrEnum):
    """`pending` counts for nothing yet: what makes the files unneeded has not happened for certain."""

    PENDING = "pending"
    ACTIVE = "active"
    VOID = "void"


class FileState(StrEnum):
    """From marked to gone. The last four are final: nothing moves a row out of them."""

    TRASHED = "trashed"
    ERASING = "erasing"
    ERASED = "erased"
    MISSING = "missing"
    KEPT = "kept"
    RESTORED = "restored"


LIVE = (FileState.TRASHED, FileState.ERASING)
RECEIPTS = (FileState.ERASED, FileState.MISSING)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why files of one table are to go. In force since `trashed_at`. Its grace runs from there, or from `grace_from` where it
    started again because the database had been restored from a backup."""

    id: str
    table: str
    table_uuid: str
    cause: str
    reason: str
    state: VerdictState
    made_at: datetime
    trashed_at: datetime | None
    detail: Mapping[str, Any] = field(default_factory=dict)
    grace_from: datetime | None = None

    @property
    def waits_since(self) -> datetime | None:
        """When its grace began; None while it is not in force."""
        return None if self.trashed_at is None else max(self.trashed_at, self.grace_from or self.trashed_at)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many files and bytes; a file whose size is not known adds none."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.files + other.files, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Standing:
    """A verdict, and how many of its files are where."""

    verdict: Verdict
    tallies: Mapping[FileState, Tally]

    def tally(self, *states: FileState) -> Tally:
        return sum((self.tallies.get(state, Tally()) for state in states), Tally())

    @property
    def live(self) -> Tally:
        """What may still be deleted, or restored."""
        return self.tally(*LIVE)


@dataclass(frozen=True, slots=True)
class TrashedFile:
    """One file under a verdict; of a file that is gone it is the receipt."""

    path: str
    kind: str
    size: int | None
    state: FileState
    verdict: Verdict
    run_id: str | None
    ended_at: datetime | None
    note: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back, what was back already, and what cannot: files a run is deleting at this moment, files that are gone."""

    files: int
    bytes: int
    already: int
    erasing: int
    gone: int


@dataclass(frozen=True, slots=True)
class TrashedList:
    """A table's verdicts, each with the moment its files may be deleted (None: not in force yet), and files of them."""

    verdicts: tuple[tuple[Standing, datetime | None], ...]
    files: tuple[TrashedFile, ...]
