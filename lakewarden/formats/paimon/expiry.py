"""Dropping snapshots and tags of a Paimon table. No file of data or manifests is touched."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from lakewarden.errors import CommitLost, CommitUnknown
from lakewarden.formats.jvm import JavaError, java_reason
from lakewarden.formats.paimon.catalog import Catalogs
from lakewarden.formats.paimon.guard import Held
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
    _check(view, fresh(), ids)
    table = catalogs.load(view.ref)
    lock.check()
    try:
        for name in refs:
            catalogs.bridge.dropTag(table, name)
        catalogs.bridge.dropSnapshots(table, json.dumps(ids), view.handle.decoupled)
    except JavaError as error:
        raise CommitUnknown(table=view.ref, reason=java_reason(error)) from error


def _check(view: TableView, now: TableView, ids: Sequence[int]) -> None:
    if now.uuid != view.uuid:
        raise CommitLost(table=view.ref, reason="it is another table now")
    known = {each.id: each.committed_at for each in view.snapshots}
    there = {each.id: each.committed_at for each in now.snapshots}
    if any(there.get(each) not in (None, known[each]) for each in ids):
        raise CommitLost(table=view.ref, reason="it was rolled back: its snapshots are others now")
    if ids and now.current_snapshot_id is not None and now.current_snapshot_id <= ids[-1]:
        raise CommitLost(table=view.ref, reason=f"its newest snapshot is {now.current_snapshot_id} now")
    held = [
        (f"{ref.kind} {ref.name}", ref.snapshot_id)
        for ref in now.refs
        if ref.kind == "consumer" and ids and ref.snapshot_id <= ids[-1]
    ]
    if held:
        raise HeldByRef(held)
