"""`lw.tiers`: where a moment of a table's past can be read, how to recall it from an archive, and what each tier costs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lakewarden import clock
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.values import moment
from lakewarden.services.deps import ServiceDeps
from lakewarden.services.history import Pasts

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.jobs.cold.cost import TableCost
    from lakewarden.jobs.cold.locate import SnapshotLocation
    from lakewarden.jobs.cold.recall import ArchivedFiles, Recall
    from lakewarden.model.run import Progress
    from lakewarden.tables.interface import ColdTier


def _sizes(tier: ColdTier, view: TableView) -> list[int]:
    every = [each.id for each in view.snapshots]
    return tier.closure(view, every)["size"].fill_null(0).to_pylist() if every else []


class TierService:
    """A table and its colder tier: where a snapshot is, how to read it, and what the tiers cost."""

    def __init__(self, deps: ServiceDeps, pasts: Pasts) -> None:
        self._deps, self._pasts = deps, pasts

    def where(
        self,
        table: str | TableRef,
        *,
        snapshot_id: int | None = None,
        as_of: str | datetime | None = None,
        tag: str | None = None,
    ) -> SnapshotLocation:
        """Which table of which catalog has a snapshot, a time or a tag, and the query that reads it.

        If an archive has the files, the store is asked whether they can be read now.
        """
        from lakewarden.jobs.cold.recall import with_archive_state

        live, cold = self._both(table)
        found = self._found(live, cold, snapshot_id, as_of, tag)
        return with_archive_state(found, self._shelf(live, cold, found), str(live.ref))

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
        """Ask an archive to make the files of a cold snapshot readable for `days`; with `wait`, return when they are.

        Files that are readable or on their way are not asked for again. Neither table changes.
        """
        from lakewarden.jobs.cold.recall import SPEEDS, recall
        from lakewarden.model.run import Silent
        from lakewarden.storage.archive import ObjectArchive

        live, cold = self._both(table)
        found = self._found(live, cold, snapshot_id, as_of, tag)
        return recall(
            found,
            lambda: self._shelf(live, cold, found, thorough=True),
            lambda: ObjectArchive(cold.io if cold else {}),
            self._deps.config.prices,
            progress or Silent(),
            table=str(live.ref),
            days=days,
            speed=SPEEDS[bulk],
            wait=wait,
        )

    def cost(self, table: str | TableRef) -> TableCost:
        """What the table costs a month in each tier, and what the next hand-off would cost and save."""
        from lakewarden.deletion.holds import gather
        from lakewarden.jobs.cold.cost import TableCost, hand_off_cost, tier_cost, tiers_of
        from lakewarden.jobs.cold.table import cold_copies
        from lakewarden.jobs.expire.plan import plan, snapshots_to_drop
        from lakewarden.model.location import is_local
        from lakewarden.state.cold import ColdFile, ColdFiles

        (live, cold), now, prices = self._both(table), clock.now(), self._deps.config.prices
        policy = self._deps.policy_of(live)
        tier = self._deps.format_for(live.ref).cold_tier()
        tiers = [tier_cost("live", _sizes(tier, live), None, prices)]
        if cold is not None and cold.snapshots:
            files = tier.closure(cold, [each.id for each in cold.snapshots])
            paths, sizes = files["path"].to_pylist(), files["size"].fill_null(0).to_pylist()
            known = ColdFiles(self._deps.connections.state).copies(live.uuid, paths)
            copies = [
                known.get(path) or ColdFile(path, path, size, "")
                for path, size in zip(paths, sizes, strict=True)
            ]
            tiers += tiers_of(cold_copies(copies, now), prices)
        ids = snapshots_to_drop(
            plan(
                live,
                policy,
                gather(live, self._deps.connections.state, now, policy.hours("snapshot_restart_hours")),
                now,
            )
        )
        going = [each for each in ids if cold is None or cold.snapshot(each) is None]
        leaves = tier.closure(live, going)["size"].fill_null(0).to_pylist() if going else []
        kind = policy.maybe_text("handoff_storage_class")
        next_ = hand_off_cost(leaves, None, kind, prices)
        return TableCost(str(live.ref), tuple(tiers), next_, len(going), is_local(live.location))

    def trashed(self, ref: TableRef) -> TableRef | None:
        """The table's colder tier, if the end of its retention has put files of it into the trash."""
        if not self._deps.policy(ref, refresh=True).bool("handoff_enabled"):
            return None
        cold = self._both(ref)[1]
        if cold is None:
            return None
        batches = self._deps.trashed.batches(str(cold.ref), cold.uuid)
        return cold.ref if any(each.live.files for each in batches) else None

    def _both(self, table: str | TableRef) -> tuple[TableView, TableView | None]:
        """The table and its colder tier, whether or not hand-off is still switched on."""
        live = self._deps.view(table)
        policy = self._deps.policy_of(live)
        catalog = policy.maybe_text("handoff_catalog")
        if catalog is None:
            return live, None
        home = self._deps.format_for(live.ref).cold_tier().find(live, catalog)
        return live, None if home is None else self._deps.format_for(home.ref).view(home.ref)

    def _found(
        self,
        live: TableView,
        cold: TableView | None,
        snapshot_id: int | None,
        as_of: str | datetime | None,
        tag: str | None,
    ) -> SnapshotLocation:
        from lakewarden.jobs.cold.locate import SnapshotQuestion, where
        from lakewarden.state.cold import ColdSnapshots

        asked = SnapshotQuestion(snapshot_id, moment(as_of, "as-of"), tag)
        known = [each.snapshot for each in self._pasts.of(live.ref).entries()]
        return where(asked, live, cold, known, ColdSnapshots(self._deps.connections.state).left(live.uuid))

    def _shelf(
        self, live: TableView, cold: TableView | None, found: SnapshotLocation, thorough: bool = False
    ) -> ArchivedFiles:
        """What of a cold snapshot's files an archive has, asked of the store at this moment.

        `thorough` believes no record: a rule of the bucket may have moved a copy that we know elsewhere.
        """
        from lakewarden.jobs.cold.locate import COLD
        from lakewarden.jobs.cold.recall import ArchivedFiles, shelf
        from lakewarden.state.cold import ColdFiles
        from lakewarden.storage.archive import ObjectArchive

        if cold is None or found.tier != COLD or found.snapshot_id is None:
            return ArchivedFiles(0)
        tier = self._deps.format_for(cold.ref).cold_tier()
        paths = tier.closure(cold, [found.snapshot_id])["path"].to_pylist()
        known = {} if thorough else ColdFiles(self._deps.connections.state).copies(live.uuid, paths)
        return shelf(paths, known, lambda: ObjectArchive(cold.io))
