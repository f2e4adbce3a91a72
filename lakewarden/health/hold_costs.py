"""Computes what the holds of each table cost, and caches it between looks: computing one may read every manifest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from lakewarden.deletion.holds import Holds
from lakewarden.health.table_details import TableDetails, short
from lakewarden.jobs.hold_costs import hold_costs
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.database import State
from lakewarden.state.health import HealthRecords
from lakewarden.tables.interface import TableFormat

# Only this many are computed per look, and each again only after this time; until then the last known value counts.
_AT_ONCE, _LASTS = 5, timedelta(hours=6)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

# Not the end of the hold: an extended pin still holds the same files.
_Key = tuple[str, str, str, int | None]


@dataclass(frozen=True, slots=True)
class _Cost:
    at: datetime
    bytes: int | None


@dataclass
class HoldCosts:
    """The costs of one process. After a change of leader it starts from the stored portraits, so that no number
    drops to nothing.
    """

    state: State
    _known: dict[str, tuple[str, dict[_Key, _Cost]]] = field(default_factory=dict, repr=False)

    def costs(
        self, format_: TableFormat, view: TableView, policy: Policy, holds: Holds, now: datetime
    ) -> dict[Hold, int | None]:
        """The costs of holds on snapshots that are computed so far. Entries of ended holds are dropped."""
        held = holds.snapshots()
        # If several holds keep a snapshot, a single one of them keeps nothing alone.
        single = {own[0] for own in held.values() if len(own) == 1}
        shared: dict[Hold, int | None] = {
            each: 0 for own in held.values() if len(own) > 1 for each in own if each not in single
        }
        alone = {_key(own[0]): own[0] for own in held.values() if len(own) == 1 and not is_main(own[0])}
        before = self._before(view)
        mine = {key: before[key] for key in alone if key in before}
        turn = [key for key in alone if key not in mine or now - mine[key].at >= _LASTS]
        turn.sort(key=lambda key: (key in mine, mine[key].at if key in mine else _LONG_AGO))
        chosen = turn[:_AT_ONCE]
        computed = hold_costs(format_, view, _whole(policy), [alone[key] for key in chosen], now)
        mine |= {key: _Cost(now, cost) for key, cost in zip(chosen, computed, strict=True)}
        self._known[str(view.ref)] = (view.uuid, mine)
        return shared | {alone[key]: cost.bytes for key, cost in mine.items()}

    def forget(self, table: str) -> None:
        self._known.pop(table, None)

    def _before(self, view: TableView) -> dict[_Key, _Cost]:
        known = self._known.get(str(view.ref))
        if known is not None:
            return known[1] if known[0] == view.uuid else {}
        stored = HealthRecords(self.state).get(str(view.ref))
        portrait = TableDetails.read(stored.portrait) if stored and stored.uuid == view.uuid else None
        return {
            (each.kind, each.name, each.holder, each.snapshot_id): _Cost(_LONG_AGO, each.bytes)
            for each in (portrait.holds if portrait else ())
            if each.bytes is not None
        }


def is_main(hold: Hold) -> bool:
    return hold.kind is HoldKind.BRANCH and hold.name == "main"


def _key(hold: Hold) -> _Key:
    """The key with its texts as in a portrait."""
    return hold.kind.value, short(hold.name), short(hold.holder), hold.snapshot_id


def _whole(policy: Policy) -> Policy:
    """The cost of a hold is measured against everything the policy would expire over all runs, whether expiry
    is switched on or not.
    """
    values: dict[str, Any] = {**policy.values}
    values["snapshot_expire_limit"] = replace(values["snapshot_expire_limit"], value=None)
    values["snapshot_expiry_enabled"] = replace(values["snapshot_expiry_enabled"], value=True)
    return replace(policy, values=values)
