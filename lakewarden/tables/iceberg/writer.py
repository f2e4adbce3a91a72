"""The only way to change an Iceberg table. Every method calls the guard first;
tests/tables/test_commit_guard.py checks each. Tags are created, extended and removed in one commit each. An
expiry removes snapshots and refs from the metadata; no data, delete or manifest file is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from lakewarden import clock
from lakewarden.errors import (
    CommitLost,
    CommitNotSent,
    CommitRefused,
    CommitUnknown,
    LakewardenError,
    UsageError,
)
from lakewarden.model.table import Ref, TableRef, TableView
from lakewarden.tables.iceberg import adoption, cold, partitions
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.commit import (
    CONFLICT,
    REFUSED,
    SETTLE_WAITS,
    UNKNOWN,
    Sending,
    commit,
    refuse_foreign_log,
    watched,
)
from lakewarden.tables.iceberg.rewrite import RewriteCommit
from lakewarden.tables.iceberg.view import filter_expression, read_view
from lakewarden.tables.interface import (
    Adoption,
    ColdHome,
    ColdWriter,
    CommitGuard,
    Dropped,
    HeldByRef,
    Incorporate,
    MergedBuckets,
    PartitionSet,
    Rewrite,
    TableChanged,
)
from lakewarden.tables.jvm import JavaError, is_java, java_reason


class IcebergWriter:
    """Implements TableWriter for Iceberg."""

    def __init__(self, guard: CommitGuard, spark: Any, catalogs: IcebergCatalogs) -> None:
        self._guard, self._spark, self._catalogs = guard, spark, catalogs

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        self._guard.check(rewrite.table, rewrite.summary)
        return RewriteCommit(self._catalogs, rewrite, incorporate).run()

    def commit_merge(self, view: TableView, merged: MergedBuckets, summary: Mapping[str, str]) -> int:
        self._guard.check(view.ref, summary)
        raise AssertionError("no table of this format merges rows by primary keys")

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        self._guard.check(table, summary)
        loaded = self._catalogs.load(table)
        expression = filter_expression(self._catalogs, loaded, where) if where else None

        def attempt(sending: Sending) -> bool:
            changed: bool = self._catalogs.deletes.mergeDeletes(
                self._spark._jsparkSession,
                sending.watched(self._catalogs.load(table), keeps_files=True),
                expression,
                min_files,
                json.dumps(dict(summary)),
            )
            return changed

        return commit(self._catalogs, table, summary, attempt, attempts=4)

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        self._guard.check(table, summary)

        def attempt(sending: Sending) -> bool:
            changed: bool = self._catalogs.bridge.rewriteManifests(
                self._spark._jsparkSession,
                sending.watched(self._catalogs.load(table)),
                spec_id,
                target_bytes,
                json.dumps(dict(summary)),
            )
            return changed

        return commit(self._catalogs, table, summary, attempt, attempts=16)

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        self._guard.check(table, summary)
        return partitions.drop_partitions(self._catalogs, table, found, ids, summary)

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        self._guard.check(view.ref, None)
        expire(self._catalogs, view, snapshot_ids, refs)

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        self._guard.check(table, summary)
        return adoption.commit_adoption(self._catalogs, table, adopting, summary)

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        self._guard.check(table, None)
        create_tag(self._catalogs, table, name, snapshot_id, until)

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        self._guard.check(table, None)
        retain_tag(self._catalogs, table, name, until)

    def drop_tag(self, table: TableRef, name: str) -> None:
        self._guard.check(table, None)
        drop_tag(self._catalogs, table, name)

    def cold(self) -> ColdWriter:
        return IcebergColdWriter(self._guard, self._catalogs)


class IcebergColdWriter:
    """Implements ColdWriter for Iceberg."""

    def __init__(self, guard: CommitGuard, catalogs: IcebergCatalogs) -> None:
        self._guard, self._catalogs = guard, catalogs

    def make(self, view: TableView, catalog: str) -> ColdHome:
        self._guard.check(TableRef(catalog, view.ref.namespace, view.ref.name), None)
        return cold.make(self._catalogs, view, catalog)

    def register(
        self, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Sequence[Ref]
    ) -> None:
        self._guard.check(home.ref, None)
        cold.register(self._catalogs, view, home, snapshot_ids, tags)

    def release(self, view: TableView, home: ColdHome, snapshot_ids: Collection[int]) -> None:
        self._guard.check(home.ref, None)
        cold.release(self._catalogs, view, home, snapshot_ids)


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


def expire(
    catalogs: IcebergCatalogs, view: TableView, snapshot_ids: Sequence[int], refs: Mapping[str, int]
) -> None:
    """Commits on top of exactly this view; TableChanged if another commit came first. HeldByRef: a ref names one of the snapshots now."""
    ids, names = json.dumps(sorted(snapshot_ids)), json.dumps(dict(refs))
    sending = Sending(catalogs, view.ref)
    try:
        table = sending.watched(catalogs.load(view.ref))
        reply = catalogs.expiry.expire(table, view.uuid, view.metadata_location, ids, names)
    except JavaError as error:
        refuse_foreign_log(view.ref, error)
        if is_java(error, *CONFLICT) and not is_java(error, *UNKNOWN):
            raise TableChanged from error
        if is_java(error, "IllegalStateException", "ValidationException"):
            raise CommitLost(table=view.ref, reason=java_reason(error)) from error
        if is_java(error, *REFUSED):
            if _remaining(catalogs, view, ids, names):
                raise CommitRefused(table=view.ref, reason=java_reason(error)) from error
            return  # a repeated request was rejected because the first copy had been accepted
        if not sending.sent:
            raise CommitNotSent(table=view.ref, reason=java_reason(error)) from error
        _settle(catalogs, view, ids, names, error)
        return
    answer = json.loads(reply)
    if answer.get("moved"):
        raise TableChanged
    held = [(str(name), int(snapshot_id)) for name, snapshot_id in answer["held"]]
    if held:
        raise HeldByRef(held)


def _remaining(catalogs: IcebergCatalogs, view: TableView, ids: str, names: str) -> bool:
    """Whether the table still has any of these snapshots or refs. CommitUnknown if the table cannot be read."""
    try:
        remaining: bool = catalogs.expiry.remaining(catalogs.load(view.ref), ids, names)
    except (LakewardenError, *JavaError) as error:
        raise CommitUnknown(
            table=view.ref, reason=f"the table cannot be read: {java_reason(error)}"
        ) from error
    return remaining


def _settle(catalogs: IcebergCatalogs, view: TableView, ids: str, names: str, error: BaseException) -> None:
    """The outcome was not reported: read the table. If all snapshots are gone, the commit succeeded; otherwise it stays unknown."""
    for wait in SETTLE_WAITS:
        clock.sleep(wait)
        try:
            table = catalogs.load(view.ref)
        except (LakewardenError, *JavaError):
            continue  # the catalog does not answer: the outcome stays unknown
        if not catalogs.expiry.remaining(table, ids, names):
            return
    raise CommitUnknown(table=view.ref, reason=java_reason(error)) from error
