"""The lock Lakewarden brings along, because many of Paimon's catalogs have none, and which catalogs those are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from lakewarden.model.location import HADOOP, scheme_of
from lakewarden.model.table_name import TableRef

# Their rename is atomic and never replaces a file: a second commit of the same number fails by itself.
_ATOMIC = HADOOP


class Held(Protocol):
    def check(self) -> None:
        """CommitLost where the lock is no longer ours. Asked right before anything is changed."""

    def lasts(self) -> bool:
        """Whether the lock was ours until now. Asked after a change: a renewal may have been missing in between."""


# The lock on a table, by where it lies. CommitLost when it cannot be had.
Guard = Callable[[TableRef, str], AbstractContextManager[Held]]


class _Free:
    def check(self) -> None:
        return None

    def lasts(self) -> bool:
        return True


@contextmanager
def unguarded(table: TableRef, place: str) -> Iterator[Held]:
    """No lock at all: for who knows that nobody else is there."""
    yield _Free()


def commit_risk(properties: Mapping[str, str]) -> str:
    """What can happen to writers that commit through this catalog at the same instant; empty where nothing can."""
    scheme = scheme_of(properties.get("warehouse", ""))
    metastore = properties.get("metastore", "filesystem")
    if metastore == "rest" or scheme in _ATOMIC:
        return ""
    # As Paimon decides it: asked for, or by itself on object stores; and only where there is a lock to take.
    wanted = properties.get("lock.enabled", str(scheme != "file")).lower() == "true"
    if wanted and (metastore in ("jdbc", "hive") or "lock.type" in properties):
        return ""
    return "no lock of its own: of two writers that commit at the same instant, one can lose its commit"
