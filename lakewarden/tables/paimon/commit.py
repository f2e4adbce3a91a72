"""Commits to Paimon tables, and the three ways one can end: committed, lost, unknown."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitUnknown, LakewardenError
from lakewarden.model.table_name import TableRef
from lakewarden.tables.jvm import JavaError, java_causes, java_reason
from lakewarden.tables.paimon.commit_lock import Held

_SETTLE_WAITS = (0.0, 0.5, 2.0)
# Paimon has no class of its own for a lost race: what the check says before anything is written tells it.
_LOST = ("conflicts detected", "Give up committing", "not previously added")

# Finds the snapshot whose properties carry these values, from fresh metadata.
Find = Callable[[Mapping[str, str]], int | None]


def new_identifier() -> int:
    """Paimon takes a commit of the same user and identifier for one that was repeated, and wants them to grow.

    So: the time in microseconds, and chance for two processes that ask in the same one.
    """
    return int(clock.now().timestamp() * 1_000_000) * 1_000 + secrets.randbelow(1_000)


def commit(
    table: TableRef,
    summary: Mapping[str, str],
    attempt: Callable[[], int],
    find: Find,
    lock: AbstractContextManager[Held],
) -> int:
    """Run `attempt` once, under the lock; the snapshot's id. CommitLost: nothing changed. CommitUnknown: read the table before acting.

    Paimon's library tries again by itself while others come first.
    """
    wanted = {key: summary[key] for key in ("lineage.run_id", "lineage.group") if key in summary}
    with lock as held:
        held.check()
        try:
            made = attempt()
        except JavaError as error:
            return _settled(table, wanted, find, error)
        lasted = held.lasts()
    if made < 0:
        raise CommitUnknown(table=table, reason="Paimon made no snapshot of it")
    return made if lasted else _confirmed(table, wanted, find)


def _confirmed(table: TableRef, wanted: Mapping[str, str], find: Find) -> int:
    """The lock ran out while the commit was made: another may have written a snapshot of the same number over it."""
    reason = "its lock could not be renewed during the commit"
    try:
        found = find(wanted)
    except (LakewardenError, *JavaError) as error:
        raise CommitUnknown(table=table, reason=f"{reason}, and the table cannot be read") from error
    if found is None:
        raise CommitUnknown(table=table, reason=f"{reason}, and the table does not show it")
    return found


def _settled(table: TableRef, wanted: Mapping[str, str], find: Find, error: Exception) -> int:
    """What the table says of an attempt that failed, asked a few times. Without its answer nothing is known."""
    told = " ".join(message for _, message in java_causes(error))
    refused = any(each in told for each in _LOST)
    for wait in _SETTLE_WAITS:
        clock.sleep(wait)
        try:
            found = find(wanted)
        except (LakewardenError, *JavaError):
            continue  # as unknown as before
        if found is not None:
            return found
        # A check that fails has seen every snapshot since the attempt began: were one of them ours, it would have said so.
        if refused:
            raise CommitLost(table=table, reason=java_reason(error)) from error
    raise CommitUnknown(table=table, reason=java_reason(error)) from error
