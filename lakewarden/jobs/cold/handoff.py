"""handoff: copies snapshots that will expire soon to a cold tier, where they stay readable. The steps in order:

    plan       the snapshots that would expire and are not in the cold table yet, and their files without a copy
    copy       a Spark task streams each file, reads the copy back and compares it; journaled in batches, so that a stop
               loses at most one; files that contain full paths are rewritten with cold paths (`copies.py`)
    register   add these snapshots to the cold table

If the process stops before the last step, the cold table does not name the copies, and the next run finds them in the records.
The live table is not changed: expire waits until a snapshot is in the cold table, and purge until each file's copy has been
read once more and is unchanged (`verify_copies.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from lakewarden import clock
from lakewarden.deletion.holds import gather
from lakewarden.errors import CommitLost
from lakewarden.jobs.cold.copies import Copier, present, without
from lakewarden.jobs.cold.cost import hand_off_cost
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.expire import plan as expire
from lakewarden.jobs.journaled_commit import ending, journaled_commit
from lakewarden.jobs.recovery import IN_FLIGHT, RunResult
from lakewarden.jobs.run_context import DeletingStep, Outcome, Prepared, RunContext
from lakewarden.jobs.units import progress_of
from lakewarden.model.actions import HandOff
from lakewarden.model.plan import Bounds, Plan, count_skipped
from lakewarden.model.prices import PRICES, Price
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job, Run, RunState
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.runs import Journal
from lakewarden.tables.interface import TableFormat


def prepare(deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    """Plan the hand-off. Reads only metadata. Files with a copy are not planned again."""
    if not policy.bool("handoff_enabled"):
        return Prepared(plan(view, policy, now), view, policy)
    expire.check(view, now)
    wanted = expire.plan(
        view, policy, gather(view, deps.state, now, policy.hours("snapshot_restart_hours")), now
    )
    tier = format_.cold_tier()
    home = tier.find(view, policy.text("handoff_catalog"))
    expiring = Expiring(_leaving(wanted, view), home.snapshots if home else frozenset(), wanted)
    if not expiring.left:
        return Prepared(plan(view, policy, now, expiring), view, policy)
    files = tier.closure(view, expiring.left)
    have = {path for step in tier.order(files) for path in present(deps.state, tier, view, home, step)}
    new = without(files, have)
    tier.check(view, new)
    sizes = new["size"].fill_null(0).to_pylist()
    made = plan(view, policy, now, expiring, sizes, files.num_rows, deps.prices)
    return Prepared(made, view, policy, more=files)


@dataclass(frozen=True, slots=True)
class Expiring:
    """Snapshots that expire next, and those that the cold table has."""

    snapshot_ids: tuple[int, ...]
    there: frozenset[int]
    wanted: Plan

    @property
    def left(self) -> tuple[int, ...]:
        return tuple(each for each in self.snapshot_ids if each not in self.there)


def plan(
    view: TableView,
    policy: Policy,
    now: datetime,
    expiring: Expiring | None = None,
    sizes: Sequence[int] = (),
    files: int = 0,
    prices: Mapping[str, Price] = PRICES,
) -> Plan:
    """Hand off the snapshots that the cold table does not have. `sizes` are those of their files without a copy, `files` is
    how many files they have in all. Without `expiring`, hand-off is switched off.
    """
    empty = Plan(
        Job.HANDOFF, view.ref, now, Bounds(view.current_snapshot_id, "main", 0), policy.hash(), reason=""
    )
    if expiring is None:
        return replace(empty, reason=f"switched off: {policy.explain('handoff_enabled')}", off=True)
    ids, left = expiring.snapshot_ids, expiring.left
    done = Reason(ReasonKind.SETTLED, "handed off already")
    skipped = count_skipped(
        [("snapshot", 1, 0, done) for each in ids if each in expiring.there]
        + [each.row() for each in expiring.wanted.skipped if each.what == "snapshot"]
    )
    if not left:
        why = f"all {len(ids):,} snapshots that may expire are handed off" if ids else "no snapshot expires"
        return replace(empty, reason=why, skipped=skipped)
    action = HandOff(
        left,
        policy.text("handoff_catalog"),
        len(sizes),
        sum(sizes),
        files - len(sizes),
        expiring.wanted.reason,
        hand_off_cost(sizes, None, policy.maybe_text("handoff_storage_class"), prices),
    )
    reason = f"{len(left):,} snapshots expire next: {len(sizes):,} of the files they need have no copy yet"
    return replace(empty, actions=(action,), reason=reason, skipped=skipped)


def _leaving(wanted: Plan, view: TableView) -> tuple[int, ...]:
    return (*expire.snapshots_to_drop(wanted), *_kept_by_tags(wanted, view))


def _kept_by_tags(wanted: Plan, view: TableView) -> list[int]:
    """Snapshots that expired earlier and whose last copy is in a tag that expires now."""
    going = expire.refs_to_drop(wanted, view)
    held = {ref.snapshot_id for ref in view.refs if ref.name in going and ref.kind == "tag" and ref.has_copy}
    return sorted(each for each in held if view.snapshot(each) is None)


def handed_off(format_: TableFormat, view: TableView, policy: Policy) -> frozenset[int] | None:
    """The snapshots in the cold table; None if the policy does not enable hand-off."""
    if not policy.bool("handoff_enabled"):
        return None
    home = format_.cold_tier().find(view, policy.text("handoff_catalog"))
    return home.snapshots if home else frozenset()


def settle(journal: Journal, format_: TableFormat, table: TableRef, run: Run) -> RunResult | None:
    """The real outcome of a hand-off that stopped: the cold table has its snapshots or not. None while a commit may still arrive."""
    handing = [step for step in journal.steps(run.id) if step.name == DeletingStep.HANDING]
    if not handing:
        return RunResult(RunState.FAILED, "it had not started to copy")
    snapshot_ids = frozenset(handing[-1].detail["snapshot_ids"])
    home = format_.cold_tier().find(format_.view(table), TableRef.parse(handing[-1].detail["cold"]).catalog)
    if home is not None and home.snapshots >= snapshot_ids:
        return RunResult(RunState.DONE, f"{home.ref} has its snapshots")
    if clock.now() - handing[-1].at < IN_FLIGHT and run.state is RunState.UNKNOWN:
        return None
    return RunResult(RunState.FAILED, "its copies are recorded; the next run continues from there")


def execute(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    (action,) = (action for action in prepared.plan.actions if isinstance(action, HandOff))
    files: pa.Table = prepared.more
    writer = context.writer.cold()
    with progress_of(context, f"handoff {prepared.view.ref}", action.bytes):
        try:
            home = writer.make(prepared.view, action.catalog)
        except (
            CommitLost
        ) as error:  # before the first step: this run has no deletion batch that is to be voided
            return Outcome(ending(error), error.message)
        detail = {"cold": str(home.ref), "location": home.location, "snapshot_ids": list(action.snapshot_ids)}
        storage_class = prepared.policy.maybe_text("handoff_storage_class")
        copier = Copier(prepared.view, home, deps.state, context, storage_class)

        def commit() -> None:
            copier.copy(files)
            tags = [
                each
                for each in prepared.view.refs
                if each.kind == "tag" and each.snapshot_id in action.snapshot_ids
            ]
            writer.register(prepared.view, home, action.snapshot_ids, tags)

        steps = (DeletingStep.HANDING, DeletingStep.HANDED)
        result = journaled_commit(context, detail, commit, lambda _: detail, steps=steps)
    if not result.done:
        return Outcome(result.state, result.reason)
    return Outcome(RunState.DONE, "", {"snapshots_handed_off": len(action.snapshot_ids), **copier.counters})
