"""The outcome of a run, summed up from the results of its groups. A group that lost the race although its
files still exist is written again, with the newly arrived deletes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.jobs.compact.binpack import Candidate, candidates
from lakewarden.jobs.compact.delete_files import DeleteFileResult
from lakewarden.jobs.run_context import Outcome, RunContext
from lakewarden.jobs.units import reasons_of, state_of
from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.digest import Digest
from lakewarden.rewrite.interface import GroupResult


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one group. Only a DONE group has a snapshot, unless the snapshot has already expired."""

    group: RewriteGroup
    state: RunState
    reason: str
    snapshot_id: int | None = None
    output_files: int = 0
    output_bytes: int = 0
    cpu_seconds: float = 0.0
    peak_rss: int = 0
    engine: str = ""
    erased: int = 0
    carried: int = 0
    row_groups: int = 0
    waited: float = 0.0
    exchanged: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def done(
        cls,
        written: GroupResult,
        snapshot_id: int | None,
        shares: Mapping[str, float] | None = None,
        carried: int = 0,
    ) -> Result:
        return cls(
            group=written.group,
            state=RunState.DONE,
            reason=written.group.engine_reason,
            snapshot_id=snapshot_id,
            output_files=len(written.outputs),
            output_bytes=sum(file.bytes for file in written.outputs),
            cpu_seconds=written.cpu_seconds,
            peak_rss=written.peak_rss,
            engine=written.engine,
            erased=written.erased,
            carried=carried,
            row_groups=sum(max(1, len(file.split_offsets)) for file in written.outputs),
            shares=shares or {},
            waited=written.waited,
            exchanged=written.exchanged,
        )


def outcome(
    plan: Plan,
    results: Sequence[Result],
    interrupted: bool,
    chores: Sequence[DeleteFileResult] = (),
    speed: Mapping[str, float] | None = None,
) -> Outcome:
    endings = [(each.state, each.snapshot_id) for each in results]
    endings += [(each.state, each.snapshot_id) for each in chores]
    snapshots = tuple(
        dict.fromkeys(id_ for state, id_ in endings if state is RunState.DONE and id_ is not None)
    )
    state = state_of(plan, {state for state, _ in endings}, interrupted)
    if state is RunState.DONE and not snapshots and not results:
        state = RunState.NOTHING_TO_DO
    reason = "; ".join(part for part in (_reason(plan, results, state), *_chore_reasons(chores)) if part)
    counters = {
        **_counters(results),
        "commits": len(snapshots),
        **(speed or {}),
    }
    return Outcome(state, reason, counters, snapshots)


def _chore_reasons(chores: Sequence[DeleteFileResult]) -> list[str]:
    reasons = [f"delete files: {each.reason}" for each in chores if each.reason]
    if any(each.state is RunState.DONE and each.snapshot_id is None for each in chores):
        reasons.append("delete files that applied to nothing are needed again, or gone already")
    return reasons


def _reason(plan: Plan, results: Sequence[Result], state: RunState) -> str:
    """Every different reason once, with the first few of its partitions."""
    if state is RunState.DONE:
        return _engines(results)
    skipped = [each for each in results if each.state is not RunState.DONE]
    return reasons_of(plan, [(each.reason, [each.group.partition]) for each in skipped])


def _engines(results: Sequence[Result]) -> str:
    told = dict.fromkeys((each.engine, each.reason) for each in results if each.engine != "arrow")
    return "; ".join(f"by {engine.capitalize()}'s own writer: {reason}" for engine, reason in told)


def _counters(results: Sequence[Result]) -> dict[str, Any]:
    done = [each for each in results if each.state is RunState.DONE]
    return {
        "files_compacted": sum(each.group.files for each in done),
        "files_added": sum(each.output_files for each in done),
        "bytes_before": sum(each.group.bytes for each in done),
        "bytes_after": sum(each.output_bytes for each in done),
        "rows": sum(each.group.rows - each.erased for each in done),
        "rows_erased": sum(each.erased for each in done),
        "deletes_carried_over": sum(each.carried for each in done),
        "row_groups_before": sum(each.group.row_groups for each in done),
        "row_groups_after": sum(each.row_groups for each in done),
        "groups_done": len(done),
        "groups_skipped": len(results) - len(done),
        "groups_exchanged": sum(each.exchanged for each in done),
        "task_cpu_seconds": round(sum(each.cpu_seconds for each in done), 2),
        "task_peak_rss_bytes": max((each.peak_rss for each in done), default=0),
        "clustering": _clustering(done),
    }


def speed(results: Sequence[Result], read_bytes: int, seconds: float, backed_off: float) -> dict[str, float]:
    """How fast the rows moved while they were written, and how long budgets held them back (task by task, added up)."""
    done = [each for each in results if each.state is RunState.DONE]
    over = max(seconds, 0.001) * 1_000_000
    return {
        "read_mb_per_s": round(read_bytes / over, 2),
        "write_mb_per_s": round(sum(each.output_bytes for each in done) / over, 2),
        "throttled_seconds": round(sum(each.waited for each in done), 2),
        "backoff_seconds": round(backed_off, 2),
    }


def _clustering(done: Sequence[Result]) -> dict[str, dict[str, float]]:
    """For each cluster column: the share of files a query for one value opens, before and after, over all groups."""
    columns = dict.fromkeys(name for each in done for name in each.shares)
    return {
        name: {
            "before": _mean([each.group.share_before.get(name, 1.0) for each in done if name in each.shares]),
            "after": _mean([each.shares[name] for each in done if name in each.shares]),
        }
        for name in columns
    }


def _mean(shares: Sequence[float]) -> float:
    return round(sum(shares) / len(shares), 4)


def digest_of(written: Sequence[GroupResult]) -> str:
    """The digest for the summary: of every row, or, where pages were copied, of the values that were decoded."""
    digests = [each.written for each in written if each.written is not None]
    if len(digests) < len(written):
        return ""
    total = sum(digests, Digest())
    if any(each.copied for each in written):
        return total.text("values-v1") if total.rows else ""
    return str(total)


def proof_of(written: Sequence[GroupResult]) -> str:
    """How the rows were proven, as parts joined by `+`.

    rows: every row by its digest. pages: the checksums of pages that were copied. values: beside those, the columns that were
    decoded, by a digest of what was read and of what was written. count: only the number of rows is checked, or, if the
    format's own writer applied deletes or merged rows of one key, that there are not more rows than before.
    """
    return "+".join(sorted({kind for each in written for kind in _proofs(each)}))


def _proofs(written: GroupResult) -> set[str]:
    if not written.copied:
        return {"count" if written.written is None else "rows"}
    if written.written is None:
        return {"pages", "count"}
    # Of no rows: every column was copied.
    return {"pages", "values"} if written.written.rows else {"pages"}


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """A plan of new groups on the newest snapshot, instead of these."""

    plan: Plan
    files: FileSet
    instead_of: frozenset[int]


def redo(
    plan: Plan, results: Sequence[Result], view: TableView, policy: Policy, context: RunContext
) -> RetryPlan | None:
    """A plan for the groups that lost the race although all their files still exist; None if there are none.

    Commits of groups that the kernel packed carry new deletes over, so they rarely come here. If rows change their order,
    or Iceberg's own writer wrote them, the new place of a deleted row is not known.
    """
    lost = [each.group for each in results if each.state is RunState.LOST_RACE]
    if not lost:
        return None
    branch = plan.bounds.branch
    fresh = context.format.view(view.ref)
    head = fresh.head(branch)
    if head is None:
        return None
    names = list(lost[0].share_before)
    files = context.format.files(view.ref, head, policy.maybe_text("rewrite_where"), names)
    live = _live(files, lost)
    whole = [group for group in lost if all(path in live for path in group.paths())]
    if not whole:
        return None
    # Chores are numbered after the plan's groups.
    start = max(len(plan.actions), *(each.group.number + 1 for each in results))
    groups = tuple(_renewed(group, number, live) for number, group in enumerate(whole, start))
    for group in whole:
        context.progress.note(
            f"writing {group.partition or 'the table'} again: deletes arrived during the rewrite"
        )
    bounds = replace(plan.bounds, base_snapshot_id=head)
    return RetryPlan(
        replace(plan, actions=groups, bounds=bounds), files, frozenset(group.number for group in whole)
    )


def _live(files: FileSet, groups: Sequence[RewriteGroup]) -> dict[str, Candidate]:
    wanted = pa.array([path for group in groups for path in group.paths()])
    return {each.path: each for each in candidates(files.files, pc.is_in(files.files["path"], wanted))}


def _renewed(group: RewriteGroup, number: int, live: Mapping[str, Candidate]) -> RewriteGroup:
    """The same files with their current deletes. Every scan numbers partitions and deletes again."""
    bins = tuple(
        replace(bin_, sources=tuple(replace(each, deletes=live[each.path].deletes) for each in bin_.sources))
        for bin_ in group.bins
    )
    return replace(group, number=number, partition_id=live[group.paths()[0]].partition, bins=bins)
