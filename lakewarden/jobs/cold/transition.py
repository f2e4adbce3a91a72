"""Moves data of old cold snapshots to a deeper storage class. Part of handoff.

    plan     the snapshots that are old enough, and the data files that no younger one needs; metadata is not moved
    read     every byte of copies that were not read since they were made, because an archive cannot be read
    move     the store changes the class in place; size and etag are compared; recorded in batches

If the process stops, the next run finds an object that was moved but not recorded in its new class, and records it. Nothing is
deleted here. A damaged copy is reported and not moved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.errors import LakewardenError
from lakewarden.jobs.cold.copies import in_tasks
from lakewarden.jobs.cold.cost import age_cost
from lakewarden.jobs.cold.table import NOT_KNOWN, Cold, cold_copies
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.run_context import ColdStep, RunContext
from lakewarden.jobs.units import run_units
from lakewarden.model.actions import AgeFiles
from lakewarden.model.plan import SkippedRow
from lakewarden.model.prices import Price
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.copy.copy import CopyTask, measure
from lakewarden.state.cold import ColdFile, ColdFiles
from lakewarden.storage.archive import ObjectArchive
from lakewarden.storage.s3_copy import on_s3
from lakewarden.tables.interface import ColdTier

_SNAPSHOT, _FILE = "cold snapshot", "cold file"
_WAIT, _CLASS = "handoff_retention_hours", "handoff_deep_storage_class"
# Files of a batch: at most this many are checked in the store again if the process stops.
_PORTION = 1_000


@dataclass(frozen=True, slots=True)
class ClassTransition:
    """The planned transition; empty if nothing is old enough. `files` are the copies to move."""

    action: AgeFiles | None = None
    files: tuple[ColdFile, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()


def prepare(
    deps: JobDeps, cold: Cold, table_uuid: str, policy: Policy, now: datetime, leaving: Collection[int]
) -> ClassTransition:
    """Plan the transition. Reads the cold table's metadata if a snapshot is old enough. Snapshots being released are ignored."""
    wait = policy.maybe_hours(_WAIT)
    if wait is None:
        return ClassTransition()
    stay = [snapshot.id for snapshot in cold.view.snapshots if snapshot.id not in leaving]
    if not on_s3(cold.home.location):
        why = f"its store has no storage classes, so nothing can be moved: {cold.home.location}"
        return ClassTransition(skipped=((_SNAPSHOT, len(stay), 0, Reason(ReasonKind.UNFIT, why)),))
    old, skipped = due(stay, cold.handed, wait, now, policy.explain(_WAIT))
    if not old:
        return ClassTransition(skipped=tuple(skipped))
    every = _data(cold.tier, cold.tier.closure(cold.view, old))
    mine = _data(cold.tier, cold.only(frozenset(old) | frozenset(leaving)))
    mine = mine.filter(pc.is_in(mine["path"], value_set=every["path"].combine_chunks()))
    shared = every.num_rows - mine.num_rows
    bytes_ = (pc.sum(every["size"]).as_py() or 0) - (pc.sum(mine["size"]).as_py() or 0)
    needed = Reason(ReasonKind.SHARED, "a younger cold snapshot needs it too")
    skipped.append((_FILE, shared, bytes_, needed))
    records = ColdFiles(deps.state).copies(table_uuid, mine["path"].to_pylist())
    unknown = mine.num_rows - len(records)
    lost = Reason(ReasonKind.NOT_KNOWN, "the state database has no record of the copy")
    skipped.append((_FILE, unknown, 0, lost))
    return plan([*records.values()], len(old), skipped, policy, deps.prices, now)


def due(
    snapshot_ids: Sequence[int], handed: Mapping[int, datetime], wait: timedelta, now: datetime, told: str
) -> tuple[list[int], list[SkippedRow]]:
    """The snapshots that were handed off long enough ago, and the reasons for all others. Pure."""
    unknown = [each for each in snapshot_ids if each not in handed]
    old = [each for each in snapshot_ids if each in handed and handed[each] + wait <= now]
    young = len(snapshot_ids) - len(unknown) - len(old)
    too_young = Reason(ReasonKind.YOUNG, f"too young: {told}")
    return old, [(_SNAPSHOT, len(unknown), 0, NOT_KNOWN), (_SNAPSHOT, young, 0, too_young)]


def plan(
    copies: Sequence[ColdFile],
    snapshots: int,
    skipped: list[SkippedRow],
    policy: Policy,
    prices: Mapping[str, Price],
    now: datetime,
) -> ClassTransition:
    """Which of these copies are moved. Pure."""
    deep = policy.text(_CLASS)
    there = [copy for copy in copies if copy.storage_class == deep]
    done = Reason(ReasonKind.SETTLED, f"it is in {deep} already")
    skipped = [*skipped, (_FILE, len(there), sum(each.size for each in there), done)]
    goes = tuple(copy for copy in copies if copy.storage_class != deep)
    if not goes:
        return ClassTransition(skipped=tuple(skipped))
    unread = sum(copy.size for copy in goes if copy.proven_at is None)
    action = AgeFiles(
        len(goes),
        sum(copy.size for copy in goes),
        deep,
        unread,
        age_cost(cold_copies(goes, now), deep, unread, prices),
        f"needed by {snapshots:,} old cold snapshots and by no younger one: {policy.explain(_WAIT)}",
    )
    return ClassTransition(action, goes, tuple(skipped))


def execute(
    action: AgeFiles,
    files: Sequence[ColdFile],
    cold: Cold,
    table_uuid: str,
    deps: JobDeps,
    context: RunContext,
) -> dict[str, int]:
    """Move the copies in batches. Problems with single files are reported after all others are done."""
    archive, records = ObjectArchive(cold.home.io), ColdFiles(deps.state)
    counters, troubles = {"files_aged": 0, "bytes_aged": 0}, dict[str, str]()

    def move(start: int) -> None:
        portion = {each.cold_path: each for each in files[start : start + _PORTION]}
        detail = {"storage_class": action.storage_class, "files": len(portion), "first": start}
        context.step(ColdStep.AGEING, {"cold": str(cold.home.ref), **detail})
        bad = unread(portion.values(), cold.home.io, table_uuid, records, context)
        goes = [(path, each.size) for path, each in portion.items() if path not in bad]
        moved = archive.move(goes, action.storage_class)
        troubles.update(bad | {each.path: each.trouble for each in moved if each.trouble})
        whole = {each.path: each.etag for each in moved if not each.trouble}
        records.classed(table_uuid, whole, action.storage_class, clock.now())
        counters["files_aged"] += sum(each.written for each in moved)
        counters["bytes_aged"] += sum(portion[each.path].size for each in moved if each.written)
        context.progress.advance(sum(portion[path].size for path in whole))

    title, starts = f"ageing copies of {cold.home.ref}", range(0, len(files), _PORTION)
    run_units(context, title, starts, move, total=action.bytes)
    _refuse(troubles)
    context.step(ColdStep.AGED, dict(counters))
    return counters


def unread(
    copies: Collection[ColdFile],
    io: Mapping[str, str],
    table_uuid: str,
    records: ColdFiles,
    context: RunContext,
) -> dict[str, str]:
    """Read every byte of copies that were not read since they were made. Returns the damaged ones with the reason."""
    unverified = {copy.cold_path: copy for copy in copies if copy.proven_at is None}
    tasks = [CopyTask(each.path, path, {}, io) for path, each in unverified.items()]
    reasons: dict[str, str] = {}
    whole: list[str] = []
    for each in in_tasks(context, tasks, measure):
        record = unverified[each.target]
        if each.trouble:
            reasons[each.target] = f"it cannot be read: {each.trouble}"
        elif (each.bytes, each.checksum) != (record.size, record.checksum):
            reasons[each.target] = "it differs from what was copied"
        else:
            whole.append(record.path)
    records.prove(table_uuid, whole, clock.now())
    return reasons


def _refuse(troubles: Mapping[str, str]) -> None:
    if troubles:
        path, why = next(iter(troubles.items()))
        more = f", and {len(troubles) - 1:,} more" if len(troubles) > 1 else ""
        raise LakewardenError(
            reason=f"age {path}: {why}{more}",
            hint="it was not moved, the others were; repair the copy or hand the file off again, then run handoff again",
        )


def _data(tier: ColdTier, files: pa.Table) -> pa.Table:
    """The data files only: metadata is needed to plan any query, so it must stay readable."""
    return pa.concat_tables([step.files for step in tier.order(files) if not step.instant])
