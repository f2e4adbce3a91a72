"""Commits to Iceberg tables, and the three ways one can end: committed, lost, unknown."""

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
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.iceberg.catalog import Catalogs
from lakewarden.tables.iceberg.view import view_of
from lakewarden.tables.interface import Rewrite
from lakewarden.tables.jvm import JavaError, is_java, java_causes, java_reason
from lakewarden.tables.places import Places

_FIRST_WAIT = 0.05
_LONGEST_WAIT = 5.0
SETTLE_WAITS = (0.0, 0.5, 2.0)

# The library itself does not know; whatever caused it, this word wins.
UNKNOWN = ("CommitStateUnknownException",)
# A conflict the library found before it moved the pointer: worth another try on the new head.
CONFLICT = ("CommitFailedException",)
# The sources are gone or got deletes.
_VALIDATION = ("ValidationException",)
# What the bridge's own check says when a commit did not build on the snapshot it was judged on.
_CAME_FIRST = "another commit came first"
# The catalog refused before it looked at the commit. Of errors heard through IcebergWatch, these are the cause of its
# `Refused`: they came too soon to be the answer to a request that the client repeated. A proxy repeats sooner.
REFUSED = (
    "ForbiddenException",
    "NotAuthorizedException",
    "NoSuchTableException",
    "BadRequestException",
    "UnprocessableEntityException",
)

# With it, the library deletes what falls off a table's metadata log after each commit.
_DELETES = "write.metadata.delete-after-commit.enabled"
# The watch did not send a commit after which the library would delete a file that is not the table's.
_FOREIGN_LOG = "ForeignLog"


class Sending:
    """Knows whether a commit left for the catalog: before that, nothing can have changed."""

    def __init__(self, catalogs: Catalogs, table: TableRef) -> None:
        self._catalogs, self._table = catalogs, table
        self._watches: list[Any] = []

    def watched(self, table: Any, *, keeps_files: bool = False) -> Any:
        """The loaded table, to be committed through. `keeps_files` for actions that erase what they wrote when a commit fails."""
        watch = watched(self._catalogs, self._table, table, keeps_files=keeps_files)
        self._watches.append(watch)
        return watch.table()

    @property
    def sent(self) -> bool:
        """Whether any attempt was sent; also where the JVM cannot tell any more."""
        try:
            return any(each.sent() for each in self._watches)
        except JavaError:
            return True

    @property
    def made(self) -> int | None:
        """The snapshot of the newest attempt, as the library committed it."""
        found: int = self._watches[-1].made() if self._watches else -1
        return None if found == -1 else found


Attempt = Callable[[Sending], bool]


def watched(catalogs: Catalogs, ref: TableRef, table: Any, *, keeps_files: bool = False) -> Any:
    """The watch over a loaded table's commits. Every commit of ours goes through one."""
    watching = catalogs.watching
    watch = watching.watchKeepingFiles(table) if keeps_files else watching.watch(table)
    if str(table.properties().get(_DELETES)).lower() == "true":
        metadata = json.loads(catalogs.bridge.metadata(table))
        view = view_of(ref, metadata, catalogs.bridge.metadataLocation(table))
        watch.letDeleteIn(json.dumps(_own_folders(view, catalogs.places(view))))
    return watch


def _own_folders(view: TableView, places: Places) -> list[str]:
    """Where the table's metadata files lie, spelled as its metadata does. What its writers say counts only inside its own places."""
    own = {Location.of(each) for each in places.metadata_folders(view)}
    named = {parent(each) for each in (view.metadata_location, *view.metadata_log)}
    return sorted(each for each in named if Location.of(each) in own)


def refuse_foreign_log(table: TableRef, error: BaseException) -> None:
    """CommitForbidden where the watch did not send the commit because of what the table's metadata log names."""
    if is_java(error, _FOREIGN_LOG):
        raise CommitForbidden(table=table, reason=_foreign(error)) from error


def _foreign(error: BaseException) -> str:
    return next(message for name, message in java_causes(error) if name.endswith(_FOREIGN_LOG))


def prepare_rewrite(catalogs: Catalogs, rewrite: Rewrite) -> None:
    """Read the outputs' footers. What is wrong with an output shows here, before any commit is begun."""
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
    catalogs: Catalogs,
    table: TableRef,
    summary: Mapping[str, str],
    attempt: Attempt,
    attempts: int,
    adjust: Callable[[], bool] = lambda: False,
) -> int | None:
    """Run `attempt` until it commits, is lost for good, or its outcome cannot be known; the snapshot's id.

    `attempt` commits through a watched table and tells whether there was anything to commit; None if not. What fails before
    anything was sent is CommitNotSent, never unknown. `adjust` is asked when the library finds that the
    table changed under the commit: True when the next attempt takes the change into account.
    """
    sending = Sending(catalogs, table)
    for number in range(attempts):
        try:
            changed = attempt(sending)
        except (
            Exception
        ) as error:  # whatever went wrong, only the table can say whether it was before or after
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
                ) as failure:  # before any further attempt: the table says how the last one ended
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


def find_commit(catalogs: Catalogs, table: TableRef, summary: Mapping[str, str]) -> int | None:
    wanted = {key: summary[key] for key in ("lineage.run_id", "lineage.group")}
    found: int = catalogs.bridge.findSnapshot(catalogs.load(table), json.dumps(wanted))
    return None if found == -1 else found


def backoff(number: int) -> float:
    """Exponential from 50 ms, with jitter, so that workers which collided once do not collide again."""
    return min(_FIRST_WAIT * float(2**number), _LONGEST_WAIT) * random.uniform(0.5, 1.5)


def _ask(catalogs: Catalogs, table: TableRef, summary: Mapping[str, str]) -> int | None:
    """What the table says about this commit, or CommitUnknown when it cannot be asked."""
    try:
        return find_commit(catalogs, table, summary)
    except (LakewardenError, *JavaError) as error:
        raise CommitUnknown(table=table, reason=f"the table cannot be asked: {java_reason(error)}") from error


def _committed(catalogs: Catalogs, table: TableRef, summary: Mapping[str, str], sending: Sending) -> int:
    """As the table shows it; or, where others expired it right after, as the library made it."""
    found = _ask(catalogs, table, summary)
    if found is None:
        found = sending.made
    if found is None:
        raise CommitUnknown(table=table, reason="it succeeded, but the table does not show the snapshot")
    return found


def _reason(error: Exception) -> str:
    return str(error.parts.get("reason", error)) if isinstance(error, LakewardenError) else java_reason(error)


def _lost(
    catalogs: Catalogs,
    table: TableRef,
    summary: Mapping[str, str],
    reason: str,
    sending: Sending,
    kind: type[CommitLost] = CommitLost,
) -> int:
    """Lost only if the table agrees: an attempt that committed and was told otherwise makes the next one fail like this."""
    found = _ask(catalogs, table, summary) if sending.sent else None
    if found is None:
        raise kind(table=table, reason=reason)
    return found


def _settle(catalogs: Catalogs, table: TableRef, summary: Mapping[str, str], error: BaseException) -> int:
    """The outcome was not told. The table itself is asked, by run id, a few times: a slow catalog may still be at it.

    Not finding it proves nothing: the outputs stay until a later run can tell.
    """
    for wait in SETTLE_WAITS:
        clock.sleep(wait)
        try:
            found = find_commit(catalogs, table, summary)
        except (LakewardenError, *JavaError):
            continue  # the catalog does not answer: as unknown as before
        if found is not None:
            return found
    raise CommitUnknown(table=table, reason=java_reason(error)) from error
