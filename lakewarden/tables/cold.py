"""Shared by the cold tables of all formats: which live table a cold table belongs to, and the paths of its files."""

from __future__ import annotations

from collections.abc import Callable

from lakewarden.errors import Refused
from lakewarden.model.location import Location, elsewhere
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.interface import ColdHome


def refuse_other(ref: TableRef, view: TableView, of: str | None) -> None:
    """Raises Refused if the cold table belongs to another live table than `view`. `of` is the uuid it states."""
    if of != view.uuid:
        whose = f"it is the cold tier of another table (uuid {of})" if of else "it is an independent table"
        raise Refused(
            action="hand off to",
            target=ref,
            reason=whose,
            hint="name another catalog: policy key handoff_catalog",
        )


def rehome(view: TableView, home: ColdHome) -> Callable[[str], str]:
    """Maps the path of a live file to its path in the cold tier: the same relative path below another folder."""
    live = Location.of(view.location)

    def moved(path: str) -> str:
        if (place := elsewhere(path, live, home.location)) is not None:
            return place
        raise Refused(
            action="hand off",
            target=view.ref,
            reason=f"{path} lies outside the table's folder",
            hint="compact the table first: rewritten files lie inside the folder",
        )

    return moved
