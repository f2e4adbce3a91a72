"""Files in the trash that are needed again, before they are: whoever is about to rely on them takes them out of their verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update

from lakewarden.state.database import State
from lakewarden.state.generation import protecting
from lakewarden.state.schema import trashed, verdicts
from lakewarden.state.trash_batches import FileState

_AT_ONCE = 500


def take_back(state: State, table_uuid: str, paths: Sequence[str], note: str, now: datetime) -> list[str]:
    """No verdict has these files any more, as they were spelled. Returned are those a run is deleting at this moment.

    A row leaves `trash` by one conditional UPDATE, here as for who deletes: one of the two gets the file, the other sees it.
    """
    mine = select(verdicts.c.id).where(verdicts.c.table_uuid == table_uuid)
    kept = {"state": FileState.KEPT.value, "note": note, "ended_at": now}
    going: list[str] = []
    with protecting(state) as connection:
        for start in range(0, len(paths), _AT_ONCE):
            these = (trashed.c.verdict_id.in_(mine), trashed.c.path.in_(paths[start : start + _AT_ONCE]))
            connection.execute(
                update(trashed).where(*these, trashed.c.state == FileState.TRASHED.value).values(kept)
            )
            erasing = select(trashed.c.path).where(*these, trashed.c.state == FileState.ERASING.value)
            going += [row.path for row in connection.execute(erasing)]
    return going
