"""What every service has: the settings, the connections, and the ways to name and read a table. Also the
trigger of a run, as a caller states it, and the check that a name belongs to a known table.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewarden import clock
from lakewarden.config.schema import Config
from lakewarden.errors import NoSuchTable, UsageError
from lakewarden.model.run import Run, Trigger
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.services.connections import Connections

if TYPE_CHECKING:
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
        from lakewarden.tables.paimon.io_properties import io_properties

        seen, catalog = self.seen.get(ref), self.config.catalogs.get(ref.catalog)
        properties = catalog.properties if catalog else {}
        io = io_properties(properties) if catalog and catalog.format == "paimon" else properties
        return keeping(self.seen.home(seen.uuid) if seen else None, io, self.connections.state)


def current_user() -> str:
    """The user of this process. It is the operator of a manual run that names no other."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"  # a container's user often has no name


def read_trigger(trigger: Trigger | Mapping[str, str] | None) -> Trigger:
    """The trigger as a checked value. None: a manual run by the current user."""
    from lakewarden.lineage.summary import checked

    if isinstance(trigger, Mapping):
        unknown = set(trigger) - {"type", "operator", "ticket"}
        if unknown:
            raise UsageError(
                reason=f"read trigger: unknown {', '.join(sorted(unknown))}; known are type, operator, ticket"
            )
        trigger = Trigger(trigger.get("type", "manual"), trigger.get("operator"), trigger.get("ticket"))
    return checked(trigger or Trigger("manual", current_user()))


def table_ref(table: str | TableRef) -> TableRef:
    return table if isinstance(table, TableRef) else TableRef.parse(table)


@dataclass(frozen=True, slots=True)
class TableNames:
    """Needs no Spark: no catalog is asked."""

    config: Config
    connections: Connections

    def checked(self, table: str | TableRef) -> TableRef:
        """The table's name. NoSuchTable where its catalog is neither configured nor remembered."""
        ref = table_ref(table)
        of_spark = {
            key.split(".")[3] for key in self.config.spark.conf if key.startswith("spark.sql.catalog.")
        }
        known = {*self.config.catalogs, *of_spark}
        if self.connections.given_spark or ref.catalog in known or self._remembered(ref):
            return ref
        there = ", ".join(sorted(known)) or "none"
        raise NoSuchTable(table=ref, reason=f"no catalog {ref.catalog} is configured; configured: {there}")

    def known(self, table: str | TableRef) -> TableRef:
        """The table's name, for changes by name alone. NoSuchTable if the state database does not know the table."""
        ref = self.checked(table)
        if not self.knows(ref):
            raise NoSuchTable(table=ref, reason="nobody has read a table of that name yet")
        return ref

    def knows(self, table: str | TableRef) -> bool:
        """Whether the state database knows the table."""
        from lakewarden.state.health import HealthRecords
        from lakewarden.state.schedule import SEEN, TableSchedules

        ref, state = self.checked(table), self.connections.state
        standings = TableSchedules(state)
        # A request for a pass does not count: its name may be mistyped.
        seen = any(each.slot == SEEN for each in standings.of(str(ref)))
        heard = seen or self._remembered(ref) or str(ref) in standings.suspended()
        return heard or HealthRecords(state).get(str(ref)) is not None

    def _remembered(self, ref: TableRef) -> bool:
        """Whether the table is known although its catalog may no longer be configured."""
        from lakewarden.state.tables import SeenTables
        from lakewarden.state.trash import TrashedFiles

        state = self.connections.state
        return bool(
            SeenTables(state).get(ref)
            or self.connections.journal.list(str(ref), 1)
            or TrashedFiles(state).batches(str(ref), None)
        )
