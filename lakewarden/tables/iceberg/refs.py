"""Creates, extends and removes tags of an Iceberg table, each in one commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from lakewarden.errors import CommitLost, CommitUnknown, LakewardenError, UsageError
from lakewarden.model.table import Ref, TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.commit import refuse_foreign_log, watched
from lakewarden.tables.iceberg.view import read_view
from lakewarden.tables.jvm import JavaError, is_java, java_reason

# An explicit age: a ref without one would get the table's `history.expire.max-ref-age-ms`.
_FOR_EVER = 2**63 - 1


def create_tag(
    catalogs: IcebergCatalogs, table: TableRef, name: str, snapshot_id: int, until: datetime | None
) -> None:
    view = read_view(catalogs, table)
    known = _ref(view, name)
    if known is not None:
        raise UsageError(
            reason=f"tag {table}: there is a {known.kind} {name!r} already, on snapshot {known.snapshot_id}",
            hint=f"choose another name, or remove the tag first with `lakewarden untag {table} {name}`"
            if known.kind == "tag"
            else "take another name",
        )
    age = _age(view, snapshot_id, until)

    def made(now: TableView) -> bool:
        ref = _ref(now, name)
        return ref is not None and ref.kind == "tag" and ref.snapshot_id == snapshot_id

    _commit(catalogs, table, lambda loaded: catalogs.refs.createTag(loaded, name, snapshot_id, age), made)


def retain_tag(catalogs: IcebergCatalogs, table: TableRef, name: str, until: datetime | None) -> None:
    view = read_view(catalogs, table)
    age = _age(view, _tag(view, name).snapshot_id, until)

    def longer(now: TableView) -> bool:
        ref = _ref(now, name)
        return ref is not None and ref.max_age_ms == age

    _commit(catalogs, table, lambda loaded: catalogs.refs.retainTag(loaded, name, age), longer)


def drop_tag(catalogs: IcebergCatalogs, table: TableRef, name: str) -> None:
    _tag(read_view(catalogs, table), name)
    _commit(
        catalogs,
        table,
        lambda loaded: catalogs.refs.dropTag(loaded, name),
        lambda now: _ref(now, name) is None,
    )


def _ref(view: TableView, name: str) -> Ref | None:
    return next((ref for ref in view.refs if ref.name == name), None)


def _tag(view: TableView, name: str) -> Ref:
    known = _ref(view, name)
    if known is not None and known.kind == "tag":
        return known
    tags = ", ".join(sorted(ref.name for ref in view.refs if ref.kind == "tag")) or "none"
    problem = f"{name!r} is a {known.kind}" if known is not None else f"it has no tag {name!r}"
    raise UsageError(
        reason=f"find the tag of {view.ref}: {problem}; its tags are: {tags}",
        hint=f"see `lakewarden holds {view.ref}`",
    )


def _age(view: TableView, snapshot_id: int, until: datetime | None) -> int:
    """Milliseconds from the snapshot's commit to the tag's end, because Iceberg counts a ref's age from that commit."""
    snapshot = view.snapshot(snapshot_id)
    if snapshot is None:
        raise UsageError(
            reason=f"tag {view.ref}: it has no snapshot {snapshot_id}",
            hint=f"see its newest snapshots with `lakewarden show {view.ref}`",
        )
    if until is None:
        return _FOR_EVER
    return max(1, -((snapshot.committed_at - until) // timedelta(milliseconds=1)))


def _commit(
    catalogs: IcebergCatalogs,
    table: TableRef,
    change: Callable[[Any], None],
    held: Callable[[TableView], bool],
) -> None:
    """Runs one change of refs. The library retries conflicts. After any error, the table shows whether the change happened."""
    try:
        change(watched(catalogs, table, catalogs.load(table)).table())
    except JavaError as error:
        refuse_foreign_log(table, error)
        try:
            if held(read_view(catalogs, table)):
                return
        except (LakewardenError, *JavaError) as silent:
            raise CommitUnknown(table=table, reason=java_reason(error)) from silent
        if is_java(error, "CommitStateUnknownException"):
            raise CommitUnknown(table=table, reason=java_reason(error)) from error
        raise CommitLost(table=table, reason=java_reason(error)) from error
