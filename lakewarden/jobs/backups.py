"""A state database that was restored from a backup is noticed before a job relies on it. See `lakewarden.state.generation`."""

from __future__ import annotations

from lakewarden import clock
from lakewarden.engine.objects import Objects
from lakewarden.errors import Refused
from lakewarden.model import TableView
from lakewarden.state.database import State
from lakewarden.state.generation import Generation, Generations

# The generation as the table's folder knows it. Every tool that looks for orphans skips names that begin with an underscore,
# Lakewarden's own sweep too.
WITNESS = "metadata/_lakewarden-generation.json"


def confirm_state(action: str, view: TableView, state: State) -> Generation:
    """The generation of a database that remembers all it ever knew. Refused, once, where it was restored from a backup."""
    try:
        seen: bytes | None = Objects(view.io).read(_witness(view))
    except FileNotFoundError:
        seen = None
    found = Generations(state).confirm(seen, clock.now())
    if found.restored:
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"the state database was restored from a backup or another server took over: {found.restored}",
            hint="nothing was changed, and the grace of every doomed file starts again now: restore and pin again what "
            "must stay; see docs/operations.md, Backup",
        )
    return found.generation


def leave_witness(view: TableView, generation: Generation) -> None:
    """Before the first file is deleted: a database that forgets this deletion, and what was wanted back before it, is found out."""
    Objects(view.io).write(_witness(view), generation.to_json())


def _witness(view: TableView) -> str:
    return f"{view.location.rstrip('/')}/{WITNESS}"
