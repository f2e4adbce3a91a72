"""The part of `Lakewarden` about the colder tier: where a moment of a table's past can be read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from lakewarden.model import TableRef, TableView
from lakewarden.policy.duration import moment

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.jobs.where import Whereabouts
    from lakewarden.lake import Lake
    from lakewarden.policy.resolve import Policy
    from lakewarden.state.database import State


class Tiering:
    """Calls about tiers. What they stand on, `Lakewarden` itself has."""

    if TYPE_CHECKING:

        @property
        def state(self) -> State: ...

        @property
        def lake(self) -> Lake: ...

        def view(self, table: str | TableRef) -> TableView: ...

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
        from lakewarden.state.archive import Archive

        asked = Asked(snapshot_id, moment(as_of, "as-of"), tag)
        live = self.view(table)
        expired = Archive(self.state).list(live.uuid, limit=1_000_000)
        return where(asked, live, self._cold(live), expired)

    def _cold(self, live: TableView) -> TableView | None:
        """The colder tier of the table, whether or not hand-off is still switched on."""
        policy = self._resolve(live.ref, live.properties, None)
        catalog = policy.maybe_text("handoff_catalog")
        if catalog is None:
            return None
        format_ = self.lake.format_for(live.ref)
        home = format_.cold_tier().find(live, catalog)
        return None if home is None else self.lake.format_for(home.ref).view(home.ref)
