"""Refusals that read alike whatever the format."""

from __future__ import annotations

from lakewarden.errors import Outage, Refused, Unreachable
from lakewarden.model.table_name import TableRef


def not_adopted(table: TableRef, path: str, reason: str, others: int) -> Refused:
    """A file that cannot become part of the table, and how many more there are like it."""
    more = f"; {others} more file{'s' if others != 1 else ''} cannot be adopted either" if others else ""
    return Refused(
        action="adopt",
        target=path,
        reason=reason + more,
        hint=f"nothing was changed in {table}; mend the files or leave them out, then adopt again",
    )


def no_warehouse(catalog: str, folder: str) -> Unreachable:
    """The folder that a catalog is made of is away: that tells nothing about its tables, and nobody dropped any."""
    return Unreachable(
        what=f"catalog {catalog}",
        reason=f"its warehouse {folder} is not there",
        kind=Outage.CATALOG,
        hint=f"check that {folder} is mounted, and `warehouse` of catalog {catalog}; where the lake is new, make the folder",
    )
