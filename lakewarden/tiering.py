"""The part of `Lakewarden` about the colder tier: where a moment of a table's past can be read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewarden import clock
from lakewarden.model import TableRef, TableView
from lakewarden.policy.duration import moment

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.config import Config
    from lakewarden.formats.seam import ColdTier
    from lakewarden.jobs.cost import TableCost
    from lakewarden.jobs.where import Whereabouts
    from lakewarden.lake import Lake
    from lakewarden.policy.resolve import Policy
    from lakewarden.state.database import State


def _sizes(tier: ColdTier, view: TableView) -> list[int]:
    every = [each.id for each in view.snapshots]
    return tier.closure(view, every)["size"].fill_null(0).to_pylist() if every else []


class Tiering:
    """Calls about tiers. What they stand on, `Lakewarden` itself has."""

    if TYPE_CHECKING:
        config: Config

        @property
        def state(self) -> State: ...

        @property
        def lake(self) -> Lake: ...

        def view(self, table: str | TableRef) -> TableView: ...

        def _past(self, table: str | TableRef, history_only: bool) -> Any: ...

        def _resolve(
            self, ref: TableRef, properties: Mapping[str, str], call: Mapping[str, object] | None
        ) -> Policy: ...

    def where(
        self,
        table: str | TableRef,
        *,
        snapshot_id: int | None = None,
        as_of: str | datetime | None = None,
        tag: str | None = None,
    ) -> Whereabouts:
        """Which table of which catalog has that snapshot, the table as of that time, or that tag; and the query to run."""
        from lakewarden.jobs.where import Asked, where

        asked = Asked(snapshot_id, moment(as_of, "as-of"), tag)
        live = self.view(table)
        known = [each.snapshot for each in self._past(live.ref, False).entries()]
        return where(asked, live, self._cold(live), known)

    def cost(self, table: str | TableRef) -> TableCost:
        """What the table costs a month in each of its tiers, and what handing off what expires next would cost and save."""
        from lakewarden.jobs.cost import TableCost, hand_off_cost, tier_cost
        from lakewarden.jobs.expire import plan, snapshots_to_drop
        from lakewarden.safety.holds import gather

        live, now, prices = self.view(table), clock.now(), self.config.prices
        policy = self._resolve(live.ref, live.properties, None)
        tier = self.lake.format_for(live.ref).cold_tier()
        cold, kind = self._cold(live), policy.maybe_text("handoff_storage_class")
        tiers = [tier_cost("live", _sizes(tier, live), None, prices)]
        if cold is not None:
            tiers.append(tier_cost("cold", _sizes(tier, cold), kind, prices))
        ids = snapshots_to_drop(plan(live, policy, gather(live, self.state, now), now))
        going = [each for each in ids if cold is None or cold.snapshot(each) is None]
        leaves = tier.closure(live, going)["size"].fill_null(0).to_pylist() if going else []
        return TableCost(str(live.ref), tuple(tiers), hand_off_cost(leaves, None, kind, prices), len(going))

    def _cold(self, live: TableView) -> TableView | None:
        """The colder tier of the table, whether or not hand-off is still switched on."""
        policy = self._resolve(live.ref, live.properties, None)
        catalog = policy.maybe_text("handoff_catalog")
        if catalog is None:
            return None
        format_ = self.lake.format_for(live.ref)
        home = format_.cold_tier().find(live, catalog)
        return None if home is None else self.lake.format_for(home.ref).view(home.ref)
