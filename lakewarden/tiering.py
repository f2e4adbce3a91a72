"""The part of `Lakewarden` about the colder tier: where a moment of a table's past can be read, recalled, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewarden import clock
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.duration import moment

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.config.schema import Config
    from lakewarden.jobs.cold.cost import TableCost
    from lakewarden.jobs.cold.locate import Whereabouts
    from lakewarden.jobs.cold.recall import Recall, Shelf
    from lakewarden.lake import Lake
    from lakewarden.model.progress import Progress
    from lakewarden.policy.resolve import Policy
    from lakewarden.state.database import State
    from lakewarden.tables.interface import ColdTier


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
        """Which table of which catalog has that snapshot, the table as of that time, or that tag; and the query to run.

        Where an archive has its files, whether they can be read now is asked of the store.
        """
        from lakewarden.jobs.cold.recall import shelved

        live, cold = self._both(table)
        found = self._found(live, cold, snapshot_id, as_of, tag)
        return shelved(found, self._shelf(live, cold, found), str(live.ref))

    def recall(
        self,
        table: str | TableRef,
        *,
        snapshot_id: int | None = None,
        as_of: str | datetime | None = None,
        tag: str | None = None,
        days: int = 7,
        bulk: bool = False,
        wait: bool = False,
        progress: Progress | None = None,
    ) -> Recall:
        """Ask an archive for the files that a cold snapshot needs, to be readable for so many days; `wait` until they are.

        Idempotent: what is readable or on its way is not asked for again. Nothing of either table changes.
        """
        from lakewarden.jobs.cold.recall import SPEEDS, recall
        from lakewarden.model.progress import Silent
        from lakewarden.storage.archive import Archive

        live, cold = self._both(table)
        found = self._found(live, cold, snapshot_id, as_of, tag)
        return recall(
            found,
            lambda: self._shelf(live, cold, found, thorough=True),
            lambda: Archive(cold.io if cold else {}),
            self.config.prices,
            progress or Silent(),
            table=str(live.ref),
            days=days,
            speed=SPEEDS[bulk],
            wait=wait,
        )

    def cost(self, table: str | TableRef) -> TableCost:
        """What the table costs a month in each of its tiers, and what handing off what expires next would cost and save."""
        from lakewarden.deletion.holds import gather
        from lakewarden.jobs.cold.cost import TableCost, hand_off_cost, tier_cost, tiers_of
        from lakewarden.jobs.cold.table import lying
        from lakewarden.jobs.expire.plan import plan, snapshots_to_drop
        from lakewarden.model.location import is_local
        from lakewarden.state.cold import ColdFile, ColdFiles

        (live, cold), now, prices = self._both(table), clock.now(), self.config.prices
        policy = self._resolve(live.ref, live.properties, None)
        tier = self.lake.format_for(live.ref).cold_tier()
        tiers = [tier_cost("live", _sizes(tier, live), None, prices)]
        if cold is not None and cold.snapshots:
            files = tier.closure(cold, [each.id for each in cold.snapshots])
            paths, sizes = files["path"].to_pylist(), files["size"].fill_null(0).to_pylist()
            known = ColdFiles(self.state).copies(live.uuid, paths)
            copies = [
                known.get(path) or ColdFile(path, path, size, "")
                for path, size in zip(paths, sizes, strict=True)
            ]
            tiers += tiers_of(lying(copies, now), prices)
        ids = snapshots_to_drop(
            plan(live, policy, gather(live, self.state, now, policy.hours("snapshot_restart_hours")), now)
        )
        going = [each for each in ids if cold is None or cold.snapshot(each) is None]
        leaves = tier.closure(live, going)["size"].fill_null(0).to_pylist() if going else []
        kind = policy.maybe_text("handoff_storage_class")
        next_ = hand_off_cost(leaves, None, kind, prices)
        return TableCost(str(live.ref), tuple(tiers), next_, len(going), is_local(live.location))

    def _trashed_cold(self, ref: TableRef) -> TableRef | None:
        """The table's colder tier, where it has files that its retention trashed."""
        from lakewarden.state.trash import TrashedFiles

        if not self._resolve(ref, self.view(ref).properties, None).bool("handoff_enabled"):
            return None
        cold = self._both(ref)[1]
        if cold is None:
            return None
        standings = TrashedFiles(self.state).standings(str(cold.ref), cold.uuid)
        return cold.ref if any(each.live.files for each in standings) else None

    def _both(self, table: str | TableRef) -> tuple[TableView, TableView | None]:
        """The table and its colder tier, whether or not hand-off is still switched on."""
        live = self.view(table)
        policy = self._resolve(live.ref, live.properties, None)
        catalog = policy.maybe_text("handoff_catalog")
        if catalog is None:
            return live, None
        home = self.lake.format_for(live.ref).cold_tier().find(live, catalog)
        return live, None if home is None else self.lake.format_for(home.ref).view(home.ref)

    def _found(
        self,
        live: TableView,
        cold: TableView | None,
        snapshot_id: int | None,
        as_of: str | datetime | None,
        tag: str | None,
    ) -> Whereabouts:
        from lakewarden.jobs.cold.locate import Asked, where
        from lakewarden.state.cold import ColdSnapshots

        asked = Asked(snapshot_id, moment(as_of, "as-of"), tag)
        known = [each.snapshot for each in self._past(live.ref, False).entries()]
        return where(asked, live, cold, known, ColdSnapshots(self.state).left(live.uuid))

    def _shelf(
        self, live: TableView, cold: TableView | None, found: Whereabouts, thorough: bool = False
    ) -> Shelf:
        """What of a cold snapshot's files an archive has, asked of the store at this moment.

        `thorough` believes no record: a rule of the bucket may have moved a copy that we know elsewhere.
        """
        from lakewarden.jobs.cold.locate import COLD
        from lakewarden.jobs.cold.recall import Shelf, shelf
        from lakewarden.state.cold import ColdFiles
        from lakewarden.storage.archive import Archive

        if cold is None or found.tier != COLD or found.snapshot_id is None:
            return Shelf(0)
        tier = self.lake.format_for(cold.ref).cold_tier()
        paths = tier.closure(cold, [found.snapshot_id])["path"].to_pylist()
        known = {} if thorough else ColdFiles(self.state).copies(live.uuid, paths)
        return shelf(paths, known, lambda: Archive(cold.io))
