"""Detects that a table changed while it was being read, e.g. because another tool expired the snapshots."""

from __future__ import annotations

from collections.abc import Callable

from lakewarden import clock
from lakewarden.errors import LakewardenError, Refused
from lakewarden.model.table import TableView

# Paimon expires snapshots one by one: it deletes their files first and the snapshot file a moment later.
WAITS = (0.0, 0.3, 1.0)


def moved_on(view: TableView, look: Callable[[], TableView]) -> TableView | None:
    """The table's newest state if it differs from `view`. None if it did not change: then the file is really missing."""
    for wait in WAITS if view.in_order else WAITS[:1]:
        clock.sleep(wait)
        fresh = look()
        if (fresh.metadata_location, fresh.version) != (view.metadata_location, view.version):
            return fresh
    return None


def read_again(
    action: str, view: TableView, look: Callable[[], TableView], error: LakewardenError, *, last: bool
) -> TableView:
    """The table's newest state if it changed while it was read; otherwise raises `error`. Refused after the last try."""
    fresh = moved_on(view, look)
    if fresh is None:
        raise error
    if last:
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"the table changed each time it was read, and other tools deleted files during the reading ({error.message})",
            hint="nothing was changed; run it again when other tools expire fewer snapshots",
        ) from error
    return fresh
