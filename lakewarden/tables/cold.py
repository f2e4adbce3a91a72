"""What the cold tables of all formats share: how each says whose it is, and where a file of the live table lies there."""

from __future__ import annotations

from collections.abc import Callable

from lakewarden.errors import Refused
from lakewarden.model.location import Location, elsewhere
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.interface import ColdHome


def refuse_other(ref: TableRef, view: TableView, of: str | None) -> None:
    """A table that says to be of the uuid `of` is not taken over for another."""
    if of != view.uuid:
        whose = f"it is the cold tier of another table (uuid {of})" if of else "it is a table of its own"
        raise Refused(
            action="hand off to",
            target=ref,
            reason=whose,
            hint="name another catalog: policy key handoff_catalog",
        )


def rehome(view: TableView, home: ColdHome) -> Callable[[str], str]:
    """Where a file of the live table lies in the cold tier: the same name below another folder."""
    live = Location.of(view.location)

    def moved(path: str) -> str:
        if (place := elsewhere(path, live, home.location)) is not None:
            return place
        raise Refused(
            action="hand off",
            target=view.ref,
            reason=f"{path} lies outside the table's folder",
            hint="compact the table first: what is rewritten lies inside",
        )

    return moved
