"""The end of cold retention: snapshots leave the cold table, and files only they needed go to the trash. Part of handoff.

    plan       snapshots whose cold retention is over and that nothing holds
    trash      a deletion batch with the files that no other cold snapshot needs; it is not effective yet
    release    one commit removes the snapshots from the cold table
    in force   the batch is effective and its grace period starts; purge of the cold table proves and deletes each file

If the process stops before the commit, the batch is void. If it stops after it, the next run of handoff makes the batch
effective. No file is deleted here, and the live table is never opened for writing.

A trashed copy no longer counts as a copy: its record is removed with the deletion batch. A later hand-off that needs the file
makes a new copy, or takes the old one out of the trash before anything relies on it (`take_back`). Both happen only in runs of
handoff, and a table has one such run at a time.

Fees: a storage class has a minimum storage time (GLACIER_IR 90 days, DEEP_ARCHIVE 180), counted from when the object came to
the class. Deleting earlier is billed to the end of that time. The plan shows these fees as a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.deletion.holds import Holds, gather
from lakewarden.errors import Refused
from lakewarden.jobs.cold.cost import early_fees
from lakewarden.jobs.cold.table import NOT_KNOWN, Cold, cold_copies
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.expire.plan import waits_for_pins
from lakewarden.jobs.journaled_commit import journaled_commit
from lakewarden.jobs.run_context import ColdStep, DeletingStep, RunContext
from lakewarden.model.actions import ReleaseSnapshots
from lakewarden.model.hold import HoldKind
from lakewarden.model.plan import SkippedRow
from lakewarden.model.prices import ARCHIVED
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.cold import ColdFiles, ColdSnapshots
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash import take_back as out_of_batches
from lakewarden.state.trash_batches import COLD_RETENTION, TrashBatch
from lakewarden.storage.archive import ObjectArchive
from lakewarden.tables.interface import ColdHome

CAUSE = COLD_RETENTION
_REASON = "needed only by cold snapshots whose retention is over"
_KEY = "cold_retention_hours"
_SNAPSHOT = "cold snapshot"


@dataclass(frozen=True, slots=True)
class ColdRelease:
    """The snapshots and files to release; empty if no retention is over."""

    action: ReleaseSnapshots | None = None
    files: pa.Table | None = None
    skipped: tuple[SkippedRow, ...] = ()

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        return () if self.action is None else self.action.snapshot_ids


def prepare(deps: JobDeps, cold: Cold, live: TableView, policy: Policy, now: datetime) -> ColdRelease:
    if policy.maybe_hours(_KEY) is None:
        return ColdRelease()
    if cold.tier.stays_because:
        why = f"{cold.tier.stays_because}, and this setting has no effect: {policy.explain(_KEY)}"
        return ColdRelease(skipped=((_SNAPSHOT, len(cold.view.snapshots), 0, Reason(ReasonKind.UNFIT, why)),))
    over, skipped = plan(cold, live, gather(cold.view, deps.state, now), policy, now)
    if not over:
        return ColdRelease(skipped=tuple(skipped))
    files = cold.only(frozenset(over))
    copies = ColdFiles(deps.state).copies(live.uuid, files["path"].to_pylist())
    fees = early_fees(cold_copies([*copies.values()], now), deps.prices)
    size = pc.sum(files["size"]).as_py() or 0
    action = ReleaseSnapshots(tuple(over), files.num_rows, size, fees, _why(policy, fees))
    return ColdRelease(action, files, tuple(skipped))


def plan(
    cold: Cold, live: TableView, holds: Holds, policy: Policy, now: datetime
) -> tuple[list[int], list[SkippedRow]]:
    """The snapshots to release, and the reason for each one that stays. Pure."""
    over: list[int] = []
    skipped: list[SkippedRow] = []
    wait, held = policy.hours(_KEY), holds.snapshots()
    patterns = policy.columns("protected_tags")
    until = holds.complete_from(policy.hours("delete_grace_hours"))
    for snapshot in cold.view.snapshots:
        at = cold.handed.get(snapshot.id)
        pins = [hold for hold in held.get(snapshot.id, ()) if hold.kind is HoldKind.PIN]
        tags = [ref.name for ref in cold.view.refs if ref.kind == "tag" and ref.snapshot_id == snapshot.id]
        kept = [name for name in tags if any(fnmatchcase(name, pattern) for pattern in patterns)]
        why: Reason | None = None
        if at is None:
            why = NOT_KNOWN
        elif at + wait > now:
            why = Reason(ReasonKind.WINDOW, f"kept in the colder tier: {policy.explain(_KEY)}")
        elif live.snapshot(snapshot.id) is not None:
            again = "the live table still has it and would hand it off again"
            why = Reason(ReasonKind.STILL_LIVE, again)
        elif until is not None and until > now:
            why = waits_for_pins(until)
        elif pins:
            why = Reason(ReasonKind.PIN, f"pinned by {pins[0].holder}")
        elif kept:
            why = Reason(ReasonKind.TAG, f"tag {kept[0]} is protected (protected_tags)")
        if why:
            skipped.append((_SNAPSHOT, 1, 0, why))
        else:
            over.append(snapshot.id)
    return over, skipped


def _why(policy: Policy, fees: float) -> str:
    early = f"; ${fees:,.2f} are billed because their minimum storage time is not over" if fees else ""
    return f"past {policy.explain(_KEY)}{early}"


def execute(
    action: ReleaseSnapshots,
    cold: Cold,
    live: TableView,
    policy: Policy,
    deps: JobDeps,
    context: RunContext,
) -> dict[str, int]:
    """Release the planned snapshots. The cold table is read again: new snapshots of this run may need files of the plan."""
    over, _ = plan(cold, live, gather(cold.view, deps.state, clock.now()), policy, clock.now())
    ids = [each for each in action.snapshot_ids if each in set(over)]
    if not ids:
        return {"snapshots_released": 0, "files_trashed": 0}
    files = cold.only(frozenset(ids))
    detail = {"snapshot_ids": ids, "cold": str(cold.home.ref), "of": live.uuid}
    stamped = files.append_column("stamp", pa.nulls(files.num_rows, pa.string()))
    ref, uuid = str(cold.home.ref), cold.view.uuid
    TrashedFiles(deps.state).trash(context.run_id, ref, uuid, CAUSE, _REASON, stamped, detail, clock.now())
    context.step(DeletingStep.TRASHING, {"batch": context.run_id, "files": files.num_rows})

    def commit() -> None:
        _refuse_pinned(deps, cold, ids, context.run_id)
        context.writer.cold().release(live, cold.home, ids)

    def in_force(_: None) -> dict[str, Any]:
        enforce(deps, context.run_id, live.uuid, ids, files["path"].to_pylist())
        return {"batch": context.run_id, "files": files.num_rows}

    steps = (ColdStep.RELEASING, ColdStep.RELEASED)
    result = journaled_commit(context, detail, commit, in_force, steps=steps)
    if result.error is not None:
        raise result.error
    return {"snapshots_released": len(ids), "files_trashed": files.num_rows}


def _refuse_pinned(deps: JobDeps, cold: Cold, ids: Collection[int], batch_id: str) -> None:
    """Raises for a pin made since the plan. A later pin still protects the files: purge keeps the files of pinned snapshots."""
    for hold in gather(cold.view, deps.state, clock.now()).holds:
        if hold.kind is HoldKind.PIN and hold.snapshot_id in ids:
            TrashedFiles(deps.state).void(batch_id)
            raise Refused(
                action="release",
                target=f"snapshot {hold.snapshot_id} of {cold.home.ref}",
                reason=f"it was pinned by {hold.holder} a moment ago",
                hint="nothing was changed; run handoff again",
            )


def enforce(
    deps: JobDeps, batch_id: str, table_uuid: str, snapshot_ids: Collection[int], paths: Sequence[str]
) -> None:
    """Make the batch effective, after the snapshots left the cold table. Each step can be repeated. The records of the copies
    are removed first, so that nothing relies on a copy that may be deleted."""
    now = clock.now()
    ColdFiles(deps.state).let_go(table_uuid, paths, now)
    ColdSnapshots(deps.state).leave(table_uuid, snapshot_ids, now)
    TrashedFiles(deps.state).enforce(batch_id, now)


def settle(deps: JobDeps, batch: TrashBatch, home: ColdHome | None) -> bool:
    """Settle a release whose process stopped. True if the snapshots are gone from the cold table, so that the batch is effective."""
    ids, uuid = batch.detail["snapshot_ids"], batch.detail["of"]
    files = TrashedFiles(deps.state)
    if home is None or not home.snapshots.isdisjoint(ids):
        files.void(batch.id)
        return False
    paths = [path for page in files.trashed_paths(batch.table_uuid) for path in page.to_pylist()]
    enforce(deps, batch.id, uuid, ids, paths)
    return True


def take_back(deps: JobDeps, live: TableView, cold: Cold, moved: Mapping[str, str], run_id: str) -> None:
    """Take copies out of the trash that an earlier release put there, before a hand-off relies on them.

    `moved` maps each file to the path of its copy. An archived copy cannot be read; if size and etag are unchanged, its
    record is valid again. All other copies are compared by the copying step.
    """
    note = f"needed again by the hand-off of run {run_id}"
    going = out_of_batches(deps.state, cold.view.uuid, [*moved.values()], note, clock.now())
    if going:
        raise Refused(
            action="hand off to",
            target=cold.home.ref,
            reason=f"a run is deleting {going[0]} right now, and it is needed again",
            hint="wait until purge of the cold table ends, then run handoff again",
        )
    records = ColdFiles(deps.state)
    known = records.let_go_among(live.uuid, [*moved])
    archived = [each for each in known.values() if each.storage_class in ARCHIVED]
    if archived:
        states = ObjectArchive(cold.home.io).look([each.cold_path for each in archived])
        same = [
            each.cold_path
            for each, now in zip(archived, states, strict=True)
            if now is not None and (now.size, now.etag) == (each.size, each.etag)
        ]
        records.take_back(live.uuid, same)
