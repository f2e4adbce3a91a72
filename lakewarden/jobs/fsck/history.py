"""fsck checks on the metadata file itself: snapshots, refs, pins, statistics, the version hint. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from lakewarden.jobs.fsck.findings import NAMED, Fault, Finding, Severity
from lakewarden.model.table import Snapshot, TableView, cold_source
from lakewarden.state.holds import Pin

_VERSION = re.compile(r"^(?:v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?)$")
_WAP = "wap.id"


def check_history(view: TableView) -> Iterator[Finding]:
    """Refs to missing snapshots, snapshots that no ref reaches, and histories that end early or form a cycle."""
    yield from _check_refs(view)
    yield from _check_parents(view)
    yield from _check_off_history(view)


def _check_refs(view: TableView) -> Iterator[Finding]:
    ids = {snapshot.id for snapshot in view.snapshots}
    for ref in view.refs:
        # A tag with its own copy does not need the snapshot. The next snapshot of a consumer may not exist yet.
        if ref.snapshot_id in ids or ref.has_copy or ref.kind == "consumer":
            continue
        what = f"{ref.kind} {ref.name} names snapshot {ref.snapshot_id}, which the table does not have"
        if ref.name == "main":
            repair = (
                f"point it at an existing snapshot: `CALL {view.ref.catalog}.system.set_current_snapshot(…)`"
            )
            yield Finding(Fault.BROKEN_CURRENT, Severity.ERROR, what, repair, snapshot_ids=(ref.snapshot_id,))
        else:
            repair = f"drop it, `ALTER TABLE {view.ref} DROP {ref.kind.upper()} {ref.name}`, or create it again on an existing snapshot"
            yield Finding(Fault.BROKEN_REF, Severity.ERROR, what, repair, snapshot_ids=(ref.snapshot_id,))


def _check_parents(view: TableView) -> Iterator[Finding]:
    parents = {snapshot.id: snapshot.parent_id for snapshot in view.snapshots}
    turning = _cycle(parents)
    if turning:
        what = f"{len(turning):,} snapshots are each other's ancestors: a walk along their parents never ends"
        repair = "go back to an earlier intact metadata file: register it with the catalog"
        yield Finding(
            Fault.SNAPSHOT_CYCLE, Severity.ERROR, what, repair, len(turning), snapshot_ids=turning[:NAMED]
        )
    cut = [
        snapshot.id
        for snapshot in view.snapshots
        if snapshot.parent_id is not None and snapshot.parent_id not in parents
    ]
    if cut:
        what = f"the parent of {_snapshots(len(cut))} is gone, so the history ends there, as after an expiry"
        yield Finding(
            Fault.EXPIRED_PARENT,
            Severity.NOTE,
            what,
            "nothing to do",
            len(cut),
            snapshot_ids=tuple(cut[:NAMED]),
        )


def _cycle(parents: Mapping[int, int | None]) -> tuple[int, ...]:
    """The snapshots of the first cycle that is found."""
    sound: set[int] = set()
    for start in parents:
        walked: dict[int, None] = {}
        at: int | None = start
        while at is not None and at in parents and at not in sound and at not in walked:
            walked[at] = None
            at = parents[at]
        if at is not None and at in walked:
            order = list(walked)
            return tuple(order[order.index(at) :])
        sound.update(walked)
    return ()


def _check_off_history(view: TableView) -> Iterator[Finding]:
    """Snapshots that are in no ref's history. Not checked for cold tables: their snapshots before a gap must stay."""
    off = _off_history(view)
    if not off or cold_source(view.properties):
        return
    staged = sum(_WAP in each.summary for each in off)
    oldest = min(off, key=lambda each: each.committed_at)
    parts = f"; {staged:,} of them staged (write-audit-publish)" if staged else ""
    what = (
        f"{_snapshots(len(off))} in the history of no branch or tag{parts}: rolled back, staged, or cut off by expiry; "
        f"the oldest is {oldest.id} of {_day(oldest.committed_at)}"
    )
    repair = f"nothing to do: `lakewarden run expire {view.ref}` drops them once they are old enough"
    ids = tuple(each.id for each in off[:NAMED])
    yield Finding(Fault.OFF_HISTORY, Severity.NOTE, what, repair, len(off), snapshot_ids=ids)


def _off_history(view: TableView) -> list[Snapshot]:
    parents = {snapshot.id: snapshot.parent_id for snapshot in view.snapshots}
    reached: set[int] = set()
    for start in (*(ref.snapshot_id for ref in view.refs), view.current_snapshot_id):
        at = start
        while at is not None and at in parents and at not in reached:
            reached.add(at)
            at = parents[at]
    return [snapshot for snapshot in view.snapshots if snapshot.id not in reached]


def check_pins(view: TableView, pins: Sequence[Pin]) -> Iterator[Finding]:
    """Pins whose snapshot is missing: a pin promises that its snapshot stays readable."""
    ids = {snapshot.id for snapshot in view.snapshots}
    for pin in pins:
        if pin.snapshot_id not in ids:
            what = f"pin {pin.id} of {pin.holder} holds snapshot {pin.snapshot_id}, which the table does not have: something else expired it"
            repair = f"tell {pin.holder}, then remove the pin: `lakewarden unpin {pin.id}`"
            yield Finding(Fault.BROKEN_PIN, Severity.ERROR, what, repair, snapshot_ids=(pin.snapshot_id,))


def check_stale_statistics(view: TableView) -> Iterator[Finding]:
    ids = {snapshot.id for snapshot in view.snapshots}
    stale = [(snapshot_id, path) for snapshot_id, path in view.statistics if snapshot_id not in ids]
    if stale:
        what = f"{len(stale):,} statistics files are of snapshots the table does not have: nothing reads them"
        repair = "nothing to do, or remove them from the metadata with Iceberg's `updateStatistics().removeStatistics(…)`"
        yield Finding(
            Fault.STALE_STATISTICS,
            Severity.NOTE,
            what,
            repair,
            len(stale),
            tuple(path for _, path in stale[:NAMED]),
            tuple(each for each, _ in stale[:NAMED]),
        )


def check_version_hint(view: TableView, path: str, hint: str | None) -> Iterator[Finding]:
    """A version hint that does not match the current metadata: readers without a catalog use it."""
    if hint is None:
        return
    name = view.metadata_location.rpartition("/")[2]
    match = _VERSION.match(name)
    if match and match[1] == hint.strip():
        return
    what = f"the version hint says {hint.strip()[:20]!r}, the table's metadata is {name}: readers that open it by its folder may read an older state"
    repair = (
        "the next commit writes it again"
        if match
        else "remove the hint if no reader opens the table by its folder any more"
    )
    yield Finding(Fault.VERSION_HINT, Severity.NOTE, what, repair, paths=(path,))


def _snapshots(count: int) -> str:
    return f"{count:,} snapshot{'' if count == 1 else 's'}"


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"
