"""Shows what another policy would have changed: replays the table's own commits under both policies, side by
side. Pure.

It is a model and lists its simplifications: commits are those still in snapshots and the archive, small files
wait in one place for the whole table, refs and holds keep nothing. Both sides are computed the same way, so the
difference is meaningful.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from lakewarden.health.table_details import TableDetails
from lakewarden.lineage.summary import told_number
from lakewarden.model.plain import Plain
from lakewarden.policy.resolve import Policy
from lakewarden.policy.values import show
from lakewarden.state.health import Numbers, Point
from lakewarden.state.history import ArchivedSnapshot

_PASS = timedelta(hours=1)
_POINTS = 90
_KEYS = (
    "snapshot_expiry_enabled",
    "snapshot_retention_hours",
    "snapshot_min_retained",
    "snapshot_max_retained",
    "delete_grace_hours",
    "rewrite_enabled",
    "rewrite_small_bytes",
    "rewrite_target_bytes",
    "rewrite_min_input_files",
)


@dataclass(frozen=True, slots=True)
class WriterCommit:
    """What one commit of the table's writers added and removed. Rewrites are not included: the replay makes its own."""

    at: datetime
    added_files: int
    added_bytes: int
    removed_bytes: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of the curves. `rewritten_bytes` is what compactions read since the previous point."""

    at: datetime
    snapshots: int
    small_files: int
    rewritten_bytes: int
    storage_bytes: int


@dataclass(frozen=True, slots=True)
class PolicyCurves(Plain):
    """The curves under one policy, and their totals."""

    moments: tuple[CurvePoint, ...]
    snapshots: int  # at the end
    small_files: int
    rewritten_bytes_per_day: float
    storage_bytes: int
    storage_bytes_peak: int

    JSON_KEYS = (
        "snapshots small_files rewritten_bytes_per_day storage_bytes storage_bytes_peak series=moments"
    )


@dataclass(frozen=True, slots=True)
class KeyChange:
    key: str
    old: str
    new: str
    replayed: bool  # whether the curves depend on it


@dataclass(frozen=True, slots=True)
class WhatIf(Plain):
    table: str
    since: datetime
    until: datetime
    commits: int
    changes: tuple[KeyChange, ...]
    old: PolicyCurves
    new: PolicyCurves
    notes: tuple[str, ...]


def commits_of(
    portrait: TableDetails, archived: Sequence[ArchivedSnapshot], since: datetime
) -> tuple[WriterCommit, ...]:
    """The commits of writers that are still known, the oldest first; each once, even if it is in both sources."""
    commits = {
        (each.id, each.at): WriterCommit(each.at, each.added_files, each.added_bytes, each.removed_bytes)
        for each in portrait.snapshots
        if not each.run_id
    }
    for row in archived:
        summary = row.snapshot.summary
        if "lineage.run_id" not in summary:
            numbers = (told_number(summary, key) for key in ("added-data-files", "added-files-size", "removed-files-size"))  # fmt: skip
            commits[row.snapshot.id, row.snapshot.committed_at] = WriterCommit(
                row.snapshot.committed_at, *numbers
            )
    return tuple(sorted((each for each in commits.values() if each.at >= since), key=lambda each: each.at))


def replay(
    table: str,
    commits: Sequence[WriterCommit],
    history: Sequence[Point],
    numbers: Numbers,
    old: Policy,
    new: Policy,
    since: datetime,
    until: datetime,
) -> WhatIf:
    """Replay both policies on the same commits, from the first known commit on."""
    begins = max(since, commits[0].at) if commits else since
    times = _times(begins, until)
    changed = tuple(
        KeyChange(key, show(old[key]), show(new[key]), key in _KEYS)
        for key in old.values
        if old[key] != new[key]
    )
    return WhatIf(
        table,
        begins,
        until,
        len(commits),
        changed,
        _replayed(commits, numbers, old, times),
        _replayed(commits, numbers, new, times),
        tuple(_notes(commits, history, changed, since, begins)),
    )


def _replayed(
    commits: Sequence[WriterCommit], numbers: Numbers, policy: Policy, times: Sequence[datetime]
) -> PolicyCurves:
    rewrites, small = _compact(commits, policy, times)
    gone = [(each.at, each.removed_bytes) for each in commits if each.removed_bytes] + rewrites
    moments, before = [], times[0] - timedelta(days=1)
    for place, at in enumerate(times):
        moments.append(
            CurvePoint(
                at,
                _kept(commits, policy, at),
                small[place],
                sum(bytes_ for when, bytes_ in rewrites if before < when <= at),
                _live(commits, numbers, at) + _lingering(gone, policy, at),
            )
        )
        before = at
    days = max((times[-1] - times[0]).total_seconds() / 86400, 1 / 24)
    return PolicyCurves(
        tuple(moments),
        moments[-1].snapshots,
        moments[-1].small_files,
        round(sum(bytes_ for _, bytes_ in rewrites) / days, 1),
        moments[-1].storage_bytes,
        max(each.storage_bytes for each in moments),
    )


def _compact(
    commits: Sequence[WriterCommit], policy: Policy, times: Sequence[datetime]
) -> tuple[list[tuple[datetime, int]], list[int]]:
    """Rewrites as (when, bytes read), and how many small files wait at each of the times.

    At most one pass an hour. If the data is not enough for one large file, the output of a rewrite is small
    again: it is rewritten the next time, which is the cost of a low `rewrite_min_input_files`.
    """
    files = bytes_ = 0
    rewrites: list[tuple[datetime, int]] = []
    waiting: list[int] = []
    left, last = list(commits), times[0] - _PASS
    for at in times:
        while left and left[0].at <= at:
            commit = left.pop(0)
            if commit.added_files and commit.added_bytes / commit.added_files < policy.int(
                "rewrite_small_bytes"
            ):
                files, bytes_ = files + commit.added_files, bytes_ + commit.added_bytes
            due = policy.bool("rewrite_enabled") and files >= policy.int("rewrite_min_input_files")
            if due and commit.at - last >= _PASS:
                rewrites.append((commit.at, bytes_))
                files, bytes_ = _outputs(bytes_, policy)
                last = commit.at
        waiting.append(files)
    return rewrites, waiting


def _outputs(bytes_: int, policy: Policy) -> tuple[int, int]:
    """The small files that remain."""
    outputs = max(1, ceil(bytes_ / policy.int("rewrite_target_bytes")))
    return (outputs, bytes_) if bytes_ / outputs < policy.int("rewrite_small_bytes") else (0, 0)


def _kept(commits: Sequence[WriterCommit], policy: Policy, at: datetime) -> int:
    known = [each.at for each in commits if each.at <= at]
    if not policy.bool("snapshot_expiry_enabled"):
        return len(known)
    young = sum(when > at - policy.hours("snapshot_retention_hours") for when in known)
    most = policy.maybe_int("snapshot_max_retained")
    young = young if most is None else min(young, most)
    return min(len(known), max(young, policy.int("snapshot_min_retained")))


def _live(commits: Sequence[WriterCommit], numbers: Numbers, at: datetime) -> int:
    """Live bytes at that time, computed backwards from the table's current state."""
    since = sum(each.added_bytes - each.removed_bytes for each in commits if each.at > at)
    return max(0, numbers.bytes - since)


def _lingering(gone: Sequence[tuple[datetime, int]], policy: Policy, at: datetime) -> int:
    """Bytes that left the table but still exist: until their last snapshot expires, plus the grace period."""
    if not policy.bool("snapshot_expiry_enabled"):
        return sum(bytes_ for when, bytes_ in gone if when <= at)
    stays = policy.hours("snapshot_retention_hours") + policy.hours("delete_grace_hours")
    return sum(bytes_ for when, bytes_ in gone if when <= at < when + stays)


def _times(since: datetime, until: datetime) -> list[datetime]:
    """A limited number of points: a day apart, or closer if the time is short."""
    span = max(until - since, timedelta(hours=1))
    step = max(span / _POINTS, timedelta(minutes=10))
    count = max(1, int(span / step))
    return [until - step * place for place in range(count, -1, -1)]


def _notes(
    commits: Sequence[WriterCommit],
    history: Sequence[Point],
    changes: Sequence[KeyChange],
    asked: datetime,
    begins: datetime,
) -> Iterator[str]:
    if not changes:
        yield "nothing differs from the policy in force"
    if not commits:
        yield "no commit of a writer is known for that time: the curves are flat"
    elif begins > asked + timedelta(days=1):
        yield f"commits before {begins:%Y-%m-%d} are not known: snapshots that were kept from then are not counted"
    if commits and not any(each.added_files for each in commits):
        yield "the commits do not tell how many files they added: rewrites cannot be replayed"
    for each in changes:
        if not each.replayed:
            yield f"{each.key} changes nothing in these curves"
    if history:
        first = history[0]
        yield f"when first looked at in that time, {first.at:%Y-%m-%d}, it had {first.numbers.snapshots:,} snapshots and {first.numbers.small_files:,} small files"
    yield "refs and holds are left out, and small files of all partitions are packed together"
