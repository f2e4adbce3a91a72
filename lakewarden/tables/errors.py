"""Errors with the same text for every format."""

from __future__ import annotations

from lakewarden.errors import Outage, Refused, Unreachable
from lakewarden.model.table import TableRef


def not_adopted(table: TableRef, path: str, reason: str, others: int) -> Refused:
    """A file that cannot be adopted. `others` is the number of further files that cannot be adopted either."""
    more = f"; {others} more file{'s' if others != 1 else ''} cannot be adopted either" if others else ""
    return Refused(
        action="adopt",
        target=path,
        reason=reason + more,
        hint=f"nothing was changed in {table}; fix the files or leave them out, then adopt again",
    )


def no_warehouse(catalog: str, folder: str) -> Unreachable:
    """The warehouse folder of a Hadoop catalog is missing, e.g. not mounted. This does not mean that its tables were dropped."""
    return Unreachable(
        what=f"catalog {catalog}",
        reason=f"its warehouse {folder} does not exist",
        kind=Outage.CATALOG,
        hint=f"check that {folder} is mounted, and `warehouse` of catalog {catalog}; for a new lake, create the folder",
    )
