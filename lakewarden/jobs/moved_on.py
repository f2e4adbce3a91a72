"""Whether a table that could not be read has changed meanwhile: then somebody else has expired what was about to be read."""

from __future__ import annotations

from collections.abc import Callable

from lakewarden import clock
from lakewarden.model import TableView

# Where snapshots leave one by one, what they need is deleted first, and they themselves a moment later.
WAITS = (0.0, 0.3, 1.0)


def moved_on(view: TableView, look: Callable[[], TableView]) -> TableView | None:
    """The table once it is another one than `view`; None where it stays as it is, and what it lacks is missing."""
    for wait in WAITS if view.in_order else WAITS[:1]:
        clock.sleep(wait)
        fresh = look()
        if (fresh.metadata_location, fresh.version) != (view.metadata_location, view.version):
            return fresh
    return None
