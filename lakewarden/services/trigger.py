"""Who or what caused a run: as a caller states it, and the default."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping

from lakewarden.errors import UsageError
from lakewarden.model.run import Trigger


def current_user() -> str:
    """The user of this process. It is the operator of a manual run that names no other."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"  # a container's user often has no name


def read_trigger(trigger: Trigger | Mapping[str, str] | None) -> Trigger:
    """The trigger as a checked value. None: a manual run by the current user."""
    from lakewarden.lineage.summary import checked

    if isinstance(trigger, Mapping):
        unknown = set(trigger) - {"type", "operator", "ticket"}
        if unknown:
            raise UsageError(
                reason=f"read trigger: unknown {', '.join(sorted(unknown))}; known are type, operator, ticket"
            )
        trigger = Trigger(trigger.get("type", "manual"), trigger.get("operator"), trigger.get("ticket"))
    return checked(trigger or Trigger("manual", current_user()))
