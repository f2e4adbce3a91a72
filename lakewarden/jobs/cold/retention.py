"""The end of cold retention: snapshots leave the cold table, and what only they needed there is in the trash. Part of handoff.

    plan       snapshots whose time in the colder tier is over, and that nothing keeps
    trash       a verdict on the files that no other cold snapshot needs; it counts for nothing yet
    release    one commit of the cold table, after which it does not have them
    in force   the grace runs; purge of the cold table proves each file once more and deletes it, as everywhere

Where a process stops: before the commit the verdict is void, after it the next run of handoff puts it in force. No file is
touched here, and the live table is not even opened for writing.

A copy that is in the trash is no copy: its record is let go of with the verdict, so that a later hand-off that needs the file again
makes it anew or takes it back, out of the verdict and before anything relies on it (`take_back`). Both only ever happen in runs of
handoff, of which a table has one at a time.

Fees: a class has a minimum stay, 90 days of GLACIER_IR and 180 of DEEP_ARCHIVE, which is billed to its end for an object that
is deleted before, counted from when it came to that class. The plan says what leaving now would cost so; it warns, no more.
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
from lakewarden.jobs.cold.table import NOT_KNOWN, Cold, lying
from lakewarden.jobs.deps import Grounds
from lakewarden.jobs.expire.plan import waits_for_pins
from lakewarden.jobs.journaled_commit import journaled_commit
from lakewarden.jobs.run_context import ColdStep, DeletingStep, RunContext
from lakewarden.model.actions import ReleaseSnapshots
from lakewarden.model.hold import HoldKind
from lakewarden.model.prices import ARCHIVED
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.skipped import SkippedRow
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.cold import ColdFiles, ColdSnapshots
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash import take_back as out_of_verdicts
from lakewarden.state.trash_batches import COLD_RETENTION, Verdict
from lakewarden.storage.archive import Archive
from lakewarden.tables.interface import ColdHome

CAUSE = COLD_RETENTION
_REASON = "needed only by cold snapshots whose retention is over"
_KEY = "cold_retention_hours"
_SNAPSHOT = "cold snapshot"


@dataclass(frozen=True, slots=True)
class Releasing:
    """Nothing where nobody's time is over."""

    action: ReleaseSnapshots | None = None
    files: pa.Table | None = None
    skipped: tuple[SkippedRow, ...] = ()

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        return () if self.action is None else self.action.snapshot_ids


def prepare(grounds: Grounds, cold: Cold, live: TableView, policy: Policy, now: datetime) -> Releasing:
    if policy.maybe_hours(_KEY) is None:
        return Releasing()
    if cold.tier.stays_because:
        why = f"{cold.tier.stays_because}, whatever is asked for: {policy.explain(_KEY)}"
        return Releasing(skipped=((_SNAPSHOT, len(cold.view.snapshots), 0, Reason(ReasonKind.UNFIT, why)),))
    over, skipped = plan(cold, live, gather(cold.view, grounds.state, now), policy, now)
    if not over:
        return Releasing(skipped=tuple(skipped))
    files = cold.only(frozenset(over))
    copies = ColdFiles(grounds.state).copies(live.uuid, files["path"].to_pylist())
    fees = early_fees(lying([*copies.values()], now), grounds.prices)
    size = pc.sum(files["size"]).as_py() or 0
    action = ReleaseSnapshots(tuple(over), files.num_rows, size, fees, _why(policy, fees))
    return Releasing(action, files, tuple(skipped))


def plan(
    cold: Cold, live: TableView, holds: Holds, policy: Policy, now: datetime
) -> tuple[list[int], list[SkippedRow]]:
    """Snapshots that leave, and why each other one stays. Pure."""
    over: list[int] = []
    skipped: list[SkippedRow] = []
    wait, held = policy.hours(_KEY), holds.snapshots()
    patterns = policy.columns("protected_tags")
    until = holds.complete_from(policy.hours("delete_grace_hours"))
    for each in cold.view.snapshots:
        at = cold.handed.get(each.id)
        pins = [hold for hold in held.get(each.id, ()) if hold.kind is HoldKind.PIN]
        tags = [ref.name for ref in cold.view.refs if ref.kind == "tag" and ref.snapshot_id == each.id]
        kept = [name for name in tags if any(fnmatchcase(name, pattern) for pattern in patterns)]
        why: Reason | None = None
        if at is None:
            why = NOT_KNOWN
        elif at + wait > now:
            why = Reason(ReasonKind.WINDOW, f"kept in the colder tier: {policy.explain(_KEY)}")
        elif live.snapshot(each.id) is not None:
            again = "the table itself still has it, and would hand it off again"
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
            over.append(each.id)
    return over, skipped


def _why(policy: Policy, fees: float) -> str:
    early = f"; ${fees:,.2f} are billed for leaving before the minimum stay of their classes" if fees else ""
    return f"past {policy.explain(_KEY)}{early}"


def execute(
    action: ReleaseSnapshots,
    cold: Cold,
    live: TableView,
    policy: Policy,
    grounds: Grounds,
    context: RunContext,
) -> dict[str, int]:
    """From the cold table as it is now: what a hand-off of this run has brought may need what the plan let go. Never more than it."""
    over, _ = plan(cold, live, gather(cold.view, grounds.state, clock.now()), policy, clock.now())
    ids = [each for each in action.snapshot_ids if each in set(over)]
    if not ids:
        return {"snapshots_released": 0, "files_trashed": 0}
    files = cold.only(frozenset(ids))
    detail = {"snapshot_ids": ids, "cold": str(cold.home.ref), "of": live.uuid}
    stamped = files.append_column("stamp", pa.nulls(files.num_rows, pa.string()))
    ref, uuid = str(cold.home.ref), cold.view.uuid
    TrashedFiles(grounds.state).trash(context.run_id, ref, uuid, CAUSE, _REASON, stamped, detail, clock.now())
    context.step(DeletingStep.TRASHING, {"verdict": context.run_id, "files": files.num_rows})

    def commit() -> None:
        _refuse_pinned(grounds, cold, ids, context.run_id)
        context.writer.cold().release(live, cold.home, ids)

    def in_force(_: None) -> dict[str, Any]:
        enforce(grounds, context.run_id, live.uuid, ids, files["path"].to_pylist())
        return {"verdict": context.run_id, "files": files.num_rows}

    steps = (ColdStep.RELEASING, ColdStep.RELEASED)
    result = journaled_commit(context, detail, commit, in_force, steps=steps)
    if result.error is not None:
        raise result.error
    return {"snapshots_released": len(ids), "files_trashed": files.num_rows}


def _refuse_pinned(grounds: Grounds, cold: Cold, ids: Collection[int], verdict_id: str) -> None:
    """A pin made since the plan. One that comes later still keeps the files: purge leaves what a pin's lost snapshot needs."""
    for hold in gather(cold.view, grounds.state, clock.now()).holds:
        if hold.kind is HoldKind.PIN and hold.snapshot_id in ids:
            TrashedFiles(grounds.state).void(verdict_id)
            raise Refused(
                action="release",
                target=f"snapshot {hold.snapshot_id} of {cold.home.ref}",
                reason=f"it was pinned by {hold.holder} a moment ago",
                hint="nothing was changed; run handoff again",
            )


def enforce(
    grounds: Grounds, verdict_id: str, table_uuid: str, snapshot_ids: Collection[int], paths: Sequence[str]
) -> None:
    """The snapshots are gone from the cold table. Each part may be done again; records go first, so that nobody relies on
    a copy that may be deleted."""
    now = clock.now()
    ColdFiles(grounds.state).let_go(table_uuid, paths, now)
    ColdSnapshots(grounds.state).leave(table_uuid, snapshot_ids, now)
    TrashedFiles(grounds.state).enforce(verdict_id, now)


def settle(grounds: Grounds, verdict: Verdict, home: ColdHome | None) -> bool:
    """A release whose process stopped: whether the cold table still has the snapshots decides. True if they are gone."""
    ids, uuid = verdict.detail["snapshot_ids"], verdict.detail["of"]
    files = TrashedFiles(grounds.state)
    if home is None or not home.snapshots.isdisjoint(ids):
        files.void(verdict.id)
        return False
    paths = [path for page in files.trashed_paths(verdict.table_uuid) for path in page.to_pylist()]
    enforce(grounds, verdict.id, uuid, ids, paths)
    return True


def take_back(grounds: Grounds, live: TableView, cold: Cold, moved: Mapping[str, str], run_id: str) -> None:
    """Before a hand-off relies on copies that an earlier release gave up: none of them is under a verdict any more.

    `moved` tells of each file where its copy lies. One that an archive has cannot be read to compare it; where it is as it was
    when it went there, its record counts again. All others are compared by who copies.
    """
    note = f"needed again by the hand-off of run {run_id}"
    going = out_of_verdicts(grounds.state, cold.view.uuid, [*moved.values()], note, clock.now())
    if going:
        raise Refused(
            action="hand off to",
            target=cold.home.ref,
            reason=f"a run is deleting {going[0]} at this moment, and it is needed again",
            hint="let purge of the cold table end, then run handoff again",
        )
    records = ColdFiles(grounds.state)
    known = records.let_go_among(live.uuid, [*moved])
    archived = [each for each in known.values() if each.storage_class in ARCHIVED]
    if archived:
        found = Archive(cold.home.io).look([each.cold_path for each in archived])
        same = [
            each.cold_path
            for each, now in zip(archived, found, strict=True)
            if now is not None and (now.size, now.etag) == (each.size, each.etag)
        ]
        records.take_back(live.uuid, same)
