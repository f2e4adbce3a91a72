"""Reads the inputs of the planners of compact and compact-deletes, then plans. Changes nothing."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from lakewarden.jobs.compact import buckets, deletes, plan
from lakewarden.jobs.compact.cluster import clustering
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.run_context import Prepared
from lakewarden.model.run import Job
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.order.sort_keys import unfit_ordering
from lakewarden.rewrite.write.encoding import unfit_properties
from lakewarden.tables.interface import RewriteSupport, TableFormat


def prepare_compact(
    deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    if view.keyed:
        return buckets.prepare(format_, view, policy, now)
    plan.check(view, policy)
    rewrites = format_.rewrites()
    untouched = rewrites.left_alone(view)
    if untouched:
        return Prepared(plan.leave_alone(Job.COMPACT, view, policy, untouched, now), view, policy)
    head = view.head(policy.text("rewrite_branch"))
    chosen = clustering(view, policy)
    where = policy.maybe_text("rewrite_where")
    files = None if head is None else format_.files(view.ref, head, where, chosen.names)
    shares = rewrites.clustering(view.ref, files, chosen.names) if files and chosen.names else {}
    unfit = _unfit(rewrites, view)
    if unfit is None and chosen.ordering is not None:
        schema = pa.ipc.read_schema(pa.py_buffer(rewrites.arrow_schema(view)))
        unfit = unfit_ordering(chosen.ordering, schema)
    made = plan.plan(view, files, policy, unfit, now, shares)
    return Prepared(made, view, policy, files)


def prepare_deletes(
    deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    if view.keyed:
        return buckets.nothing_to_apply(view, policy, now)
    plan.check(view, policy)
    rewrites = format_.rewrites()
    untouched = rewrites.left_alone(view)
    if untouched:
        return Prepared(plan.leave_alone(Job.COMPACT_DELETES, view, policy, untouched, now), view, policy)
    branch = policy.text("rewrite_branch")
    head = view.head(branch)
    files = None if head is None else format_.files(view.ref, head, policy.maybe_text("rewrite_where"))
    dangling = [] if files is None else rewrites.dangling(view.ref, files, branch)
    made = deletes.plan(view, files, policy, _unfit(rewrites, view), now, dangling)
    return Prepared(made, view, policy, files)


def _unfit(rewrites: RewriteSupport, view: TableView) -> str | None:
    return unfit_properties(rewrites.parquet_properties(view)) or rewrites.unfit(view)
