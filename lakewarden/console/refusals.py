"""Records rejected requests in the log and the database, without the secrets that were sent, and limited
during a flood."""

from __future__ import annotations

from typing import Any

from lakewarden.client import Lakewarden
from lakewarden.console.actions import REFUSED, record
from lakewarden.console.answers import log
from lakewarden.console.auth import Identity
from lakewarden.console.limits import Notes
from lakewarden.errors import LakewardenError
from lakewarden.http_server import address_range
from lakewarden.state.audit_log import OperatorActions

UNKNOWN = "unknown"
_NONE = "none"
# The newest rejections of unknown senders that are kept. Operators' actions are never deleted.
MOST = 50_000
_EVERY = 500


class RefusalLog:
    """May be called from several threads; writing takes a moment."""

    def __init__(self, warden: Lakewarden) -> None:
        self._warden, self._notes = warden, Notes()

    def add(self, who: Identity, action: str, target: str, reason: str, **detail: Any) -> None:
        before = self._notes.due(address_range(who.address))
        if before is None:
            return
        said = {"reason": reason, **detail, **({"more_before": before} if before else {})}
        try:
            row = record(self._warden, who, action, target, REFUSED, said)
            if row % _EVERY == 0:
                OperatorActions(self._warden.state).trim(_NONE, MOST)
        except LakewardenError as error:
            # The request was rejected anyway, and the log has it.
            log.error("cannot record that %s on %s was refused: %s", action, target, error.message)


def unknown_client(address: str) -> Identity:
    """An unknown sender."""
    return Identity(UNKNOWN, _NONE, address)
