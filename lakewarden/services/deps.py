"""What every service has: the settings, the connections, and the ways to name and read a table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewarden import clock
from lakewarden.config.schema import Config
from lakewarden.errors import UsageError
from lakewarden.model.run import Run
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.resolve import Policy
from lakewarden.services.connections import Connections
from lakewarden.services.table_names import TableNames, table_ref

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first used, not when a command starts
    from lakewarden.state.tables import SeenTables
    from lakewarden.state.trash import TrashedFiles
    from lakewarden.tables.interface import TableFormat


@dataclass(frozen=True, slots=True)
class ServiceDeps:
    """`connections` has the state database, the journal, and Spark with the formats."""

    config: Config
    connections: Connections
    names: TableNames

    @property
    def seen(self) -> SeenTables:
        """The tables as they were last read."""
        from lakewarden.state.tables import SeenTables

        return SeenTables(self.connections.state)

    @property
    def trashed(self) -> TrashedFiles:
        from lakewarden.state.trash import TrashedFiles

        return TrashedFiles(self.connections.state)

    def format_for(self, ref: TableRef) -> TableFormat:
        return self.connections.lake.format_for(ref)

    def view(self, table: str | TableRef) -> TableView:
        """The table as its newest metadata describes it."""
        ref = table_ref(table)
        view = self.connections.lake.format_for(ref).view(ref)
        self.seen.saw(view, clock.now())
        return view

    def policy(
        self, table: str | TableRef, call: Mapping[str, object] | None = None, *, refresh: bool = False
    ) -> Policy:
        """The table's policy. Its own properties are those last seen, unless `refresh` asks for new ones."""
        ref = table_ref(table)
        return self.connections.resolve(ref, self.properties(ref, refresh), call)

    def policy_of(self, view: TableView, call: Mapping[str, object] | None = None) -> Policy:
        return self.connections.resolve(view.ref, view.properties, call)

    def properties(self, ref: TableRef, refresh: bool = False) -> Mapping[str, str]:
        seen = None if refresh else self.seen.get(ref)
        return self.view(ref).properties if seen is None else seen.properties

    def run(self, run_id: str) -> Run:
        run = self.connections.journal.get(run_id)
        if run is None:
            raise UsageError(
                reason=f"find run {run_id!r}: the journal has no such run", hint="see `lakewarden runs`"
            )
        return run

    def keeping(self, ref: TableRef) -> AbstractContextManager[None]:
        """Around a change that keeps files of the table from being deleted, in calls that start no Spark."""
        from lakewarden.storage.generation_file import keeping
        from lakewarden.tables.paimon.stores import io_properties

        seen, catalog = self.seen.get(ref), self.config.catalogs.get(ref.catalog)
        properties = catalog.properties if catalog else {}
        io = io_properties(properties) if catalog and catalog.format == "paimon" else properties
        return keeping(self.seen.home(seen.uuid) if seen else None, io, self.connections.state)
