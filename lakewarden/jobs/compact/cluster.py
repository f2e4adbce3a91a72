"""The order of a table's rows, and which files of a partition are worth sorting again.

Clustering is global inside a partition: its files are sorted as one whole and cut into outputs that do not overlap. The
outputs' names carry the order, so a later plan can distinguish them from files that still have to be sorted. If little is
new, only the new files are sorted; if a fifth of the partition is new, all of it is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from lakewarden.jobs.compact.binpack import Candidate, SettledFiles, outputs_for, skip_all
from lakewarden.model.plan import SkippedRow
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.table import SortField, SortOrder, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.order.sort_keys import Ordering, SortKey

# From this share of new data on, the whole partition is ordered; below it, only the new files are.
_REORDER_ALL = 0.2
# Strategies that cluster by several columns alike.
CURVES = ("zorder", "hilbert")
# A partition that already opens this little more than it would after ordering is left alone.
_GOOD_ENOUGH = 1.2


@dataclass(frozen=True, slots=True)
class Clustering:
    """A strategy with its columns, resolved against the table. `ordering` is None for bin-packing."""

    strategy: str
    columns: tuple[str, ...] = ()  # as the policy writes them; empty: the table's own sort order
    names: tuple[str, ...] = ()  # bare column names, the most significant first
    ordering: Ordering | None = None
    sort_order_id: int = 0  # the table's id of this order; 0 where it has none

    @property
    def tag(self) -> str:
        """A short name of the order: eight hex digits; empty for bin-packing."""
        if self.ordering is None:
            return ""
        return hashlib.sha256(repr(self.ordering).encode()).hexdigest()[:8]


def clustering(view: TableView, policy: Policy) -> Clustering:
    """The strategy in force; `auto` follows the policy's columns, then the table's sort order."""
    strategy = policy.text("rewrite_strategy")
    zorder, sort = policy.columns("rewrite_zorder_columns"), policy.columns("rewrite_sort_columns")
    own = current_order(view)
    if strategy == "auto":
        strategy = "zorder" if zorder else "sort" if sort or own else "binpack"
    if strategy in CURVES:
        return Clustering(strategy, zorder, zorder, Ordering(strategy, _keys(view, zorder)))
    if strategy == "sort" and sort:
        keys = _keys(view, sort)
        names = tuple(column.split()[0] for column in sort)
        return Clustering("sort", sort, names, Ordering("sort", keys), _order_id(view, keys))
    if strategy == "sort" and own:
        keys = tuple(_key_of(field) for field in own.fields)
        # A nested field has no name here: what comes after it says nothing about files either.
        names = tuple(takewhile(bool, (_name(view, key.field_id) for key in keys)))
        return Clustering("sort", (), names, Ordering("sort", keys), own.id)
    return Clustering(strategy)


def current_order(view: TableView) -> SortOrder | None:
    return next(
        (order for order in view.sort_orders if order.id == view.current_sort_order_id and order.fields), None
    )


def _columns(view: TableView) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = json.loads(view.schema_json).get("fields", [])
    return found


def _name(view: TableView, field_id: int) -> str:
    return next((str(each["name"]) for each in _columns(view) if each["id"] == field_id), "")


def _keys(view: TableView, columns: Sequence[str]) -> tuple[SortKey, ...]:
    """Columns as the policy writes them: `a`, `b desc`, `c asc nulls last`. Nulls come first going up, last going down."""
    ids = {str(each["name"]): int(str(each["id"])) for each in _columns(view)}
    keys = []
    for text in columns:
        name, *rest = text.split()
        words = [word.lower() for word in rest]
        down = "desc" in words
        first = "first" in words if "nulls" in words else not down
        # The column was checked to be there; a plan on a view without a schema (as tests make) has no ids.
        keys.append(SortKey(ids.get(name, -1), "identity", down, first))
    return tuple(keys)


def _key_of(field: SortField) -> SortKey:
    return SortKey(
        field.source_id, field.transform, field.direction == "desc", field.null_order == "nulls-first"
    )


def _order_id(view: TableView, keys: tuple[SortKey, ...]) -> int:
    """The id of the table's sort order that is exactly this one, if there is one."""
    for order in view.sort_orders:
        if order.fields and tuple(_key_of(field) for field in order.fields) == keys:
            return order.id
    return 0


def outputs_of(chosen: Clustering, total_bytes: int, policy: Policy) -> int:
    """How many files a partition becomes.

    Cells of a curve are halved again and again, so files of it cover least of every column when their number is a power
    of two: 20 files cover 38 % of the second of two columns, 16 files 25 %. The nearest one is taken, within the largest size.
    """
    count = outputs_for(total_bytes, policy.int("rewrite_target_bytes"))
    if chosen.strategy not in CURVES or count < 4:
        return count
    power = 1 << round(math.log2(count))
    return power if total_bytes <= power * policy.int("rewrite_max_bytes") else 2 * power


def expected_shares(chosen: Clustering, outputs: int) -> dict[str, float]:
    """By column: the expected share of files that a query for one value opens after ordering, if values are evenly spread.

    A curve over k columns cuts each of them into about the k-th root of the outputs; a sort cuts its first column.
    """
    if chosen.strategy in CURVES:
        return {name: min(1.0, outputs ** (-1 / len(chosen.names))) for name in chosen.names}
    return {name: 1 / max(1, outputs) for name in chosen.names[:1]}


def choose_members(
    view: TableView,
    chosen: Clustering,
    members: list[Candidate],
    shares: Mapping[str, float],
    policy: Policy,
) -> tuple[list[Candidate], list[SkippedRow]]:
    """The files of a partition to order together, and why the others are left."""
    target = policy.int("rewrite_target_bytes")
    in_order = SettledFiles(view, target, chosen.tag)
    fresh = [each for each in members if not in_order(each)]
    ordered = [each for each in members if in_order(each)]
    done = Reason(ReasonKind.SETTLED, f"already ordered by {_by(chosen)}")
    if not fresh:
        return [], [skip_all(ordered, done)]
    new, total = sum(each.bytes for each in fresh), sum(each.bytes for each in members)
    if len(fresh) < policy.int("rewrite_min_input_files") and new < target:
        reason = f"too few new files in the partition: {policy.explain('rewrite_min_input_files')}"
        return [], [skip_all(fresh, Reason(ReasonKind.TOO_FEW, reason)), skip_all(ordered, done)]
    if _well_clustered(chosen, members, shares, policy):
        well = Reason(ReasonKind.NO_GAIN, "already well clustered, and the files are large enough")
        return [], [skip_all(members, well)]
    if new >= _REORDER_ALL * total:
        return members, []
    little = f"already ordered by {_by(chosen)}, and little has come since"
    return fresh, [skip_all(ordered, Reason(ReasonKind.SETTLED, little))]


def _by(chosen: Clustering) -> str:
    return f"{chosen.strategy} on {', '.join(chosen.names)}"


def _well_clustered(
    chosen: Clustering, members: Sequence[Candidate], shares: Mapping[str, float], policy: Policy
) -> bool:
    """Ordering would change little: about as many files, and about as few of them opened.

    Of a sort only the first column could be judged so, not its direction nor the columns after it.
    """
    if chosen.strategy not in CURVES:
        return False
    outputs = outputs_of(chosen, sum(each.bytes for each in members), policy)
    if outputs < 2 or len(members) > 1.5 * outputs:
        return False
    expected = expected_shares(chosen, outputs)
    return all(shares.get(name, 1.0) <= _GOOD_ENOUGH * share for name, share in expected.items())
