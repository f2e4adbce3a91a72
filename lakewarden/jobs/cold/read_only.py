"""Cold tables are read only. Only hand-off writes to them."""

from __future__ import annotations

from lakewarden.errors import Refused
from lakewarden.model.table import TableView, cold_source
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State


def refuse_frozen(action: str, view: TableView, state: State) -> None:
    """Raises Refused for a cold table. It has the only copy of expired data: no job rewrites it, and only retention removes data.

    A table property alone is not enough: any writer can set it, and then no job would ever run on that table again. Paimon's
    views show the property only if hand-off created the table. If the state database was lost, an Iceberg table that hand-off
    created still has gc.enabled=false, so expire, sweep and purge refuse it.
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
            hint=f"run the job on {live} instead",
        )
