"""Commits to Paimon tables. A commit has one of three outcomes: committed, lost, unknown."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitUnknown, LakewardenError
from lakewarden.model.table_name import TableRef
from lakewarden.tables.jvm import JavaError, java_causes, java_reason
from lakewarden.tables.paimon.commit_lock import HeldLock

_SETTLE_WAITS = (0.0, 0.5, 2.0)
# Paimon has no exception class for a lost race. It is recognised by the message of the check before the commit.
_LOST = ("conflicts detected", "Give up committing", "not previously added")

# Finds the snapshot whose properties have these values, from fresh metadata.
Find = Callable[[Mapping[str, str]], int | None]


def new_identifier() -> int:
    """A commit identifier. Paimon treats equal identifiers of one user as a repeated commit, and they must increase.

    So it is the time in microseconds, plus random bits for two processes in the same microsecond.
    """
    return int(clock.now().timestamp() * 1_000_000) * 1_000 + secrets.randbelow(1_000)


def commit(
    table: TableRef,
    summary: Mapping[str, str],
    attempt: Callable[[], int],
    find: Find,
    lock: AbstractContextManager[HeldLock],
) -> int:
    """Run `attempt` once, under the lock, and return the snapshot's id. CommitLost: nothing changed.

    CommitUnknown: the caller must read the table to find out. Paimon's library retries conflicts itself.
    """
    properties = {key: summary[key] for key in ("lineage.run_id", "lineage.group") if key in summary}
    with lock as held:
        held.check()
        try:
            snapshot_id = attempt()
        except JavaError as error:
            return _settled(table, properties, find, error)
        lasted = held.lasts()
    if snapshot_id < 0:
        raise CommitUnknown(table=table, reason="Paimon created no snapshot for it")
    return snapshot_id if lasted else _confirmed(table, properties, find)


def _confirmed(table: TableRef, wanted: Mapping[str, str], find: Find) -> int:
    """The lock expired during the commit: another process may have overwritten the snapshot with one of the same id. Check it."""
    reason = "its lock could not be renewed during the commit"
    try:
        snapshot_id = find(wanted)
    except (LakewardenError, *JavaError) as error:
        raise CommitUnknown(table=table, reason=f"{reason}, and the table cannot be read") from error
    if snapshot_id is None:
        raise CommitUnknown(table=table, reason=f"{reason}, and the table does not show it")
    return snapshot_id


def _settled(table: TableRef, wanted: Mapping[str, str], find: Find, error: Exception) -> int:
    """The outcome of a failed attempt: read the table, a few times. CommitUnknown if it cannot be read."""
    messages = " ".join(message for _, message in java_causes(error))
    refused = any(each in messages for each in _LOST)
    for wait in _SETTLE_WAITS:
        clock.sleep(wait)
        try:
            snapshot_id = find(wanted)
        except (LakewardenError, *JavaError):
            continue  # the outcome stays unknown
        if snapshot_id is not None:
            return snapshot_id
        # The failed check has read every snapshot since the attempt began. None of them is from this commit.
        if refused:
            raise CommitLost(table=table, reason=java_reason(error)) from error
    raise CommitUnknown(table=table, reason=java_reason(error)) from error
