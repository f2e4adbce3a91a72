"""Who was turned away: into the log and the database, without what they showed, and no more than a flood deserves."""

from __future__ import annotations

from typing import Any

from lakewarden.client import Lakewarden
from lakewarden.console.actions import REFUSED, record
from lakewarden.console.answers import log
from lakewarden.console.auth import Identity
from lakewarden.console.limits import Notes
from lakewarden.errors import LakewardenError
from lakewarden.gateway.connection import neighbourhood
from lakewarden.state.audit_log import OperatorActions

UNKNOWN = "unknown"
_NONE = "none"
# So many refusals of strangers are kept, the newest: what operators did stays, what anybody can cause is bounded.
MOST = 50_000
_EVERY = 500


class Refusals:
    """Called from threads: writing takes a moment."""

    def __init__(self, warden: Lakewarden) -> None:
        self._warden, self._notes = warden, Notes()

    def add(self, who: Identity, action: str, target: str, reason: str, **detail: Any) -> None:
        before = self._notes.due(neighbourhood(who.address))
        if before is None:
            return
        said = {"reason": reason, **detail, **({"more_before": before} if before else {})}
        try:
            row = record(self._warden, who, action, target, REFUSED, said)
            if row % _EVERY == 0:
                OperatorActions(self._warden.state).trim(_NONE, MOST)
        except LakewardenError as error:
            # It was turned away all the same, and the log has it.
            log.error("could not write down that %s on %s was refused: %s", action, target, error.message)


def stranger(address: str) -> Identity:
    """Somebody who showed nothing that is known."""
    return Identity(UNKNOWN, _NONE, address)
