"""A verdict beside the others of its table: an object is under one of them, and has one receipt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select, text, update

from lakewarden.state.schema import trashed, verdicts
from lakewarden.state.trash_batches import RECEIPTS, FileState, Verdict, VerdictState
from lakewarden.state.trash_rows import among, in_states

_GOING = "a run is deleting it under an earlier verdict"
_GONE = "it is gone, with a receipt under another verdict"


def leave_to_others(connection: Connection, verdict: Verdict) -> None:
    """Before it comes into force: what earlier ones still have becomes its own; what they are deleting, have deleted, or what
    someone restored, does not."""
    _one_at_a_time(connection, verdict.table_uuid)
    _take_from_earlier(connection, verdict)
    _leave_restored(connection, verdict)


def _one_at_a_time(connection: Connection, table_uuid: str) -> None:
    """Two verdicts that come into force together must see each other. SQLite has one writer at any time anyway."""
    if connection.dialect.name == "postgresql":
        lock = text("SELECT pg_advisory_xact_lock(hashtext('lakewarden verdict ' || :uuid))")
        connection.execute(lock, {"uuid": table_uuid})


def _take_from_earlier(connection: Connection, verdict: Verdict) -> None:
    others = select(verdicts.c.id).where(
        verdicts.c.table_uuid == verdict.table_uuid, verdicts.c.state == VerdictState.ACTIVE.value
    )
    columns = select(trashed.c.id, trashed.c.path)
    of_others = trashed.c.verdict_id.in_(others)
    waiting = connection.execute(columns.where(of_others, in_states(FileState.TRASHED))).all()
    going = connection.execute(columns.where(of_others, in_states(FileState.ERASING))).all()
    # A verdict may be settled long after it was written down, when another has had the same files deleted.
    since = (in_states(*RECEIPTS), trashed.c.ended_at > verdict.made_at)
    gone = connection.execute(columns.where(of_others, *since)).all()
    if not waiting and not going and not gone:
        return
    own = columns.where(trashed.c.verdict_id == verdict.id, in_states(FileState.TRASHED))
    mine = connection.execute(own).all()
    _keep(connection, _shared(waiting, mine), f"verdict {verdict.id} has it: it was needed until then")
    _keep(connection, _shared(mine, going), _GOING)
    _keep(connection, _shared(mine, gone), _GONE)


def _leave_restored(connection: Connection, verdict: Verdict) -> None:
    """What someone brought back stays for good, whichever verdict finds it next."""
    columns = select(trashed.c.id, trashed.c.path)
    others = select(verdicts.c.id).where(verdicts.c.table_uuid == verdict.table_uuid)
    restored = connection.execute(
        columns.where(trashed.c.verdict_id.in_(others), in_states(FileState.RESTORED))
    ).all()
    if restored:
        own = columns.where(trashed.c.verdict_id == verdict.id, in_states(FileState.TRASHED))
        _keep(connection, _shared(connection.execute(own).all(), restored), "someone restored it")


def _shared(rows: Sequence[Any], others: Sequence[Any]) -> list[int]:
    """Ids of those rows whose file is among the others', in whatever spelling."""
    import numpy as np

    from lakewarden.model.location import hashes

    both = np.isin(hashes([row.path for row in rows]), hashes([row.path for row in others]))
    return [row.id for row, shared in zip(rows, both, strict=True) if shared]


def _keep(connection: Connection, ids: Sequence[int], note: str) -> None:
    if ids:
        kept = {"state": FileState.KEPT.value, "note": note}
        connection.execute(update(trashed).where(among(connection, ids)).values(kept))
