"""Commits to Paimon tables, and the three ways one can end: committed, lost, unknown."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitUnknown, LakewardenError
from lakewarden.formats.jvm import JavaError, java_causes, java_reason
from lakewarden.formats.paimon.guard import Held
from lakewarden.model import TableRef

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
    attempt: Callable[[], None],
    find: Find,
    lock: AbstractContextManager[Held],
) -> int:
    """Run `attempt` once, under the lock; the snapshot's id. CommitLost: nothing changed. CommitUnknown: read the table before acting.

    Paimon's library tries again by itself while others come first.
    """
    wanted = {key: summary[key] for key in ("lineage.run_id", "lineage.group") if key in summary}
    with lock as held:
        held.check()
        return _attempted(table, wanted, attempt, find)


def _attempted(table: TableRef, wanted: Mapping[str, str], attempt: Callable[[], None], find: Find) -> int:
    try:
        attempt()
    except JavaError as error:
        found = _settle(wanted, find)
        if found is not None:
            return found
        told = " ".join(message for _, message in java_causes(error))
        if any(each in told for each in _LOST):
            raise CommitLost(table=table, reason=java_reason(error)) from error
        raise CommitUnknown(table=table, reason=java_reason(error)) from error
    found = _settle(wanted, find)
    if found is None:
        raise CommitUnknown(table=table, reason="it succeeded, but the table does not show the snapshot")
    return found


def _settle(wanted: Mapping[str, str], find: Find) -> int | None:
    """What the table says about the commit, asked a few times."""
    for wait in _SETTLE_WAITS:
        clock.sleep(wait)
        try:
            found = find(wanted)
        except (LakewardenError, *JavaError):
            continue  # as unknown as before
        if found is not None:
            return found
    return None
