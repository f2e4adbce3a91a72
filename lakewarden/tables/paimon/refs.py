"""Creates, extends and removes tags of a Paimon table."""

from __future__ import annotations

from datetime import datetime, timedelta

from lakewarden import clock
from lakewarden.errors import CommitLost, UsageError
from lakewarden.model.table import Ref, TableView
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit_lock import HeldLock

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
