"""Commits to Iceberg tables. A commit has one of three outcomes: committed, lost, unknown."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from lakewarden import clock
from lakewarden.errors import (
    CommitDeclined,
    CommitForbidden,
    CommitLost,
    CommitNotSent,
    CommitRefused,
    CommitUnknown,
    LakewardenError,
)
from lakewarden.model.location import Location, parent
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.view import view_of
from lakewarden.tables.interface import Rewrite
from lakewarden.tables.jvm import JavaError, is_java, java_causes, java_reason
from lakewarden.tables.places import Places

_FIRST_WAIT = 0.05
_LONGEST_WAIT = 5.0
SETTLE_WAITS = (0.0, 0.5, 2.0)

# The library itself does not know the outcome. This outranks the cause of the exception.
UNKNOWN = ("CommitStateUnknownException",)
# A conflict that the library found before the table changed: try again on the new head.
CONFLICT = ("CommitFailedException",)
# The source files were removed or got deletes.
_VALIDATION = ("ValidationException",)
# The bridge's message if a commit would build on another snapshot than the one that was checked.
_CAME_FIRST = "another commit came first"
# The catalog rejected the request before it looked at the commit. IcebergWatch reports these as the cause of `Refused`:
# they came too early to answer a request that the client repeated. (A proxy may repeat a request earlier.)
REFUSED = (
    "ForbiddenException",
    "NotAuthorizedException",
    "NoSuchTableException",
    "BadRequestException",
    "UnprocessableEntityException",
)

# The property with which the library deletes old metadata files after each commit.
_DELETES = "write.metadata.delete-after-commit.enabled"
# IcebergWatch did not send the commit, because the library would then delete a file of another table.
_FOREIGN_LOG = "ForeignLog"


class Sending:
    """Records whether a commit was sent to the catalog. Before that, nothing can have changed."""

    def __init__(self, catalogs: IcebergCatalogs, table: TableRef) -> None:
        self._catalogs, self._table = catalogs, table
        self._watches: list[Any] = []

    def watched(self, table: Any, *, keeps_files: bool = False) -> Any:
        """Wraps a loaded table for commits. `keeps_files`: for actions that delete their own files when a commit fails."""
        watch = watched(self._catalogs, self._table, table, keeps_files=keeps_files)
        self._watches.append(watch)
        return watch.table()

    @property
    def sent(self) -> bool:
        """Whether any attempt was sent. True also if the JVM cannot be asked any more."""
        try:
            return any(watch.sent() for watch in self._watches)
        except JavaError:
            return True

    @property
    def made(self) -> int | None:
        """The snapshot id of the newest attempt that the library committed."""
        snapshot_id: int = self._watches[-1].made() if self._watches else -1
        return None if snapshot_id == -1 else snapshot_id


Attempt = Callable[[Sending], bool]


def watched(catalogs: IcebergCatalogs, ref: TableRef, table: Any, *, keeps_files: bool = False) -> Any:
    """The IcebergWatch of a loaded table. Every commit of Lakewarden goes through one."""
    watching = catalogs.watching
    watch = watching.watchKeepingFiles(table) if keeps_files else watching.watch(table)
    if str(table.properties().get(_DELETES)).lower() == "true":
        metadata = json.loads(catalogs.bridge.metadata(table))
        view = view_of(ref, metadata, catalogs.bridge.metadataLocation(table))
        watch.letDeleteIn(json.dumps(_own_folders(view, catalogs.places(view))))
    return watch


def _own_folders(view: TableView, places: Places) -> list[str]:
    """The folders of the table's metadata files, spelled as in its metadata. Folders outside of the table's own places do not count."""
    own = {Location.of(folder) for folder in places.metadata_folders(view)}
    named = {parent(each) for each in (view.metadata_location, *view.metadata_log)}
    return sorted(each for each in named if Location.of(each) in own)


def refuse_foreign_log(table: TableRef, error: BaseException) -> None:
    """Raises CommitForbidden if the commit was not sent because the metadata log names a file of another table."""
    if is_java(error, _FOREIGN_LOG):
        raise CommitForbidden(table=table, reason=_foreign(error)) from error


def _foreign(error: BaseException) -> str:
    return next(message for name, message in java_causes(error) if name.endswith(_FOREIGN_LOG))


def prepare_rewrite(catalogs: IcebergCatalogs, rewrite: Rewrite) -> None:
    """Read the outputs' footers, so that a wrong output is found before a commit starts."""
    added = [
        {
            "path": f.path,
            "bytes": f.bytes,
            "partition": f.partition_id,
            "split_offsets": list(f.split_offsets),
            "sort_order_id": f.sort_order_id,
            "nan_counts": {str(id_): count for id_, count in f.nan_counts.items()},
            "copied_from": list(f.copied_from),
        }
        for f in rewrite.added
    ]
    catalogs.bridge.describeOutputs(catalogs.load(rewrite.table), rewrite.files.handle, json.dumps(added))


def commit(
    catalogs: IcebergCatalogs,
    table: TableRef,
    summary: Mapping[str, str],
    attempt: Attempt,
    attempts: int,
    adjust: Callable[[], bool] = lambda: False,
) -> int | None:
    """Run `attempt` until it commits, is finally lost, or its outcome is unknown. Returns the snapshot's id.

    `attempt` commits through a watched table and returns whether there was anything to commit; if not, the result is None.
    A failure before anything was sent is CommitNotSent, never unknown. `adjust` is called when the library finds that
    the table changed; it returns True if the next attempt can handle the change.
    """
    sending = Sending(catalogs, table)
    for number in range(attempts):
        try:
            changed = attempt(sending)
        except Exception as error:  # after any error, only the table itself shows whether the commit happened
            if is_java(error, *UNKNOWN):
                return _settle(catalogs, table, summary, error)
            if is_java(error, _FOREIGN_LOG):
                return _lost(catalogs, table, summary, _foreign(error), sending, CommitForbidden)
            if is_java(error, *CONFLICT) or _CAME_FIRST in java_reason(error):
                clock.sleep(backoff(number))
                continue
            if is_java(error, *_VALIDATION):
                try:
                    if adjust():
                        continue
                except (
                    Exception
                ) as failure:  # before another attempt, the table is read to learn how this one ended
                    return _lost(catalogs, table, summary, _reason(failure), sending)
            if is_java(error, *REFUSED):
                kind = CommitDeclined if sending.sent else CommitRefused
                return _lost(catalogs, table, summary, java_reason(error), sending, kind)
            if is_java(error, *_VALIDATION):
                return _lost(catalogs, table, summary, java_reason(error), sending)
            if not sending.sent:
                raise CommitNotSent(table=table, reason=_reason(error)) from error
            return _settle(catalogs, table, summary, error)
        return _committed(catalogs, table, summary, sending) if changed else None
    return _lost(catalogs, table, summary, f"other writers committed first {attempts} times", sending)


def find_commit(catalogs: IcebergCatalogs, table: TableRef, summary: Mapping[str, str]) -> int | None:
    keys = {key: summary[key] for key in ("lineage.run_id", "lineage.group")}
    snapshot_id: int = catalogs.bridge.findSnapshot(catalogs.load(table), json.dumps(keys))
    return None if snapshot_id == -1 else snapshot_id


def backoff(number: int) -> float:
    """Seconds to wait: exponential from 50 ms, with jitter, so that two workers do not collide again."""
    return min(_FIRST_WAIT * float(2**number), _LONGEST_WAIT) * random.uniform(0.5, 1.5)


def _ask(catalogs: IcebergCatalogs, table: TableRef, summary: Mapping[str, str]) -> int | None:
    """The snapshot of this commit in the table, None if there is none. CommitUnknown if the table cannot be read."""
    try:
        return find_commit(catalogs, table, summary)
    except (LakewardenError, *JavaError) as error:
        raise CommitUnknown(table=table, reason=f"the table cannot be read: {java_reason(error)}") from error


def _committed(
    catalogs: IcebergCatalogs, table: TableRef, summary: Mapping[str, str], sending: Sending
) -> int:
    """The snapshot id from the table; if another tool expired the snapshot already, the id from the library."""
    snapshot_id = _ask(catalogs, table, summary)
    if snapshot_id is None:
        snapshot_id = sending.made
    if snapshot_id is None:
        raise CommitUnknown(table=table, reason="it succeeded, but the table does not show the snapshot")
    return snapshot_id


def _reason(error: Exception) -> str:
    return str(error.parts.get("reason", error)) if isinstance(error, LakewardenError) else java_reason(error)


def _lost(
    catalogs: IcebergCatalogs,
    table: TableRef,
    summary: Mapping[str, str],
    reason: str,
    sending: Sending,
    kind: type[CommitLost] = CommitLost,
) -> int:
    """Lost only if the table does not have the commit: after an attempt that committed unnoticed, the next one fails this way."""
    snapshot_id = _ask(catalogs, table, summary) if sending.sent else None
    if snapshot_id is None:
        raise kind(table=table, reason=reason)
    return snapshot_id


def _settle(
    catalogs: IcebergCatalogs, table: TableRef, summary: Mapping[str, str], error: BaseException
) -> int:
    """The outcome was not reported: look for the run id in the table, a few times, because a slow catalog may still commit.

    If it is not found, that proves nothing: the outputs stay until a later run knows the outcome.
    """
    for wait in SETTLE_WAITS:
        clock.sleep(wait)
        try:
            snapshot_id = find_commit(catalogs, table, summary)
        except (LakewardenError, *JavaError):
            continue  # the catalog does not answer: the outcome stays unknown
        if snapshot_id is not None:
            return snapshot_id
    raise CommitUnknown(table=table, reason=java_reason(error)) from error
