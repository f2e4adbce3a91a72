"""The only way to change a Paimon table. Every method calls the guard first; tests/tables/test_commit_guard.py
checks each. Tags are created, extended and removed. An expiry removes snapshots and tags; no data file or
manifest is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitUnknown, UsageError
from lakewarden.model.table import Ref, TableRef, TableView
from lakewarden.tables.interface import (
    Adoption,
    ColdWriter,
    CommitGuard,
    Dropped,
    HeldByRef,
    Incorporate,
    MergedBuckets,
    PartitionSet,
    Rewrite,
)
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon import adoption, partitions
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.cold import PaimonCold, PaimonColdWriter
from lakewarden.tables.paimon.commit import Find, HeldLock
from lakewarden.tables.paimon.metadata import MAIN, PaimonRoot, newest_run
from lakewarden.tables.paimon.reachability import PaimonReachability
from lakewarden.tables.paimon.rewrite import commit_merge, commit_rewrite, fold


@dataclass(frozen=True, slots=True)
class WriterDeps:
    """The parts of the format that a writer needs: reading, and the table's lock (`locked`)."""

    catalogs: PaimonCatalogs
    view: Callable[[TableRef], TableView]
    reach: Callable[[TableView], PaimonReachability]
    find_commit: Callable[[TableRef, Mapping[str, str]], int | None]
    locked: Callable[[TableView], AbstractContextManager[HeldLock]]

    def find(self, table: TableRef) -> Find:
        return partial(self.find_commit, table)

    def lock(self, table: TableRef) -> AbstractContextManager[HeldLock]:
        return self.locked(self.view(table))


class PaimonWriter:
    """Implements TableWriter for Paimon."""

    def __init__(self, guard: CommitGuard, ways: WriterDeps, tier: PaimonCold) -> None:
        self._guard, self._ways, self._tier = guard, ways, tier

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        """Deletes that arrive during the rewrite are not carried over: the commit is lost, and the group is rewritten with them."""
        self._guard.check(rewrite.table, rewrite.summary)
        ways, table = self._ways, rewrite.table
        lock = ways.lock(table)
        return commit_rewrite(ways.catalogs, rewrite, ways.find(table), lock)

    def commit_merge(self, view: TableView, merged: MergedBuckets, summary: Mapping[str, str]) -> int:
        self._guard.check(view.ref, summary)
        ways = self._ways
        return commit_merge(ways.catalogs, view.ref, merged, summary, ways.find(view.ref), ways.locked(view))

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        """Nothing to do: Paimon has no position-delete files. A data file has at most one deletion vector."""
        self._guard.check(table, summary)
        return None

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        self._guard.check(table, summary)
        ways = self._ways
        lock = ways.lock(table)
        return fold(ways.catalogs, table, target_bytes, summary, ways.find(table), lock)

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        self._guard.check(table, summary)
        ways = self._ways
        lock = ways.lock(table)
        return partitions.drop_partitions(ways.catalogs, table, found, ids, summary, ways.find(table), lock)

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        self._guard.check(view.ref, None)
        ways = self._ways
        with ways.locked(view) as lock:
            leaving = Leaving(sorted(snapshot_ids), refs, sorted(changelogs))
            expire(ways.catalogs, view, leaving, lambda: ways.view(view.ref), lock)

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        self._guard.check(table, summary)
        ways = self._ways
        return adoption.commit_adoption(
            ways.catalogs,
            table,
            adopting,
            summary,
            lambda: ways.reach(ways.view(table)),
            ways.find(table),
            ways.lock(table),
        )

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        self._guard.check(table, None)
        ways = self._ways
        with ways.lock(table) as lock:
            create_tag(ways.catalogs, ways.view(table), name, snapshot_id, until, lock)

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        self._guard.check(table, None)
        ways = self._ways
        with ways.lock(table) as lock:
            retain_tag(ways.catalogs, ways.view(table), name, until, lock)

    def drop_tag(self, table: TableRef, name: str) -> None:
        self._guard.check(table, None)
        ways = self._ways
        with ways.lock(table) as lock:
            drop_tag(ways.catalogs, ways.view(table), name, lock)

    def cold(self) -> ColdWriter:
        return PaimonColdWriter(self._guard, self._tier)


_FOR_EVER = -1


def create_tag(
    catalogs: PaimonCatalogs,
    view: TableView,
    name: str,
    snapshot_id: int,
    until: datetime | None,
    lock: HeldLock,
) -> None:
    known = next((ref for ref in view.refs if ref.name == name and ref.kind == "tag"), None)
    if known is not None:
        raise UsageError(
            reason=f"tag {view.ref}: there is a tag {name!r} already, on snapshot {known.snapshot_id}",
            hint=f"choose another name, or remove the tag first with `lakewarden untag {view.ref} {name}`",
        )
    if view.snapshot(snapshot_id) is None:
        raise UsageError(
            reason=f"tag {view.ref}: it has no snapshot {snapshot_id}",
            hint=f"see its newest snapshots with `lakewarden show {view.ref}`",
        )
    lock.check()
    try:
        table = catalogs.load(view.ref)
        catalogs.bridge.createTag(table, name, snapshot_id, _retained(until))
        kept = catalogs.bridge.hasSnapshot(table, snapshot_id)
        # A concurrent expiry may have read the tags before this one existed, so files of the snapshot may be gone.
        if not kept:
            catalogs.bridge.dropTag(table, name, snapshot_id, None)
    except JavaError as error:
        raise CommitLost(table=view.ref, reason=java_reason(error)) from error
    if not kept:
        raise CommitLost(table=view.ref, reason=f"snapshot {snapshot_id} expired at the same time")


def retain_tag(
    catalogs: PaimonCatalogs, view: TableView, name: str, until: datetime | None, lock: HeldLock
) -> None:
    _tag(view, name)
    lock.check()
    try:
        catalogs.bridge.retainTag(catalogs.load(view.ref), name, _retained(until))
    except JavaError as error:
        raise CommitLost(table=view.ref, reason=java_reason(error)) from error


def drop_tag(catalogs: PaimonCatalogs, view: TableView, name: str, lock: HeldLock) -> None:
    tag = _tag(view, name)
    lock.check()
    try:
        dropped = catalogs.bridge.dropTag(catalogs.load(view.ref), name, tag.snapshot_id, None)
    except JavaError as error:
        raise CommitLost(table=view.ref, reason=java_reason(error)) from error
    if not dropped:
        raise CommitLost(table=view.ref, reason=f"tag {name} was replaced by another one")


def _tag(view: TableView, name: str) -> Ref:
    tag = next((ref for ref in view.refs if ref.name == name and ref.kind == "tag"), None)
    if tag is not None:
        return tag
    tags = ", ".join(sorted(ref.name for ref in view.refs if ref.kind == "tag")) or "none"
    raise UsageError(
        reason=f"find the tag of {view.ref}: it has no tag {name!r}; its tags are: {tags}",
        hint=f"see `lakewarden holds {view.ref}`",
    )


def _retained(until: datetime | None) -> int:
    """Milliseconds from now, because Paimon counts the retention from the creation of a tag."""
    if until is None:
        return _FOR_EVER
    return max(1, (until - clock.now()) // timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class Leaving:
    """What is removed: ids of snapshots and changelogs, oldest first, and tags with the snapshot each named when it was planned."""

    snapshots: Sequence[int]
    tags: Mapping[str, int]
    changelogs: Sequence[int] = ()

    @property
    def last(self) -> int:
        return max((*self.snapshots[-1:], *self.changelogs[-1:]), default=-1)


def expire(
    catalogs: PaimonCatalogs,
    view: TableView,
    leaving: Leaving,
    fresh: Callable[[], TableView],
    lock: HeldLock,
) -> None:
    """Removes the oldest first: if it stops anywhere, the rest has no gap. HeldByRef: a consumer reads one of the snapshots now."""
    _check(view, fresh(), leaving)
    table = catalogs.load(view.ref)
    roots = view.handle.metadata.roots
    deltas = {
        each.id: each.content["deltaManifestList"] for each in (*newest_run(roots), *_main_changelogs(roots))
    }
    terms = {root.name: _term(root) for root in roots if root.kind == "tag" and root.branch == MAIN}
    lock.check()
    try:
        for number, (name, snapshot_id) in enumerate(leaving.tags.items()):
            if not catalogs.bridge.dropTag(table, name, snapshot_id, terms[name]):
                kind = (
                    CommitUnknown if number else CommitLost
                )  # CommitLost is only correct if nothing has changed yet
                raise kind(table=view.ref, reason=f"tag {name} was replaced by another one")
        stopped = catalogs.bridge.dropSnapshots(
            table, _told(deltas, leaving.snapshots), view.handle.decoupled
        )
        if leaving.changelogs and not stopped:
            # This includes changelogs of the snapshots that were just removed. They were written first: Paimon fails at a gap.
            going = _told(deltas, leaving.changelogs)
            stopped = catalogs.bridge.dropChangelogs(table, going, leaving.changelogs[-1] + 1)
    except JavaError as error:
        raise CommitUnknown(table=view.ref, reason=java_reason(error)) from error
    if stopped:
        # Some may be gone. Recovery reads from the table which ones.
        raise CommitUnknown(table=view.ref, reason=stopped)


def _main_changelogs(roots: Sequence[PaimonRoot]) -> list[PaimonRoot]:
    return [root for root in roots if root.kind == "changelog" and root.branch == MAIN]


def _told(deltas: Mapping[int, str], ids: Sequence[int]) -> str:
    """Each id with its delta list, which distinguishes it from another snapshot of the same id."""
    return json.dumps([[each, deltas[each]] for each in ids])


def _term(tag: PaimonRoot) -> str:
    """The tag's retention in milliseconds; empty for a tag that is kept forever."""
    retained = tag.content.get("tagTimeRetained")
    return "" if retained is None else str(round(float(retained) * 1000))


def _check(view: TableView, now: TableView, leaving: Leaving) -> None:
    if now.uuid != view.uuid:
        raise CommitLost(table=view.ref, reason="it was replaced by another table")
    known = {snapshot.id: snapshot.committed_at for snapshot in view.snapshots}
    there = {snapshot.id: snapshot.committed_at for snapshot in now.snapshots}
    newest = now.current_snapshot_id
    # Other tools may have expired any snapshot. But only a rollback removes or replaces the newest one.
    judged = [*leaving.snapshots, view.current_snapshot_id]
    if any(each in there and there[each] != known[each] for each in judged if each is not None):
        raise CommitLost(table=view.ref, reason="it was rolled back: its snapshots have changed")
    if newest is not None and view.current_snapshot_id is not None and newest < view.current_snapshot_id:
        raise CommitLost(table=view.ref, reason=f"it was rolled back: its newest snapshot is {newest} now")
    tags = {ref.name: (ref.snapshot_id, ref.ends_at) for ref in view.refs if ref.kind == "tag"}
    for ref in now.refs:
        if (
            ref.kind == "tag"
            and ref.name in leaving.tags
            and (ref.snapshot_id, ref.ends_at) != tags[ref.name]
        ):
            raise CommitLost(table=view.ref, reason=f"tag {ref.name} was replaced by another one")
    held = [
        (f"{ref.kind} {ref.name}", ref.snapshot_id)
        for ref in now.refs
        if ref.kind == "consumer" and ref.snapshot_id <= leaving.last
    ]
    if held:
        raise HeldByRef(held)
