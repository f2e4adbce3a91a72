"""purge: delete trashed files whose grace period is over, after proving again that no table needs them.

This file decides which files are due; `execute.py` proves and deletes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakewarden.deletion.holds import Holds, gather
from lakewarden.errors import Refused
from lakewarden.jobs.cold.handoff import handed_off
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.expire.execute import CAUSE as EXPIRE
from lakewarden.jobs.purge.execute import Purger, pin_on_what_is_gone, refuse_shared
from lakewarden.jobs.run_context import Outcome, Prepared, RunContext
from lakewarden.model.actions import EraseFiles
from lakewarden.model.plan import Bounds, Plan, SkippedRow, count_skipped
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import TableView
from lakewarden.policy.graces import due_at, grace_key
from lakewarden.policy.resolve import Policy
from lakewarden.state.cold import ColdSnapshots
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import BatchFiles, BatchState, Tally, TrashBatch
from lakewarden.tables.interface import TableFormat

# Older than any writer: with this age, only holds by path match.
_OLD = datetime.min.replace(tzinfo=UTC)

Held = Mapping[str, Sequence[tuple[Reason, Tally]]]


def prepare(deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    """Read the trash and the holds, then plan. Changes nothing, touches no file."""
    files = TrashedFiles(deps.state)
    batches = files.batches(str(view.ref), view.uuid)
    causes = {each.batch.cause for each in batches if each.live.files}
    refuse_shared(view, causes)
    check(view, batches)
    holds = gather(view, deps.state, now)
    held = _held(files, view, policy, batches, holds, now)
    handed = handed_off(format_, view, policy) if EXPIRE in causes else None
    if (
        handed is not None
    ):  # snapshots that have left the colder tier were there before: they are not waited for
        handed |= ColdSnapshots(deps.state).left(view.uuid)
    made = plan(view, batches, policy, holds, held, now, handed)
    return Prepared(made, view, policy, more=_graces(batches, policy))


def execute(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    """Prove and delete the due files, batch by batch. Each batch is journaled before and after."""
    graces: Mapping[str, timedelta] = prepared.more
    return Purger(prepared, deps, context).purge(graces)


def check(view: TableView, batches: Sequence[BatchFiles]) -> None:
    """Refuses tables that no policy may allow to purge."""
    for each in batches:
        if each.live.files and each.batch.table_uuid != view.uuid:
            raise Refused(
                action="purge",
                target=view.ref,
                reason=f"{each.live.files} files were trashed for another table of that name "
                f"(uuid {each.batch.table_uuid}, deletion batch {each.batch.id}); this one has uuid {view.uuid}",
                hint=f"it was dropped and created again, or renamed: purge it under its new name, or give those files up: "
                f"`lakewarden restore {view.ref} --run {each.batch.id}`",
            )


def plan(
    view: TableView,
    batches: Sequence[BatchFiles],
    policy: Policy,
    holds: Holds,
    held: Held,
    now: datetime,
    handed_off: Collection[int] | None = None,
) -> Plan:
    """Plan the files of batches whose grace period is over and that nothing holds. Every other trashed file is skipped,
    with its reason.
    """
    actions: list[EraseFiles] = []
    skipped: list[SkippedRow] = []
    for each in batches:
        if not each.live.files:
            continue
        why = _why_not(view, each.batch, policy, holds, now, handed_off)
        if why:
            skipped.append(("file", each.live.files, each.live.bytes, why))
            continue
        kept = held.get(each.batch.id, ())
        skipped.extend(("file", tally.files, tally.bytes, reason) for reason, tally in kept)
        left = Tally(
            each.live.files - sum(tally.files for _, tally in kept),
            each.live.bytes - sum(tally.bytes for _, tally in kept),
        )
        if left.files:
            actions.append(EraseFiles(each.batch.id, left.files, left.bytes, _why(each.batch, policy)))
    empty = Plan(
        job=Job.PURGE,
        table=view.ref,
        made_at=now,
        bounds=Bounds(view.current_snapshot_id, "main", 0),
        policy_hash=policy.hash(),
        reason=_summary(actions, skipped),
    )
    return replace(empty, actions=tuple(actions), skipped=count_skipped(skipped))


def _why_not(
    view: TableView,
    batch: TrashBatch,
    policy: Policy,
    holds: Holds,
    now: datetime,
    handed_off: Collection[int] | None,
) -> Reason | None:
    """Why no file of a batch may be deleted now; None if they may be."""
    due = due_at(batch, policy)
    if batch.state is not BatchState.ACTIVE or due is None:
        return Reason(ReasonKind.RUN_NOT_ENDED, f"the run that marked them, {batch.id}, has not ended")
    if handed_off is not None and batch.cause == EXPIRE:
        waiting = [each for each in batch.detail.get("snapshot_ids", ()) if each not in handed_off]
        if waiting:
            why = f"snapshot {waiting[0]} is not in the colder tier: {policy.explain('handoff_enabled')}"
            return Reason(ReasonKind.HANDOFF, why)
    if due > now:
        grace = policy.explain(grace_key(batch.cause))
        return Reason(ReasonKind.GRACE, f"in the trash until {due:%Y-%m-%d %H:%M} UTC: {grace}")
    hold = pin_on_what_is_gone(view, batch, holds)
    if hold is None:
        return None
    lost = f"pinned by {hold.holder}: snapshot {hold.snapshot_id}, which the table no longer has"
    return Reason(ReasonKind.PIN, lost)


def _why(batch: TrashBatch, policy: Policy) -> str:
    since = f"{batch.trashed_at:%Y-%m-%d %H:%M} UTC" if batch.trashed_at else "never"
    return f"{batch.reason or batch.cause}; trashed {since}, past {policy.explain(grace_key(batch.cause))}"


def _summary(actions: Sequence[EraseFiles], skipped: Sequence[SkippedRow]) -> str:
    waiting = sum(count for _, count, _, _ in skipped)
    if not actions:
        return f"none of {waiting:,} trashed files may go yet" if waiting else "no file is in the trash"
    total = sum(each.files for each in actions)
    rest = f"; {waiting:,} more stay" if waiting else ""
    return f"{total:,} trashed files are past their grace{rest}"


def _graces(batches: Sequence[BatchFiles], policy: Policy) -> dict[str, timedelta]:
    causes = {each.batch.cause for each in batches}
    return {cause: policy.hours(grace_key(cause)) for cause in causes}


def _held(
    files: TrashedFiles,
    view: TableView,
    policy: Policy,
    batches: Sequence[BatchFiles],
    holds: Holds,
    now: datetime,
) -> Held:
    """For each batch, the holds of writers and loads by path. Holds by a file's age are checked when the files are looked
    at.
    """
    if not any(hold.paths or hold.prefixes for hold in holds.holds):
        return {}
    found: dict[str, dict[Reason, Tally]] = {}
    for page in files.due(view.uuid, _graces(batches, policy), now):
        columns = (page.column(name).to_pylist() for name in ("batch_id", "path", "size"))
        for batch, path, size in zip(*columns, strict=True):
            hold = holds.covering(path, _OLD)
            if hold is not None:
                reasons = found.setdefault(batch, {})
                reason = Reason(ReasonKind(hold.kind.value), f"held by {hold.kind} {hold.name}")
                reasons[reason] = reasons.get(reason, Tally()) + Tally(1, size or 0)
    return {batch: tuple(reasons.items()) for batch, reasons in found.items()}
