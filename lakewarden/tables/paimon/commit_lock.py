"""Lakewarden's own commit lock, because many Paimon catalogs have none, and the check which catalogs these are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from lakewarden.model.location import HADOOP, scheme_of
from lakewarden.model.table_name import TableRef

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
