"""Tables of the colder tier are read, and written by nobody but hand-off."""

from __future__ import annotations

from lakewarden.errors import Refused
from lakewarden.model import TableView, cold_source


def refuse_frozen(action: str, view: TableView) -> None:
    """What a cold table has is the only copy of what expired: nothing rewrites it, and nothing leaves it but by its retention."""
    live = cold_source(view.properties)
    if live:
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"it is the colder tier of {live}, and read only",
            hint=f"look after {live} instead",
        )
