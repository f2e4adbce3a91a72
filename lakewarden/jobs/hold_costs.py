"""The cost of each hold: the bytes that exist only because of it and would be freed without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow.compute as pc

from lakewarden.deletion.holds import Holds
from lakewarden.jobs.expire import plan as expire
from lakewarden.model.hold import Hold
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.storage.objects import Objects
from lakewarden.tables.interface import TableFormat


def hold_costs(
    format_: TableFormat, view: TableView, policy: Policy, holds: Sequence[Hold], now: datetime
) -> tuple[int | None, ...]:
    """Bytes by hold, in order; None where they cannot be known: a prefix covers files that may not be there yet.

    Measured against what the policy alone (without a limit per run) would keep. Two holds on one snapshot cost nothing
    each: either keeps it.
    """
    stay = _kept_without(view, policy, now)
    held = Holds(tuple(holds)).snapshots()
    shared = {snapshot_id for snapshot_id, own in held.items() if len(own) > 1}
    return tuple(_cost(format_, view, stay, each, shared) for each in holds)


def _kept_without(view: TableView, policy: Policy, now: datetime) -> set[int]:
    """Snapshots that would stay with no hold at all: the window, the newest few, the current one."""
    alone = replace(view, refs=tuple(ref for ref in view.refs if ref.name == "main"))
    free = expire.snapshots_to_drop(expire.plan(alone, policy, Holds(), now))
    return {each.id for each in view.snapshots} - set(free)


def _cost(format_: TableFormat, view: TableView, stay: set[int], hold: Hold, shared: set[int]) -> int | None:
    if hold.snapshot_id is None:
        return _cost_of_files(format_, view, hold)
    there = {each.id for each in view.snapshots}
    alone = ({hold.snapshot_id, *hold.chain} & there) - stay - shared
    if not alone:
        return 0
    wanted = stay | alone
    only = replace(view, snapshots=tuple(each for each in view.snapshots if each.id in wanted))
    freed = format_.unreached(only, alone)
    return int(pc.sum(freed["size"]).as_py() or 0)


def _cost_of_files(format_: TableFormat, view: TableView, hold: Hold) -> int | None:
    if hold.prefixes or not hold.paths:
        return None
    sizes = Objects(format_.write_properties(view.ref)).look(list(hold.paths))["size"]
    return int(pc.sum(sizes).as_py() or 0)
