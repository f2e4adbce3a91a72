"""Commits to Paimon tables. A commit has one of three outcomes: committed, lost, unknown. Many Paimon catalogs
have no lock, so commits are made under Lakewarden's own. `commit_risk` describes the risk that
remains for other writers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitUnknown, LakewardenError
from lakewarden.model.location import HADOOP, scheme_of
from lakewarden.model.table import TableRef
from lakewarden.tables.jvm import JavaError, java_causes, java_reason

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


# On these stores a rename is atomic and never replaces a file: a second commit with the same id fails.
_ATOMIC = HADOOP


class HeldLock(Protocol):
    def check(self) -> None:
        """Raises CommitLost if this process no longer holds the lock. Called right before a change."""

    def lasts(self) -> bool:
        """Whether this process held the lock without a break. Called after a change: a renewal may have failed."""


# Locks the table at this location. Raises CommitLost if the lock cannot be taken.
Guard = Callable[[TableRef, str], AbstractContextManager[HeldLock]]


class _Free:
    def check(self) -> None:
        return None

    def lasts(self) -> bool:
        return True


@contextmanager
def unguarded(table: TableRef, place: str) -> Iterator[HeldLock]:
    """No lock: only for callers without any concurrent process."""
    yield _Free()


def commit_risk(properties: Mapping[str, str]) -> str:
    """The risk of concurrent commits through this catalog, as a sentence; empty if there is none."""
    scheme = scheme_of(properties.get("warehouse", ""))
    metastore = properties.get("metastore", "filesystem")
    if metastore == "rest" or scheme in _ATOMIC:
        return ""
    # The same decision as in Paimon: a lock is used if configured or on object stores, and only if the catalog has one.
    enabled = properties.get("lock.enabled", str(scheme != "file")).lower() == "true"
    if enabled and (metastore in ("jdbc", "hive") or "lock.type" in properties):
        return ""
    return "no lock of its own: of two writers that commit at the same instant, one can lose its commit"
