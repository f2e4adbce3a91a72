"""expire, in order: plan, archive the snapshots' summaries, write the deletion batch, commit, put the batch in force.

If the process stops:

    before the batch          nothing happened
    after it, before commit   the batch is pending and has no effect; the next run voids it
    after the commit          the next run sees that the snapshots are gone and puts the batch in force
    commit unknown            one of the two above, decided by the table

No file is touched here. A batch that is in force too early cannot lose a file: purge proves each file again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.deletion.foreign_metadata import refuse_forked
from lakewarden.deletion.holds import gather
from lakewarden.deletion.restored_state import confirm_state
from lakewarden.errors import CommitLost, LakewardenError, PolicyError, Refused
from lakewarden.jobs.cold.handoff import handed_off
from lakewarden.jobs.deps import JobDeps, places_of
from lakewarden.jobs.expire import plan as expire
from lakewarden.jobs.journaled_commit import CleanupResult, CommitResult, ending, journaled_commit
from lakewarden.jobs.run_context import DeletingStep, Outcome, Prepared, RunContext
from lakewarden.jobs.units import progress_of
from lakewarden.model.actions import TrashFiles
from lakewarden.model.hold import HoldKind
from lakewarden.model.plan import ManyTrashed, Plan
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.history import SnapshotArchive
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import TrashBatch
from lakewarden.tables.interface import HeldByRef, TableChanged, TableFormat
from lakewarden.tables.reread import read_again

CAUSE = "expire"
_REASON = "needed only by snapshots that expired"
# How often we plan again because of a tag, branch or pin made after the plan, or because others expire the same.
_ATTEMPTS = 5
# How often others may commit between our last reading of the holds and our commit, and the wait then, in seconds.
_COMMITS = 16
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 5.0


def prepare(deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    """The plan, and the files that only the planned snapshots need.

    Another tool may expire and delete the metadata that we are reading: then the plan is made again for the current table.
    """
    ref = view.ref
    for left in reversed(range(_ATTEMPTS)):
        try:
            made = _prepared(deps, format_, view, policy, now)
            break
        except (Refused, PolicyError):
            raise
        except LakewardenError as error:
            view = read_again("expire", view, lambda: format_.view(ref), error, last=not left)
    return made


def _prepared(
    deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    expire.check(view, now)
    handed = handed_off(format_, view, policy)
    plan = expire.plan(
        view, policy, gather(view, deps.state, now, policy.hours("snapshot_restart_hours")), now, handed
    )
    ids = expire.snapshots_to_drop(plan)
    refs, changelogs = expire.refs_to_drop(plan, view), expire.changelogs_to_drop(plan)
    if not ids and not refs and not changelogs:
        return Prepared(plan, view, policy)
    files = format_.unreached(view, frozenset(ids), refs, changelogs)
    return Prepared(_with_files(plan, files), view, policy, more=files)


def execute(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    view = prepared.view
    places = places_of(deps, prepared.policy)
    refuse_forked("expire", view, places, lambda: context.format.view(view.ref), deps.state, deps.lake.strays)
    confirm_state("expire", view, deps.state)
    for _ in range(_ATTEMPTS):
        context.stop.check()
        try:
            return _attempt(prepared, deps, context)
        except HeldByRef as error:
            context.progress.note(f"{error}: planning again")
            TrashedFiles(deps.state).void(context.run_id)
            view = context.format.view(prepared.view.ref)
            prepared = prepare(deps, context.format, view, prepared.policy, clock.now())
            if prepared.plan.empty:
                return Outcome(RunState.NOTHING_TO_DO, f"{error} since the plan was made")
    return Outcome(
        RunState.LOST_RACE, f"new refs, pins or streaming writers held these snapshots {_ATTEMPTS} times"
    )


def _attempt(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    view, plan = prepared.view, prepared.plan
    ids, refs = expire.snapshots_to_drop(plan), expire.refs_to_drop(plan, view)
    changelogs = expire.changelogs_to_drop(plan)
    files = prepared.more if prepared.more is not None else _NO_FILES
    with progress_of(context, f"{plan.job} {view.ref}"):
        _write_down(deps, context, view, files, ids, refs, changelogs)
        result = _commit(prepared, files.num_rows, deps, context)
    if not result.done:
        return Outcome(result.state, result.reason)
    return Outcome(RunState.DONE, "", _counters(files, len(ids), len(refs), len(changelogs)))


def _commit(prepared: Prepared, files: int, deps: JobDeps, context: RunContext) -> CommitResult[None]:
    """Expire exactly the state of the table for which the holds were read last. If others committed in between,
    read both again.
    """
    ref, plan, trashed = prepared.view.ref, prepared.plan, TrashedFiles(deps.state)
    ids, refs = expire.snapshots_to_drop(plan), expire.refs_to_drop(plan, prepared.view)
    changelogs = expire.changelogs_to_drop(plan)

    def commit() -> None:
        now = context.format.view(ref)
        # A pin made since the plan is seen here, because it was written before its maker looked at the step that was
        # journaled. The maker of a later pin sees that step, and learns that the snapshot expires.
        _refuse_held(deps, now, prepared.policy, ids)
        judged = replace(prepared.view, metadata_location=now.metadata_location)
        context.writer.expire(judged, ids, refs, changelogs)

    def enforce(_: None) -> dict[str, Any]:
        return {"batch": trashed.enforce(context.run_id, clock.now()).id, "files": files}

    def void(error: CommitLost) -> CleanupResult:
        trashed.void(context.run_id)
        return CleanupResult.GONE

    intent = {"snapshot_ids": list(ids), "refs": refs, "changelogs": list(changelogs)}
    steps = (DeletingStep.EXPIRING, DeletingStep.TRASHED)
    for number in range(_COMMITS):
        try:  # the intent is journaled each time: another process may have taken the run over since
            return journaled_commit(context, intent, commit, enforce, discard=void, steps=steps)
        except TableChanged:
            clock.sleep(min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**number))
    lost = CommitLost(table=ref, reason=f"other writers committed first {_COMMITS} times")
    void(lost)
    return CommitResult(ending(lost), lost.message, error=lost)


def _write_down(
    deps: JobDeps,
    context: RunContext,
    view: TableView,
    files: pa.Table,
    ids: tuple[int, ...],
    refs: Collection[str],
    changelogs: Collection[int],
) -> None:
    """Write down what must be known before a snapshot is gone: its summary, and the files that only it needs."""
    now, chosen = clock.now(), set(ids)
    SnapshotArchive(deps.state).add(view, (s for s in view.snapshots if s.id in chosen), context.run_id, now)
    stamped = files.append_column("stamp", pa.nulls(files.num_rows, pa.string()))
    detail = {
        "snapshot_ids": list(ids),
        "refs": list(refs),
        "changelogs": list(changelogs),
        "metadata": view.metadata_location,
    }
    TrashedFiles(deps.state).trash(
        context.run_id, str(view.ref), view.uuid, CAUSE, _REASON, stamped, detail, now
    )
    context.step(DeletingStep.TRASHING, {"batch": context.run_id, "files": files.num_rows})


# Holds that may be newer than the plan and are no refs of the table. The commit itself checks the refs.
_HELD_BY = {HoldKind.PIN: "the pin of", HoldKind.STREAM: "the restart of"}


def _refuse_held(deps: JobDeps, view: TableView, policy: Policy, ids: tuple[int, ...]) -> None:
    held = gather(view, deps.state, clock.now(), policy.hours("snapshot_restart_hours")).snapshots()
    found = [
        (f"{_HELD_BY[hold.kind]} {hold.holder}", snapshot_id)
        for snapshot_id in ids
        for hold in held.get(snapshot_id, ())
        if hold.kind in _HELD_BY
    ]
    if found:
        raise HeldByRef(list(dict.fromkeys(found)))


def settle(deps: JobDeps, batch: TrashBatch, view: TableView) -> bool:
    """Settle a batch whose run ended before it was in force, by whether its snapshots are gone. True if they are.

    Where snapshots expire one by one, some may be gone: then the batch is in force, and purge keeps the files that the
    others need.
    """
    left, all_ = remaining(batch, view), planned(batch)
    if view.uuid == batch.table_uuid and (not left or (view.in_order and left < all_)):
        TrashedFiles(deps.state).enforce(batch.id, clock.now())
        return True
    TrashedFiles(deps.state).void(batch.id)
    return False


def planned(batch: TrashBatch) -> frozenset[object]:
    """What the run of a batch planned to drop: snapshots by id. Refs by name only if there were no snapshots: a name may be
    used again.

    Changelogs if there were no refs either: they are dropped last.
    """
    told = batch.detail
    changelogs = [_changelog(each) for each in told.get("changelogs", ())]
    return frozenset(told["snapshot_ids"] or told.get("refs", ()) or changelogs)


def remaining(batch: TrashBatch, view: TableView) -> frozenset[object]:
    """The planned drops that the table still has."""
    there: set[object] = {each.id for each in view.snapshots}
    there |= {each.name for each in view.refs}
    there |= {_changelog(each) for each in (view.changelogs.made_at if view.changelogs else ())}
    return planned(batch) & there


def _changelog(id_: int) -> str:
    return f"changelog {id_}"


_NO_FILES = pa.table(
    {"path": pa.array([], pa.string()), "kind": pa.array([], pa.string()), "size": pa.array([], pa.int64())}
)


def _with_files(plan: Plan, files: pa.Table) -> Plan:
    actions = tuple(TrashFiles(kind, count, size or 0, _REASON) for kind, count, size in _by_kind(files))
    return replace(plan, actions=plan.actions + actions, trash=ManyTrashed(files, _REASON))


def _by_kind(files: pa.Table) -> list[tuple[str, int, int]]:
    grouped = files.group_by("kind").aggregate([("path", "count"), ("size", "sum")])
    rows = grouped.select(["kind", "path_count", "size_sum"]).to_pylist()
    return sorted((row["kind"], row["path_count"], row["size_sum"]) for row in rows)


def _counters(files: pa.Table, snapshots: int, refs: int, changelogs: int) -> dict[str, Any]:
    return {
        "snapshots_expired": snapshots,
        "refs_expired": refs,
        "changelogs_expired": changelogs,
        "files_trashed": files.num_rows,
        "bytes_trashed": pc.sum(files["size"]).as_py() or 0,
        "files_trashed_unsized": files["size"].null_count,
        "data_files_trashed": int(pc.sum(pc.equal(files["kind"], "data")).as_py() or 0),
    }
