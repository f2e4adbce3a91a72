"""compact, for tables with primary keys: buckets with many sorted runs are merged by the format's own engine.

A reader merges all sorted runs of a bucket by key, so their number is the cost of reading. The Arrow kernel cannot
merge the rows: the table's merge engine decides which of several rows with one key counts. So Paimon's own engine
does it, one bucket in one Spark task. The planner is pure: buckets in, merges out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from lakewarden.errors import PolicyError
from lakewarden.jobs.compact.binpack import limit_reason, unit_bound
from lakewarden.jobs.compact.cluster import CURVES
from lakewarden.jobs.compact.partition_age import no_period
from lakewarden.jobs.run_context import Prepared
from lakewarden.model.actions import MergeBuckets
from lakewarden.model.files import Bucket
from lakewarden.model.plan import Bounds, Plan, SkippedRow, count_skipped
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.tables.interface import Buckets, TableFormat

# A full merge is worth it if at least this part of the bucket (1 in N) is new.
_FRESH_PART = 4


def prepare(format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    """Read the state of every bucket, then plan. Changes nothing."""
    check(view, policy)
    head = view.current_snapshot_id
    found = None if head is None else format_.rewrites().bucket_engine().buckets(view, head)
    return Prepared(plan(view, found, policy, now), view, policy)


def nothing_to_apply(view: TableView, policy: Policy, now: datetime) -> Prepared:
    """compact-deletes has nothing to do for such a table: rows deleted by key disappear when their bucket is merged."""
    made = replace(
        _empty(Job.COMPACT_DELETES, view, policy, now), reason="deletes by key are applied by `compact`"
    )
    return Prepared(made, view, policy)


def check(view: TableView, policy: Policy) -> None:
    """Refuse policy settings that do not work with primary keys: a branch other than main, a filter, a sort or a curve."""
    asked = {
        "rewrite_branch": policy.text("rewrite_branch") != "main",
        "rewrite_where": policy.maybe_text("rewrite_where") is not None,
        "rewrite_strategy": policy.text("rewrite_strategy") in ("sort", *CURVES),
    }
    for key, wrong in asked.items():
        if wrong:
            reason = f"found {policy[key]!r}; {view.ref} has primary keys: whole buckets of main are merged, in the order of the keys"
            raise PolicyError(key=key, reason=reason)


def plan(view: TableView, found: Buckets | None, policy: Policy, now: datetime) -> Plan:
    """Which buckets are merged, how far, and why every other one is skipped."""
    empty = _empty(Job.COMPACT, view, policy, now)
    if not policy.bool("rewrite_enabled"):
        return replace(empty, reason=f"switched off: {policy.explain('rewrite_enabled')}", off=True)
    if found is None:
        return replace(empty, reason="the table has no snapshot yet")
    skipped: list[SkippedRow] = []
    chosen: list[_Choice] = []
    for bucket in found.buckets:
        choice = _choose(bucket, found, policy)
        if isinstance(choice, Reason):
            skipped.append(("bucket", 1, bucket.bytes, choice))
        else:
            chosen.append(choice)
    merges = list(_merges(chosen, policy))
    kept, deferred = _within_limit(merges, policy)
    skipped.extend(("bucket", len(each.buckets), each.bytes, limit_reason(policy)) for each in deferred)
    return replace(
        empty,
        actions=tuple(replace(each, number=number) for number, each in enumerate(kept)),
        skipped=count_skipped(skipped),
        reason=_summary(kept),
        cut_short=limit_reason(policy).text if deferred else "",
    )


def _empty(job: Job, view: TableView, policy: Policy, now: datetime) -> Plan:
    return Plan(
        job=job,
        table=view.ref,
        made_at=now,
        bounds=Bounds(view.current_snapshot_id, "main", policy.int("rewrite_max_bytes")),
        policy_hash=policy.hash(),
        reason="",
        strategy="merge",
        target_bytes=policy.int("rewrite_target_bytes"),
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    bucket: Bucket
    full: bool
    reason: str


def _choose(bucket: Bucket, found: Buckets, policy: Policy) -> _Choice | Reason:
    """How a bucket is merged, with the reason, or why it is not merged."""
    if found.unfit:
        return Reason(ReasonKind.UNFIT, found.unfit)
    if bucket.number < 0:
        return Reason(ReasonKind.UNFIT, "its rows have no bucket yet: Paimon's writers assign it")
    if policy.maybe_hours("rewrite_sealed_after_hours") is not None:
        return no_period(policy)
    if bucket.runs >= max(2, policy.int("rewrite_min_input_files")):
        reason = f"many sorted runs: {policy.explain('rewrite_min_input_files')}"
        return _Choice(bucket, _is_full(bucket, policy), reason)
    if found.hidden and bucket.fresh:
        return _Choice(
            bucket, _is_full(bucket, policy), "readers see new rows of this table only once they are merged"
        )
    if bucket.runs < 2:
        return Reason(ReasonKind.SETTLED, "one sorted run: nothing to merge")
    return Reason(ReasonKind.TOO_FEW, f"few sorted runs: {policy.explain('rewrite_min_input_files')}")


def _is_full(bucket: Bucket, policy: Policy) -> bool:
    asked = policy.text("rewrite_merge")
    if asked != "auto":
        return asked == "full"
    new = bucket.bytes - bucket.settled_bytes
    return bucket.bytes <= policy.int("rewrite_target_bytes") or new * _FRESH_PART >= bucket.bytes


def _merges(chosen: Sequence[_Choice], policy: Policy) -> Iterator[MergeBuckets]:
    """Units of work and commit: buckets of one partition that are merged alike, up to the bound of a group."""
    ordered = sorted(
        chosen, key=lambda each: (each.bucket.partition, each.reason, each.full, each.bucket.number)
    )
    alike = groupby(ordered, key=lambda each: (each.bucket.partition, each.reason, each.full))
    for (partition, reason, full), members in alike:
        for unit in _units([each.bucket for each in members], unit_bound(policy)):
            yield MergeBuckets(0, partition, unit, full, reason)


def _units(buckets: Sequence[Bucket], bound: int) -> Iterator[tuple[Bucket, ...]]:
    unit: list[Bucket] = []
    for bucket in buckets:
        if unit and sum(each.bytes for each in unit) + bucket.bytes > bound:
            yield tuple(unit)
            unit = []
        unit.append(bucket)
    if unit:
        yield tuple(unit)


def _within_limit(
    merges: list[MergeBuckets], policy: Policy
) -> tuple[list[MergeBuckets], list[MergeBuckets]]:
    """Until the run's input limit is reached; the first always fits, so every run makes progress."""
    limit = policy.maybe_int("rewrite_max_bytes_per_run")
    taken = 0
    for index, each in enumerate(merges if limit is not None else ()):
        taken += each.bytes
        if index and limit is not None and taken > limit:
            return merges[:index], merges[index:]
    return merges, []


def _summary(merges: Sequence[MergeBuckets]) -> str:
    if not merges:
        return "nothing is worth merging"
    buckets = sum(len(each.buckets) for each in merges)
    runs = sum(each.runs for each in merges)
    return f"{runs} sorted runs of {buckets} bucket{'s' if buckets != 1 else ''} are merged by Paimon's own engine"
