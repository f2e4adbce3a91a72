"""Removes snapshots and tags of a Paimon table. No data file or manifest is deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lakewarden.errors import CommitLost, CommitUnknown
from lakewarden.model.table import TableView
from lakewarden.tables.interface import HeldByRef
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit_lock import HeldLock
from lakewarden.tables.paimon.metadata import MAIN, PaimonRoot, newest_run


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
