"""Whether a table that could not be read has changed meanwhile: then somebody else has expired what was about to be read."""

from __future__ import annotations

from collections.abc import Callable

from lakewarden import clock
from lakewarden.errors import LakewardenError, Refused
from lakewarden.model.table import TableView

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


def read_again(
    action: str, view: TableView, look: Callable[[], TableView], error: LakewardenError, *, last: bool
) -> TableView:
    """The table as it is now, where it changed while it was read; else `error`. Refused if that was the last try."""
    fresh = moved_on(view, look)
    if fresh is None:
        raise error
    if last:
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"the table changed each time it was read, and other tools deleted what was to be read ({error.message})",
            hint="nothing was changed; run it again when other tools expire fewer snapshots",
        ) from error
    return fresh
