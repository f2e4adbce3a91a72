"""Tables of the colder tier are read, and written by nobody but hand-off."""

from __future__ import annotations

from lakewarden.errors import Refused
from lakewarden.model.table import TableView, cold_source
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State


def refuse_frozen(action: str, view: TableView, state: State) -> None:
    """A cold table has the only copy of what expired: nothing rewrites it, and nothing leaves it but by its retention.

    A property alone freezes no table: its writers can set one, and nothing would ever be done to it again. Paimon's views show
    the property only where hand-off made the table. Where the state database was lost, an Iceberg table that hand-off made
    still has gc.enabled=false, and expire, sweep and purge refuse it for that.
    """
    if view.format == "paimon":
        live = cold_source(view.properties)
    else:
        live = ColdTables(state).source(view.properties, view.uuid, view.location)
    if live:
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"it is the colder tier of {live}, and read only",
            hint=f"look after {live} instead",
        )
