"""Checks the names of tables where only the database is asked: a mistyped name must be an error, not an empty answer."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.config.schema import Config
from lakewarden.errors import NoSuchTable
from lakewarden.model.table_name import TableRef
from lakewarden.services.connections import Connections


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
