"""Dropping snapshots and tags of a Paimon table. No file of data or manifests is touched."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from lakewarden.errors import CommitLost, CommitUnknown
from lakewarden.formats.jvm import JavaError, java_reason
from lakewarden.formats.paimon.catalog import Catalogs
from lakewarden.formats.paimon.guard import Held
from lakewarden.formats.paimon.metadata import MAIN, Root, newest_run
from lakewarden.formats.seam import HeldByRef
from lakewarden.model import TableView


def expire(
    catalogs: Catalogs,
    view: TableView,
    snapshot_ids: Sequence[int],
    refs: Mapping[str, int],
    fresh: Callable[[], TableView],
    lock: Held,
) -> None:
    """The oldest first, so that wherever this stops the rest is without a gap. HeldByRef: a consumer reads one of them now."""
    ids = sorted(snapshot_ids)
    _check(view, fresh(), ids, refs)
    table = catalogs.load(view.ref)
    roots = view.handle.metadata.roots
    deltas = {each.id: each.content["deltaManifestList"] for each in newest_run(roots)}
    terms = {each.name: _term(each) for each in roots if each.kind == "tag" and each.branch == MAIN}
    lock.check()
    try:
        for number, (name, snapshot_id) in enumerate(refs.items()):
            if not catalogs.bridge.dropTag(table, name, snapshot_id, terms[name]):
                kind = CommitUnknown if number else CommitLost  # lost means that nothing has changed
                raise kind(table=view.ref, reason=f"tag {name} is another one now")
        planned = json.dumps([[each, deltas[each]] for each in ids])
        stopped = catalogs.bridge.dropSnapshots(table, planned, view.handle.decoupled)
    except JavaError as error:
        raise CommitUnknown(table=view.ref, reason=java_reason(error)) from error
    if stopped:
        # Some may be gone: the table tells which when the verdict is settled.
        raise CommitUnknown(table=view.ref, reason=stopped)


def _term(tag: Root) -> str:
    """How long a tag is kept, in milliseconds; empty for one without an end."""
    retained = tag.content.get("tagTimeRetained")
    return "" if retained is None else str(round(float(retained) * 1000))


def _check(view: TableView, now: TableView, ids: Sequence[int], refs: Mapping[str, int]) -> None:
    if now.uuid != view.uuid:
        raise CommitLost(table=view.ref, reason="it is another table now")
    known = {each.id: each.committed_at for each in view.snapshots}
    there = {each.id: each.committed_at for each in now.snapshots}
    if any(there.get(each) not in (None, known[each]) for each in ids):
        raise CommitLost(table=view.ref, reason="it was rolled back: its snapshots are others now")
    if ids and now.current_snapshot_id is not None and now.current_snapshot_id <= ids[-1]:
        raise CommitLost(table=view.ref, reason=f"its newest snapshot is {now.current_snapshot_id} now")
    judged = {ref.name: (ref.snapshot_id, ref.ends_at) for ref in view.refs if ref.kind == "tag"}
    for ref in now.refs:
        if ref.kind == "tag" and ref.name in refs and (ref.snapshot_id, ref.ends_at) != judged[ref.name]:
            raise CommitLost(table=view.ref, reason=f"tag {ref.name} is another one now")
    held = [
        (f"{ref.kind} {ref.name}", ref.snapshot_id)
        for ref in now.refs
        if ref.kind == "consumer" and ids and ref.snapshot_id <= ids[-1]
    ]
    if held:
        raise HeldByRef(held)
