"""How long doomed files wait before they may be deleted."""

from __future__ import annotations

from datetime import datetime

from lakewarden.policy.resolve import Policy
from lakewarden.state.verdicts import FAILED_LOAD, Verdict

_GRACE = "delete_grace_hours"
_LOAD_GRACE = "orphan_grace_hours"


def grace_key(cause: str) -> str:
    """The policy key that says how long files of this cause wait. Those of a failed load wait as long as orphans."""
    return _LOAD_GRACE if cause == FAILED_LOAD else _GRACE


def due_at(verdict: Verdict, policy: Policy) -> datetime | None:
    """When its files may be deleted; None while it is not in force."""
    if verdict.doomed_at is None:
        return None
    return verdict.doomed_at + policy.hours(grace_key(verdict.cause))
