"""Dropping snapshots and tags of a Paimon table. No file of data or manifests is touched."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lakewarden.errors import CommitLost, CommitUnknown
from lakewarden.model.table import TableView
from lakewarden.tables.interface import HeldByRef
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon.catalog import Catalogs
from lakewarden.tables.paimon.commit_lock import Held
from lakewarden.tables.paimon.metadata import MAIN, Root, newest_run


@dataclass(frozen=True, slots=True)
class Leaving:
    """What is to go: snapshots and changelogs by id, the oldest first, and tags with the snapshot each named when it was judged."""

    snapshots: Sequence[int]
    tags: Mapping[str, int]
    changelogs: Sequence[int] = ()

    @property
    def last(self) -> int:
        return max((*self.snapshots[-1:], *self.changelogs[-1:]), default=-1)


def expire(
    catalogs: Catalogs, view: TableView, leaving: Leaving, fresh: Callable[[], TableView], lock: Held
) -> None:
    """The oldest first, so that wherever this stops the rest is without a gap. HeldByRef: a consumer reads one of them now."""
    _check(view, fresh(), leaving)
    table = catalogs.load(view.ref)
    roots = view.handle.metadata.roots
    deltas = {
        each.id: each.content["deltaManifestList"] for each in (*newest_run(roots), *_main_changelogs(roots))
    }
    terms = {each.name: _term(each) for each in roots if each.kind == "tag" and each.branch == MAIN}
    lock.check()
    try:
        for number, (name, snapshot_id) in enumerate(leaving.tags.items()):
            if not catalogs.bridge.dropTag(table, name, snapshot_id, terms[name]):
                kind = CommitUnknown if number else CommitLost  # lost means that nothing has changed
                raise kind(table=view.ref, reason=f"tag {name} is another one now")
        stopped = catalogs.bridge.dropSnapshots(
            table, _told(deltas, leaving.snapshots), view.handle.decoupled
        )
        if leaving.changelogs and not stopped:
            # Those of the snapshots that have just left are among them, and were written first: Paimon fails at a gap.
            going = _told(deltas, leaving.changelogs)
            stopped = catalogs.bridge.dropChangelogs(table, going, leaving.changelogs[-1] + 1)
    except JavaError as error:
        raise CommitUnknown(table=view.ref, reason=java_reason(error)) from error
    if stopped:
        # Some may be gone: the table tells which when the verdict is settled.
        raise CommitUnknown(table=view.ref, reason=stopped)


def _main_changelogs(roots: Sequence[Root]) -> list[Root]:
    return [each for each in roots if each.kind == "changelog" and each.branch == MAIN]


def _told(deltas: Mapping[int, str], ids: Sequence[int]) -> str:
    """Each with its delta, which tells it from another of the same id."""
    return json.dumps([[each, deltas[each]] for each in ids])


def _term(tag: Root) -> str:
    """How long a tag is kept, in milliseconds; empty for one without an end."""
    retained = tag.content.get("tagTimeRetained")
    return "" if retained is None else str(round(float(retained) * 1000))


def _check(view: TableView, now: TableView, leaving: Leaving) -> None:
    if now.uuid != view.uuid:
        raise CommitLost(table=view.ref, reason="it is another table now")
    known = {each.id: each.committed_at for each in view.snapshots}
    there = {each.id: each.committed_at for each in now.snapshots}
    newest = now.current_snapshot_id
    # Others may have expired any of them; but the newest goes, or becomes another one, by a rollback alone.
    judged = [*leaving.snapshots, view.current_snapshot_id]
    if any(each in there and there[each] != known[each] for each in judged if each is not None):
        raise CommitLost(table=view.ref, reason="it was rolled back: its snapshots are others now")
    if newest is not None and view.current_snapshot_id is not None and newest < view.current_snapshot_id:
        raise CommitLost(table=view.ref, reason=f"it was rolled back: its newest snapshot is {newest} now")
    tags = {ref.name: (ref.snapshot_id, ref.ends_at) for ref in view.refs if ref.kind == "tag"}
    for ref in now.refs:
        if (
            ref.kind == "tag"
            and ref.name in leaving.tags
            and (ref.snapshot_id, ref.ends_at) != tags[ref.name]
        ):
            raise CommitLost(table=view.ref, reason=f"tag {ref.name} is another one now")
    held = [
        (f"{ref.kind} {ref.name}", ref.snapshot_id)
        for ref in now.refs
        if ref.kind == "consumer" and ref.snapshot_id <= leaving.last
    ]
    if held:
        raise HeldByRef(held)
