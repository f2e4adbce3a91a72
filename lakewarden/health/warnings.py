"""Decides when a warning opens and closes. Deciding is pure; recording logs each warning once when it opens and
once when it closes.

A warning opens at a threshold and closes well below it, so that a table at the threshold does not open and
close it with every look. The same applies to the sizes below which there is no warning. A table is unreadable
from the second failed look on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lakewarden.config.schema import HealthConfig
from lakewarden.formatting import size
from lakewarden.health.score import MaintenanceProblems
from lakewarden.state.health import HealthRecords, Numbers, StoredWarning
from lakewarden.state.locks import Lease

log = logging.getLogger(__name__)

# An open warning closes below this share of its threshold.
CLEARS_BELOW = 0.7
FLEET = "*"  # in place of a table's name, for a warning that concerns no single table

_OVERDUE_SNAPSHOTS = 100
_TRASHED_FILES = 50_000
_TRASHED_SHARE, _TRASHED_BYTES = 0.5, 1_000_000_000
_ORPHAN_SHARE, _ORPHAN_BYTES = 0.1, 100_000_000
_HELD_SHARE, _HELD_BYTES = 0.5, 1_000_000_000
_FOREVER_SHARE = 0.25


class WarningKind(StrEnum):
    """Each kind has a section in docs/runbook.md."""

    DELETE_DEBT = "delete-debt"
    MANIFEST_SPRAWL = "manifest-sprawl"
    SMALL_FILES = "small-files"
    EXPIRY_LAGS = "expiry-lags"
    TRASHED_BACKLOG = "trash-backlog"
    LINEAGE_GAPS = "lineage-gaps"
    UNBOUNDED_LOG = "unbounded-metadata-log"
    ORPHANS = "orphans"
    COSTLY_HOLD = "costly-hold"
    FOREVER_HOLD = "forever-hold"
    UNREADABLE = "unreadable"
    SUSPENDED = "suspended"
    NO_LEADER = "no-leader"


@dataclass(frozen=True, slots=True)
class Alarm:
    kind: WarningKind
    text: str


def decide(
    numbers: Numbers,
    limits: HealthConfig,
    trouble: MaintenanceProblems,
    still_open: Collection[str],
    *,
    failed_before: bool = False,
) -> tuple[Alarm, ...]:
    """The warnings of one table now. `still_open` are the kinds that are open: their thresholds to close are
    lower.

    `failed_before`: the previous look failed too. A single failed call among thousands is no warning. A table
    that cannot be read keeps its warnings: nothing shows that it is better.
    """
    alarms = [
        *(Alarm(kind, text) for kind, value, limit, text in _measures(numbers, limits, still_open) if value >= limit * _eased(kind, still_open)),
        *_states(numbers, trouble, failed_before),
    ]  # fmt: skip
    return tuple(alarms)


def _eased(kind: WarningKind, still_open: Collection[str]) -> float:
    """The factor for thresholds, and for sizes that are too small to matter."""
    return CLEARS_BELOW if kind in still_open else 1.0


def _measures(
    numbers: Numbers, limits: HealthConfig, still_open: Collection[str]
) -> Iterator[tuple[WarningKind, float, float, str]]:
    """Kind, measured value, threshold, text."""
    enough = numbers.files >= limits.delete_ratio_files * _eased(WarningKind.DELETE_DEBT, still_open)
    yield (
        WarningKind.DELETE_DEBT,
        numbers.delete_ratio if enough else 0.0,
        limits.delete_ratio,
        f"{numbers.delete_files:,} delete files for {numbers.files:,} data files, {numbers.deleted_rows:,} of {numbers.records:,} rows deleted: every read applies them",
    )
    yield (
        WarningKind.MANIFEST_SPRAWL,
        numbers.manifests,
        limits.manifests,
        f"{numbers.manifests:,} manifests ({size(numbers.manifest_bytes)}): every plan of a query opens them",
    )
    yield (
        WarningKind.SMALL_FILES,
        numbers.small_files,
        limits.small_files,
        f"{numbers.small_files:,} of {numbers.files:,} files are small ({size(numbers.small_bytes)} together)",
    )
    yield (
        WarningKind.EXPIRY_LAGS,
        numbers.overdue_snapshots,
        _OVERDUE_SNAPSHOTS,
        f"{numbers.overdue_snapshots:,} of {numbers.snapshots:,} snapshots are free to expire and still there",
    )
    yield from _of_storage(numbers, still_open)


def _of_storage(
    numbers: Numbers, still_open: Collection[str]
) -> Iterator[tuple[WarningKind, float, float, str]]:
    def share(kind: WarningKind, part: int, least: int) -> float:
        """A share of the table's live bytes; zero below a size that matters."""
        return part / max(numbers.bytes, 1) if part >= least * _eased(kind, still_open) else 0.0

    due = max(
        numbers.due_trashed_files / _TRASHED_FILES,
        share(WarningKind.TRASHED_BACKLOG, numbers.due_trashed_bytes, _TRASHED_BYTES) / _TRASHED_SHARE,
    )
    yield (
        WarningKind.TRASHED_BACKLOG,
        due,
        1.0,
        f"{numbers.due_trashed_files:,} trashed files ({size(numbers.due_trashed_bytes)}) are past their grace and still there",
    )
    yield (
        WarningKind.ORPHANS,
        share(WarningKind.ORPHANS, numbers.orphan_bytes, _ORPHAN_BYTES),
        _ORPHAN_SHARE,
        f"about {numbers.orphan_files:,} files ({size(numbers.orphan_bytes)}) belong to no snapshot, beside {size(numbers.bytes)} that do",
    )
    yield (
        WarningKind.COSTLY_HOLD,
        share(WarningKind.COSTLY_HOLD, numbers.held_bytes, _HELD_BYTES),
        _HELD_SHARE,
        f"{size(numbers.held_bytes)} stay only because something holds them, beside {size(numbers.bytes)} of live data",
    )
    yield (
        WarningKind.FOREVER_HOLD,
        share(WarningKind.FOREVER_HOLD, numbers.held_forever_bytes, _HELD_BYTES),
        _FOREVER_SHARE,
        f"{size(numbers.held_forever_bytes)} stay because of holds that have no end",
    )


def _states(numbers: Numbers, trouble: MaintenanceProblems, failed_before: bool) -> Iterator[Alarm]:
    if numbers.lineage_asked and numbers.lineage_gaps:
        yield Alarm(
            WarningKind.LINEAGE_GAPS,
            f"{numbers.lineage_gaps:,} of {numbers.snapshots:,} live snapshots do not say what the policy requires of every commit",
        )
    if numbers.log_unbounded:
        yield Alarm(
            WarningKind.UNBOUNDED_LOG,
            f"the log of metadata files is not bounded ({numbers.metadata_files:,} files): every commit writes it anew and leaves one file behind",
        )
    if trouble.suspended:
        yield Alarm(WarningKind.SUSPENDED, f"the schedule leaves it alone: {trouble.suspended}")
    if trouble.error and failed_before:
        yield Alarm(WarningKind.UNREADABLE, f"it cannot be looked at: {trouble.error}")


def no_leader(lease: Lease | None) -> StoredWarning | None:
    """Whether a worker led earlier and none does now. Computed on request: without a worker, no process records it."""
    if lease is None or lease.live:
        return None
    text = f"no worker leads since {lease.until:%Y-%m-%d %H:%M:%S} UTC, the last was {lease.holder}: nothing is looked after"
    return StoredWarning(FLEET, WarningKind.NO_LEADER, text, lease.until)


def record(
    records: HealthRecords,
    found: Mapping[str, Sequence[Alarm]],
    was_open: Mapping[str, Collection[str]],
    now: datetime,
) -> tuple[int, int]:
    """Store the current warnings by table; returns how many opened and how many closed. An open one is not logged again."""
    came = [(table, each.kind.value, each.text) for table, alarms in found.items() for each in alarms]
    named = {(table, kind) for table, kind, _ in came}
    went = [
        (table, kind) for table in found for kind in was_open.get(table, ()) if (table, kind) not in named
    ]
    new = records.warn(came, now)
    over = records.clear(went, now)
    for table, kind, text in new:
        log.warning("%s: %s: %s", table, kind, text)
    for table, kind in over:
        log.info("%s: %s is over", table, kind)
    return len(new), len(over)
