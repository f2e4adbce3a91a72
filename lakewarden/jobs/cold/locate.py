"""Finds where a past state of a table can be read: in the table itself, in its cold tier, or nowhere. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lakewarden.errors import UsageError
from lakewarden.model.plain import Plain
from lakewarden.model.table import Snapshot, TableRef, TableView

LIVE, COLD, GONE = "live", "cold", "gone"
# Tiers of a cold snapshot whose files are in an archive: before a recall, and after it.
DEEP, RECALLED = "deep", "recalled"


@dataclass(frozen=True, slots=True)
class SnapshotQuestion:
    """The requested state: exactly one of snapshot id, time or tag."""

    snapshot_id: int | None = None
    as_of: datetime | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.snapshot_id, self.as_of, self.tag)) != 1:
            raise UsageError(
                reason="give exactly one of snapshot, time or tag",
                hint="add --snapshot ID, --as-of TIME or --tag NAME",
            )

    def __str__(self) -> str:
        if self.as_of is not None:
            return f"the table as of {self.as_of:%Y-%m-%d %H:%M:%S} UTC"
        return f"tag {self.tag}" if self.tag is not None else f"snapshot {self.snapshot_id}"


@dataclass(frozen=True, slots=True)
class SnapshotLocation(Plain):
    """The answer. `table` has the state; None if no table has it. `query` can be run unchanged, unless the tier is deep.

    `until` is the end of the recall. `by_tag`: the state can only be read through the tag.
    """

    asked: SnapshotQuestion
    tier: str
    table: TableRef | None
    snapshot_id: int | None
    committed_at: datetime | None
    reason: str
    until: datetime | None = None
    by_tag: bool = False

    JSON_KEYS = "asked tier table snapshot_id committed_at reason until query"

    @property
    def query(self) -> str:
        if self.table is None or self.snapshot_id is None:
            return ""
        if self.by_tag:
            return f"SELECT * FROM {self.table} VERSION AS OF '{self.asked.tag}'"
        return f"SELECT * FROM {self.table} VERSION AS OF {self.snapshot_id}"


class _Unknown(Exception):
    """The answer cannot be known. A guess would be mistaken for a fact."""


def where(
    asked: SnapshotQuestion,
    live: TableView,
    cold: TableView | None,
    expired: Sequence[Snapshot] = (),
    released: Collection[int] = (),
) -> SnapshotLocation:
    """Find the state. `expired` are recorded snapshots of the past: a time that belongs to one of them belongs to no other.

    `released` are snapshots that have also left the cold tier.
    """
    tiers = [(LIVE, live)] + ([(COLD, cold)] if cold is not None else [])
    try:
        snapshot = _wanted(asked, tiers, expired)
    except _Unknown as error:
        return SnapshotLocation(asked, GONE, None, None, None, str(error))
    if snapshot is None:
        return _kept_by_tag(asked, tiers) or SnapshotLocation(
            asked, GONE, None, None, None, _never(asked, live)
        )
    for tier, view in tiers:
        if view.snapshot(snapshot.id) is not None:
            reason = "the table has it" if tier == LIVE else f"it expired and was handed off to {view.ref}"
            return SnapshotLocation(asked, tier, view.ref, snapshot.id, snapshot.committed_at, reason)
    reason = f"snapshot {snapshot.id} expired, and was not handed off"
    if snapshot.id in released:
        reason = (
            f"snapshot {snapshot.id} expired, was handed off, and its retention in the colder tier is over"
        )
    return SnapshotLocation(asked, GONE, None, snapshot.id, snapshot.committed_at, reason)


def _wanted(
    asked: SnapshotQuestion, tiers: Sequence[tuple[str, TableView]], expired: Sequence[Snapshot]
) -> Snapshot | None:
    if asked.tag is not None:
        for _, view in tiers:
            for ref in view.refs:
                if ref.name == asked.tag and ref.kind == "tag":
                    snapshots = (each.snapshot(ref.snapshot_id) for _, each in tiers)
                    return next((snapshot for snapshot in snapshots if snapshot is not None), None)
        return None
    every = {each.id: each for each in expired}
    every |= {each.id: each for _, view in tiers for each in view.snapshots}
    if asked.snapshot_id is not None:
        return every.get(asked.snapshot_id)
    assert asked.as_of is not None
    line = sorted(_main(tiers[0][1], every), key=lambda each: (each.committed_at, each.sequence_number))
    then = [each for each in line if each.committed_at <= asked.as_of]
    if then and len(then) < len(line) and not _follows(line[len(then)], then[-1], tiers[0][1]):
        after = line[len(then)]
        raise _Unknown(
            f"the snapshot that was current then is unknown: snapshots between {then[-1].id} and {after.id} expired without a record"
        )
    return then[-1] if then else None


def _kept_by_tag(asked: SnapshotQuestion, tiers: Sequence[tuple[str, TableView]]) -> SnapshotLocation | None:
    """The answer for a tag with its own copy of the snapshot: it is readable even if no table has the snapshot any more."""
    for tier, view in tiers:
        for ref in view.refs:
            if ref.kind == "tag" and ref.has_copy and ref.name == asked.tag:
                reason = "the snapshot expired, and the tag has a copy of it"
                return SnapshotLocation(asked, tier, view.ref, ref.snapshot_id, None, reason, by_tag=True)
    return None


def _follows(after: Snapshot, before: Snapshot, live: TableView) -> bool:
    """Whether no snapshot was between the two. If ids are consecutive, they show it."""
    return after.parent_id == before.id or (live.in_order and after.id == before.id + 1)


def _main(live: TableView, every: Mapping[int, Snapshot]) -> list[Snapshot]:
    """The snapshots of main, without those of other branches: from the current one back, parent by parent.

    If a parent is unknown, all older snapshots count as part of main, except those of other branches.
    """
    line, each = dict[int, Snapshot](), every.get(live.head() or -1)
    while each is not None and each.id not in line:
        line[each.id] = each
        each = every.get(-1 if each.parent_id is None else each.parent_id)
    if not line:
        return []
    last = min(line.values(), key=lambda each: each.committed_at)
    if last.parent_id is None and not live.in_order:
        return list(line.values())
    others = {ref.snapshot_id for ref in live.refs if ref.kind == "branch"} - set(line)
    older = [
        each for each in every.values() if each.committed_at < last.committed_at and each.id not in others
    ]
    return [*line.values(), *older]


def _never(asked: SnapshotQuestion, live: TableView) -> str:
    if asked.as_of is not None:
        return f"{live.ref} had no known snapshot then"
    return f"neither {live.ref} nor its colder tier has {asked}"
