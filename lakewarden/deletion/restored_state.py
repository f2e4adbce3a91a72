"""Refuses to delete with a state database that was restored from a backup: it has forgotten holds and restores."""

from __future__ import annotations

from lakewarden import clock
from lakewarden.errors import Refused
from lakewarden.model.table import TableView
from lakewarden.state.database import State
from lakewarden.state.generation import Generation, Generations
from lakewarden.storage.generation_file import read_witness, witness_of
from lakewarden.storage.objects import Objects


def confirm_state(action: str, view: TableView, state: State) -> Generation:
    """The generation of a database that has forgotten nothing. Refuses, once, if the database was restored from a backup."""
    seen = read_witness(Objects(view.io), witness_of(view))
    confirmed = Generations(state).confirm(seen, clock.now())
    if confirmed.restored:
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"the state database was restored from a backup or another server took over: {confirmed.restored}",
            hint="nothing was changed, and the grace of every trashed file starts again now: restore and pin again what "
            "must stay; see docs/operations.md, Backup",
        )
    return confirmed.generation


def leave_witness(view: TableView, generation: Generation) -> None:
    """Write the generation before the first file is deleted. It exposes a database that forgets this deletion or an
    earlier request to keep files.
    """
    Objects(view.io).write(witness_of(view), generation.to_json())
