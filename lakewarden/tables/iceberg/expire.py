"""Removes snapshots and refs from the metadata of an Iceberg table. No data, delete or manifest file is deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitNotSent, CommitRefused, CommitUnknown, LakewardenError
from lakewarden.model.table import TableView
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.commit import (
    CONFLICT,
    REFUSED,
    SETTLE_WAITS,
    UNKNOWN,
    Sending,
    refuse_foreign_log,
)
from lakewarden.tables.interface import HeldByRef, TableChanged
from lakewarden.tables.jvm import JavaError, is_java, java_reason


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
