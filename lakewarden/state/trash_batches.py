"""Records about trashed files: deletion batches (class TrashBatch) with their reason, and files with their
state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

# The cause of files that left a colder tier because its retention ended.
COLD_RETENTION = "cold-retention"
# The cause of metadata files that an operator adopted with the table's folder.
CLAIMED = "claimed"
# The cause of failed loads. Their files wait as long as orphans: they are in the table's folder but were never part of it.
FAILED_LOAD = "failed-load"


class BatchState(StrEnum):
    """A `pending` batch has no effect yet: it is not certain that its files are unneeded."""

    PENDING = "pending"
    ACTIVE = "active"
    VOID = "void"


class FileState(StrEnum):
    """The states of a trashed file. The last four are final and never change."""

    TRASHED = "trashed"
    ERASING = "erasing"
    ERASED = "erased"
    MISSING = "missing"
    KEPT = "kept"
    RESTORED = "restored"


LIVE = (FileState.TRASHED, FileState.ERASING)
RECEIPTS = (FileState.ERASED, FileState.MISSING)


@dataclass(frozen=True, slots=True)
class TrashBatch:
    """A deletion batch: why files of one table are to be deleted. Active since `trashed_at`. The grace period
    starts there, or at `grace_from` if it started again after the database was restored from a backup."""

    id: str
    table: str
    table_uuid: str
    cause: str
    reason: str
    state: BatchState
    made_at: datetime
    trashed_at: datetime | None
    detail: Mapping[str, Any] = field(default_factory=dict)
    grace_from: datetime | None = None

    @property
    def waits_since(self) -> datetime | None:
        """When the grace period started; None while the batch is not active."""
        return None if self.trashed_at is None else max(self.trashed_at, self.grace_from or self.trashed_at)


@dataclass(frozen=True, slots=True)
class Tally:
    """A count of files and their bytes; a file of unknown size adds no bytes."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.files + other.files, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """A deletion batch, and the number of its files in each state."""

    batch: TrashBatch
    tallies: Mapping[FileState, Tally]

    def tally(self, *states: FileState) -> Tally:
        return sum((self.tallies.get(state, Tally()) for state in states), Tally())

    @property
    def live(self) -> Tally:
        """Files that may still be deleted or restored."""
        return self.tally(*LIVE)


@dataclass(frozen=True, slots=True)
class TrashedFile:
    """One file of a deletion batch. After deletion this is its receipt."""

    path: str
    kind: str
    size: int | None
    state: FileState
    batch: TrashBatch
    run_id: str | None
    ended_at: datetime | None
    note: str


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Counts of a restore: restored now, restored before, being deleted right now, and already deleted."""

    files: int
    bytes: int
    already: int
    erasing: int
    gone: int


@dataclass(frozen=True, slots=True)
class TrashedList:
    """A table's deletion batches, each with the time its files may be deleted (None: not active yet), and
    some of their files."""

    batches: tuple[tuple[BatchFiles, datetime | None], ...]
    files: tuple[TrashedFile, ...]
