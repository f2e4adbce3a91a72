"""Computes how long trashed files wait before they may be deleted."""

from __future__ import annotations

from datetime import datetime

from lakewarden.policy.resolve import Policy
from lakewarden.state.trash_batches import CLAIMED, FAILED_LOAD, TrashBatch

_GRACE = "delete_grace_hours"
_LOAD_GRACE = "orphan_grace_hours"


def grace_key(cause: str) -> str:
    """The policy key for the grace of files with this cause. Files that were never part of the table wait as
    long as orphans.
    """
    return _LOAD_GRACE if cause in (FAILED_LOAD, CLAIMED) else _GRACE


def due_at(batch: TrashBatch, policy: Policy) -> datetime | None:
    """When its files may be deleted; None while it is not in force."""
    if batch.waits_since is None:
        return None
    return batch.waits_since + policy.hours(grace_key(batch.cause))
