"""Which changelogs are past their own retention, after their snapshots have expired. Pure.

As Paimon counts it: from the oldest on and without gaps, by the table's own options, which are those of its snapshots where
they are not set. The newest changelog always stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.table import Snapshot, TableView

_OVER = "older than the table's changelog.time-retained, or more than its changelog.num-retained.max"


@dataclass(frozen=True, slots=True)
class Outlived:
    """The changelogs that expire, with the reason, and those that stay, with the reason of the first."""

    gone: tuple[int, ...] = ()
    stay: tuple[int, ...] = ()
    kept: Reason | None = None  # None if none stays
    why: str = _OVER


def outlived_changelogs(view: TableView, expiring: Sequence[Snapshot], now: datetime) -> Outlived:
    """Decide for the existing changelogs and those that the expiring snapshots leave behind."""
    changelogs, newest = view.changelogs, view.current_snapshot_id
    if changelogs is None or newest is None:
        return Outlived()
    made_at = dict(changelogs.made_at)
    if changelogs.decoupled:
        made_at |= {each.id: each.committed_at for each in expiring}
    if not made_at:
        return Outlived()
    ids = sorted(made_at)
    few = f"changelog.num-retained.min={changelogs.at_least} of the table"
    limit = "left for the next run: snapshot.expire.limit of the table"
    # Each keeps its changelog and all later ones. If several keep the same one, the first is reported.
    bounds = [
        *(
            (ref.snapshot_id, Reason(ReasonKind.CONSUMER, f"consumer {ref.name} reads on from it"))
            for ref in view.refs
            if ref.kind == "consumer"
        ),
        (newest - changelogs.at_least + 1, Reason(ReasonKind.MIN_RETAINED, few)),
        (ids[0] + changelogs.at_once, Reason(ReasonKind.LIMIT, limit)),
        (ids[-1], Reason(ReasonKind.CURRENT, "the newest changelog")),
    ]
    end, kept = min(bounds, key=lambda bound: bound[0])
    first = max(newest - changelogs.at_most + 1, ids[0])
    young = [each for each in ids if first <= each <= end and made_at[each] >= now - changelogs.retention]
    if young:
        window = f"inside the window: changelog.time-retained={changelogs.retention} of the table"
        end, kept = young[0], Reason(ReasonKind.WINDOW, window)
    stay = tuple(each for each in ids if each >= end)
    return Outlived(tuple(each for each in ids if each < end), stay, kept)
