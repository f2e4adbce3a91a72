"""recall: makes archived files of a cold snapshot readable again for some days.

It can be repeated safely: files that are readable long enough are skipped, and restores in progress are awaited. The archived
copies stay; after the days, the archive removes only the temporary copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakewarden import clock
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.jobs.cold.cost import price_of
from lakewarden.jobs.cold.locate import COLD, DEEP, RECALLED, SnapshotLocation
from lakewarden.model.plain import Plain
from lakewarden.model.prices import ARCHIVED, GIB, Price
from lakewarden.model.run import Progress
from lakewarden.state.cold import ColdFile
from lakewarden.storage.archive import ObjectArchive, StoredObject
from lakewarden.storage.s3_copy import on_s3

# The maximum duration of a restore in hours, by storage class and speed.
SPEEDS = ("Standard", "Bulk")
_HOURS = {
    ("GLACIER", "Standard"): 5,
    ("GLACIER", "Bulk"): 12,
    ("DEEP_ARCHIVE", "Standard"): 12,
    ("DEEP_ARCHIVE", "Bulk"): 48,
}
_POLL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ArchivedFiles:
    """The archived files that a snapshot needs, each with its current state. `files` counts all files it needs."""

    files: int
    archived: tuple[StoredObject, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.archived)

    @property
    def locked(self) -> tuple[StoredObject, ...]:
        return tuple(each for each in self.archived if not each.readable)

    @property
    def restoring(self) -> int:
        return sum(each.restoring for each in self.locked)

    @property
    def until(self) -> datetime | None:
        """Until when all files can be read; None if some cannot, or if nothing is archived."""
        ends = [each.until for each in self.archived if each.until is not None]
        return min(ends) if ends and len(ends) == len(self.archived) else None


def shelf(
    paths: Sequence[str], records: Mapping[str, ColdFile], archive: Callable[[], ObjectArchive]
) -> ArchivedFiles:
    """The archived files of a snapshot. Files recorded in another storage class are not checked."""
    doubtful = [
        path
        for path in paths
        if on_s3(path) and (path not in records or records[path].storage_class in ARCHIVED)
    ]
    if not doubtful:
        return ArchivedFiles(len(paths))
    states = archive().look(doubtful)
    missing = [path for path, each in zip(doubtful, states, strict=True) if each is None]
    if missing:
        raise LakewardenError(
            reason=f"look at {missing[0]}: the cold table names it, but it does not exist",
            hint="restore it from an object version; until then its snapshot cannot be read",
        )
    archived = [state for state in states if state is not None and state.storage_class in ARCHIVED]
    return ArchivedFiles(len(paths), tuple(archived))


def with_archive_state(found: SnapshotLocation, shelf: ArchivedFiles, table: str) -> SnapshotLocation:
    """The same answer with the state of the archived files added. Pure."""
    if found.tier != COLD or not shelf.archived:
        return found
    classes = " and ".join(sorted({each.storage_class for each in shelf.archived}))
    archived_text = f"{len(shelf.archived):,} of its {shelf.files:,} files are in {classes}"
    if not shelf.locked:
        reason = f"{found.reason}; {archived_text}, and were recalled until {shelf.until:%Y-%m-%d %H:%M} UTC"
        return replace(found, tier=RECALLED, reason=reason, until=shelf.until)
    if shelf.restoring == len(shelf.locked):
        reason = f"{found.reason}; {archived_text}, and are being made readable"
    else:
        reason = f"{found.reason}; {archived_text}: `lakewarden recall {table} --snapshot {found.snapshot_id}` makes them readable"
    return replace(found, tier=DEEP, reason=reason)


@dataclass(frozen=True, slots=True)
class Recall(Plain):
    """A recall. `ready_by` is when the archive promises the last file; None if all files can be read.

    `dollars` is the cost of the requests and of retrieving the bytes.
    """

    where: SnapshotLocation
    files: int
    archived: int
    bytes: int
    asked: int
    restoring: int
    readable: int
    ready_by: datetime | None
    until: datetime | None
    dollars: float

    JSON_KEYS = (
        "**where files archived_files=archived archived_bytes=bytes files_asked_for=asked "
        "files_in_progress=restoring files_readable=readable ready ready_by dollars"
    )

    @property
    def ready(self) -> bool:
        return self.readable == self.archived


def recall(
    found: SnapshotLocation,
    look: Callable[[], ArchivedFiles],
    archive: Callable[[], ObjectArchive],
    prices: Mapping[str, Price],
    progress: Progress,
    *,
    table: str,
    days: int,
    speed: str,
    wait: bool,
) -> Recall:
    _check(days, speed)
    before, now = look(), clock.now()
    to_request = _wanted(before, now + timedelta(days=days))
    accepted = archive().recall([each.path for each in to_request], days, speed) if to_request else []
    after = look() if to_request else before
    progress.begin(f"recalling {found.table}", before.bytes)
    try:
        seen = _advance(progress, after, 0)
        while wait and after.locked:
            progress.note(f"{len(after.locked):,} of {len(after.archived):,} files are still in the archive")
            clock.sleep(_POLL_SECONDS)
            after = look()
            seen = _advance(progress, after, seen)
    finally:
        progress.end()
    return Recall(
        with_archive_state(found, after, table),
        after.files,
        len(after.archived),
        after.bytes,
        sum(accepted),
        after.restoring,
        len(after.archived) - len(after.locked),
        _ready_by(after.locked, speed, now),
        after.until,
        cost([each for each, taken in zip(to_request, accepted, strict=True) if taken], prices),
    )


def _check(days: int, speed: str) -> None:
    if days < 1:
        raise UsageError(reason=f"recall for {days} days: at least one", hint="add --days 7")
    if speed not in SPEEDS:
        raise UsageError(reason=f"recall at speed {speed!r}: one of {', '.join(SPEEDS)}", hint="")


def _wanted(shelf: ArchivedFiles, until: datetime) -> list[StoredObject]:
    """The files to request: those not requested yet, and those whose recall ends more than a day (the rounding) too early."""
    early = until - timedelta(days=1)
    return [
        each for each in shelf.archived if not each.restoring and (each.until is None or each.until < early)
    ]


def _advance(progress: Progress, shelf: ArchivedFiles, seen: int) -> int:
    there = shelf.bytes - sum(each.size for each in shelf.locked)
    progress.advance(there - seen)
    return there


def _ready_by(locked: Sequence[StoredObject], speed: str, now: datetime) -> datetime | None:
    hours = [_HOURS[each.storage_class, speed] for each in locked]
    return now + timedelta(hours=max(hours)) if hours else None


def cost(objects: Sequence[StoredObject], prices: Mapping[str, Price]) -> float:
    """The cost of the requests and the retrieved bytes. The temporary copies are billed as STANDARD per day in addition."""
    total = 0.0
    for each in objects:
        price = price_of(each.storage_class, prices)
        total += price.restore_per_1000 / 1000 + each.size / GIB * price.retrieval_gb
    return total
