"""recall: files of a cold snapshot that lie in an archive are made readable again, for some days.

Asking twice changes nothing: what is readable for long enough is left alone, and what the archive is at is waited for. The copies
stay where they are; after the days are over the archive takes back only what it had lent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakewarden import clock
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.jobs.cold.cost import price_of
from lakewarden.jobs.cold.locate import COLD, DEEP, RECALLED, Whereabouts
from lakewarden.model.plain import Plain
from lakewarden.model.prices import ARCHIVED, GIB, Price
from lakewarden.model.progress import Progress
from lakewarden.state.cold import ColdFile
from lakewarden.storage.archive import Archive, Stored
from lakewarden.storage.s3_copy import on_s3

# How long an archive takes at most, in hours, by its class and by how fast it was asked to be.
SPEEDS = ("Standard", "Bulk")
_HOURS = {
    ("GLACIER", "Standard"): 5,
    ("GLACIER", "Bulk"): 12,
    ("DEEP_ARCHIVE", "Standard"): 12,
    ("DEEP_ARCHIVE", "Bulk"): 48,
}
_POLL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Shelf:
    """The files a snapshot needs that lie in an archive, each as it is now. `files` counts all that it needs."""

    files: int
    archived: tuple[Stored, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.archived)

    @property
    def locked(self) -> tuple[Stored, ...]:
        return tuple(each for each in self.archived if not each.readable)

    @property
    def restoring(self) -> int:
        return sum(each.restoring for each in self.locked)

    @property
    def until(self) -> datetime | None:
        """How long all of it can be read; None where some cannot, or nothing is archived."""
        ends = [each.until for each in self.archived if each.until is not None]
        return min(ends) if ends and len(ends) == len(self.archived) else None


def shelf(paths: Sequence[str], records: Mapping[str, ColdFile], archive: Callable[[], Archive]) -> Shelf:
    """What is known to lie elsewhere is not asked for."""
    doubtful = [
        path
        for path in paths
        if on_s3(path) and (path not in records or records[path].storage_class in ARCHIVED)
    ]
    if not doubtful:
        return Shelf(len(paths))
    found = archive().look(doubtful)
    missing = [path for path, each in zip(doubtful, found, strict=True) if each is None]
    if missing:
        raise LakewardenError(
            reason=f"look at {missing[0]}: the cold table names it, and it is not there",
            hint="bring it back from an object version; until then its snapshot cannot be read",
        )
    archived = [each for each in found if each is not None and each.storage_class in ARCHIVED]
    return Shelf(len(paths), tuple(archived))


def shelved(found: Whereabouts, shelf: Shelf, table: str) -> Whereabouts:
    """The same, with what an archive says about it. Pure."""
    if found.tier != COLD or not shelf.archived:
        return found
    classes = " and ".join(sorted({each.storage_class for each in shelf.archived}))
    told = f"{len(shelf.archived):,} of its {shelf.files:,} files lie in {classes}"
    if not shelf.locked:
        reason = f"{found.reason}; {told}, and were recalled until {shelf.until:%Y-%m-%d %H:%M} UTC"
        return replace(found, tier=RECALLED, reason=reason, until=shelf.until)
    if shelf.restoring == len(shelf.locked):
        reason = f"{found.reason}; {told}, and are being made readable"
    else:
        reason = f"{found.reason}; {told}: `lakewarden recall {table} --snapshot {found.snapshot_id}` makes them readable"
    return replace(found, tier=DEEP, reason=reason)


@dataclass(frozen=True, slots=True)
class Recall(Plain):
    """What was asked of the archive. `ready_by` is when it promises the last of it; None where all of it can be read.

    `dollars` is what asking, and reading it out of the archive, costs.
    """

    where: Whereabouts
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
    found: Whereabouts,
    look: Callable[[], Shelf],
    archive: Callable[[], Archive],
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
    wanted = _wanted(before, now + timedelta(days=days))
    asked = archive().recall([each.path for each in wanted], days, speed) if wanted else []
    after = look() if wanted else before
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
        shelved(found, after, table),
        after.files,
        len(after.archived),
        after.bytes,
        sum(asked),
        after.restoring,
        len(after.archived) - len(after.locked),
        _ready_by(after.locked, speed, now),
        after.until,
        cost([each for each, taken in zip(wanted, asked, strict=True) if taken], prices),
    )


def _check(days: int, speed: str) -> None:
    if days < 1:
        raise UsageError(reason=f"recall for {days} days: at least one", hint="add --days 7")
    if speed not in SPEEDS:
        raise UsageError(reason=f"recall at speed {speed!r}: one of {', '.join(SPEEDS)}", hint="")


def _wanted(shelf: Shelf, until: datetime) -> list[Stored]:
    """What nobody has asked for, and what would be taken back too early by more than the day archives round to."""
    early = until - timedelta(days=1)
    return [
        each for each in shelf.archived if not each.restoring and (each.until is None or each.until < early)
    ]


def _advance(progress: Progress, shelf: Shelf, seen: int) -> int:
    there = shelf.bytes - sum(each.size for each in shelf.locked)
    progress.advance(there - seen)
    return there


def _ready_by(locked: Sequence[Stored], speed: str, now: datetime) -> datetime | None:
    hours = [_HOURS[each.storage_class, speed] for each in locked]
    return now + timedelta(hours=max(hours)) if hours else None


def cost(objects: Sequence[Stored], prices: Mapping[str, Price]) -> float:
    """Asking for them, and the bytes that come out. The copies an archive lends are billed as STANDARD by the day besides."""
    total = 0.0
    for each in objects:
        price = price_of(each.storage_class, prices)
        total += price.restore_per_1000 / 1000 + each.size / GIB * price.retrieval_gb
    return total
