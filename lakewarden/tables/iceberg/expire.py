"""Dropping snapshots and refs from an Iceberg table's metadata. No file is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitNotSent, CommitRefused, CommitUnknown, LakewardenError
from lakewarden.model.table import TableView
from lakewarden.tables.iceberg.catalog import Catalogs
from lakewarden.tables.iceberg.commit import (
    CONFLICT,
    REFUSED,
    SETTLE_WAITS,
    UNKNOWN,
    Sending,
    refuse_foreign_log,
)
from lakewarden.tables.interface import HeldByRef, MovedOn
from lakewarden.tables.jvm import JavaError, is_java, java_reason


def expire(catalogs: Catalogs, view: TableView, snapshot_ids: Sequence[int], refs: Mapping[str, int]) -> None:
    """One commit on top of exactly the view that was judged; MovedOn where others came first. HeldByRef: a ref names one of them now."""
    ids, names = json.dumps(sorted(snapshot_ids)), json.dumps(dict(refs))
    sending = Sending(catalogs, view.ref)
    try:
        table = sending.watched(catalogs.load(view.ref))
        told = catalogs.expiry.expire(table, view.uuid, view.metadata_location, ids, names)
    except JavaError as error:
        refuse_foreign_log(view.ref, error)
        if is_java(error, *CONFLICT) and not is_java(error, *UNKNOWN):
            raise MovedOn from error
        if is_java(error, "IllegalStateException", "ValidationException"):
            raise CommitLost(table=view.ref, reason=java_reason(error)) from error
        if is_java(error, *REFUSED):
            if _remaining(catalogs, view, ids, names):
                raise CommitRefused(table=view.ref, reason=java_reason(error)) from error
            return  # the refusal was the answer to a repeated request: the first copy was taken
        if not sending.sent:
            raise CommitNotSent(table=view.ref, reason=java_reason(error)) from error
        _settle(catalogs, view, ids, names, error)
        return
    answer = json.loads(told)
    if answer.get("moved"):
        raise MovedOn
    held = [(str(name), int(snapshot_id)) for name, snapshot_id in answer["held"]]
    if held:
        raise HeldByRef(held)


def _remaining(catalogs: Catalogs, view: TableView, ids: str, names: str) -> bool:
    """Whether the table still has any of these snapshots or refs; CommitUnknown when the table cannot be read."""
    try:
        found: bool = catalogs.expiry.remaining(catalogs.load(view.ref), ids, names)
    except (LakewardenError, *JavaError) as error:
        raise CommitUnknown(
            table=view.ref, reason=f"the table cannot be read: {java_reason(error)}"
        ) from error
    return found


def _settle(catalogs: Catalogs, view: TableView, ids: str, names: str, error: BaseException) -> None:
    """The outcome was not told: the table is asked. Snapshots that are all gone went; that they are there proves nothing."""
    for wait in SETTLE_WAITS:
        clock.sleep(wait)
        try:
            table = catalogs.load(view.ref)
        except (LakewardenError, *JavaError):
            continue  # the catalog does not answer: as unknown as before
        if not catalogs.expiry.remaining(table, ids, names):
            return
    raise CommitUnknown(table=view.ref, reason=java_reason(error)) from error
