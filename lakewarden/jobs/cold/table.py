"""The current state of a table's cold tier: its snapshots, when each was handed off, and the files that only
some need. Cold tables are read only: only hand-off writes to them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import Refused
from lakewarden.jobs.cold.cost import ColdCopy
from lakewarden.jobs.deps import JobDeps
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.table import TableView, cold_source
from lakewarden.policy.resolve import Policy
from lakewarden.state.cold import ColdFile, ColdSnapshots, ColdTables
from lakewarden.state.database import State
from lakewarden.tables.interface import ColdHome, ColdTier, TableFormat

NOT_KNOWN = Reason(ReasonKind.NOT_KNOWN, "its hand-off time is unknown")


@dataclass(frozen=True, slots=True)
class Cold:
    """A cold table. `handed` maps each snapshot to the time of its hand-off, if known."""

    home: ColdHome
    view: TableView
    tier: ColdTier
    handed: dict[int, datetime]

    def only(self, snapshot_ids: Collection[int]) -> pa.Table:
        """The files that only these snapshots of the cold table need: path, kind, size."""
        mine = self.tier.closure(self.view, snapshot_ids)
        rest = [snapshot.id for snapshot in self.view.snapshots if snapshot.id not in snapshot_ids]
        if not rest:
            return mine
        others = self.tier.closure(self.view, rest)["path"]
        return mine.filter(pc.invert(pc.is_in(mine["path"], value_set=others.combine_chunks())))


def look(deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy) -> Cold | None:
    """The cold table; None if nothing was handed off yet."""
    home = format_.cold_tier().find(view, policy.text("handoff_catalog"))
    if home is None:
        return None
    cold = deps.lake.format_for(home.ref)
    known = ColdSnapshots(deps.state).handed(view.uuid)
    handed = {snapshot: known[snapshot] for snapshot in home.snapshots if snapshot in known}
    return Cold(home, cold.view(home.ref), cold.cold_tier(), handed)


def cold_copies(copies: Sequence[ColdFile], now: datetime) -> list[ColdCopy]:
    """The copies with size, class and age, for computing their cost."""
    return [
        ColdCopy(copy.size, copy.storage_class, (now - (copy.class_since or now)).total_seconds() / 86400)
        for copy in copies
    ]


def refuse_frozen(action: str, view: TableView, state: State) -> None:
    """Raises Refused for a cold table. It has the only copy of expired data: no job rewrites it, and only retention removes data.

    A table property alone is not enough: any writer can set it, and then no job would ever run on that table again. Paimon's
    views show the property only if hand-off created the table. If the state database was lost, an Iceberg table that hand-off
    created still has gc.enabled=false, so expire, sweep and purge refuse it.
    """
    if view.format == "paimon":
        live = cold_source(view.properties)
    else:
        live = ColdTables(state).source(view.properties, view.uuid, view.location)
    if live:
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"it is the colder tier of {live}, and read only",
            hint=f"run the job on {live} instead",
        )
