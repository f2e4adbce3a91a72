"""Commits to Iceberg tables, and the three ways one can end: committed, lost, unknown."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping

from lakewarden import clock
from lakewarden.errors import CommitLost, CommitRefused, CommitUnknown, LakewardenError
from lakewarden.formats.iceberg.catalog import Catalogs
from lakewarden.formats.jvm import JavaError, is_java, java_reason
from lakewarden.formats.seam import Rewrite
from lakewarden.model import TableRef

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
# The catalog refused before it looked at the commit.
REFUSED = ("ForbiddenException", "NotAuthorizedException", "NoSuchTableException")
_LOST = (*_VALIDATION, "UnprocessableEntityException")


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
    attempt: Callable[[], bool],
    attempts: int,
    adjust: Callable[[], bool] = lambda: False,
) -> int | None:
    """Run `attempt` until it commits, is lost for good, or its outcome cannot be known; the snapshot's id.

    `attempt` tells whether there was anything to commit; None if not. `adjust` is asked when the library finds that the
    table changed under the commit: True when the next attempt takes the change into account.
    """
    for number in range(attempts):
        try:
            changed = attempt()
        except (
            Exception
        ) as error:  # whatever went wrong, only the table can say whether it was before or after
            if is_java(error, *UNKNOWN):
                return _settle(catalogs, table, summary, error)
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
                    return _lost(catalogs, table, summary, _reason(failure))
            if is_java(error, *REFUSED):
                return _lost(catalogs, table, summary, java_reason(error), CommitRefused)
            if is_java(error, *_LOST):
                return _lost(catalogs, table, summary, java_reason(error))
            return _settle(catalogs, table, summary, error)
        return _committed(catalogs, table, summary) if changed else None
    return _lost(catalogs, table, summary, f"other writers committed first {attempts} times")


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


def _committed(catalogs: Catalogs, table: TableRef, summary: Mapping[str, str]) -> int:
    found = _ask(catalogs, table, summary)
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
    kind: type[CommitLost] = CommitLost,
) -> int:
    """Lost only if the table agrees: an attempt that committed and was told otherwise makes the next one fail like this."""
    found = _ask(catalogs, table, summary)
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
