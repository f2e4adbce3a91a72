"""Lists and drops partitions of a Paimon table. Dropping marks their files as deleted, in one commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from lakewarden import clock
from lakewarden.errors import CommitLost
from lakewarden.model.files import KeyKind, LivePartition, PartitionKey
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.interface import Dropped, PartitionSet
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit import Find, HeldLock, commit, new_identifier
from lakewarden.tables.paimon.errors import catalog_error
from lakewarden.tables.partition_filter import matching

_KINDS = {
    "DATE": KeyKind.DAY,
    "TIMESTAMP_WITHOUT_TIME_ZONE": KeyKind.MOMENT,
    "TIMESTAMP_WITH_LOCAL_TIME_ZONE": KeyKind.MOMENT,
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"), KeyKind.NUMBER),
}


def read_partitions(catalogs: PaimonCatalogs, view: TableView, where: str | None) -> PartitionSet:
    """All partitions with live files in the current snapshot, with sums from the library."""
    head = view.current_snapshot_id
    if head is None:
        return PartitionSet(None, (), frozenset() if where else None)
    try:
        scan = _helper(catalogs).read(catalogs.load(view.ref), head)
    except JavaError as error:
        raise catalog_error(error, f"the metadata of {view.ref}") from error
    described = json.loads(scan.described())
    partitions = tuple(
        _live(place, row, described["columns"]) for place, row in enumerate(described["partitions"])
    )
    chosen = matching(catalogs.spark, partitions, where) if where else None
    return PartitionSet(head, partitions, chosen, scan)


def _live(place: int, row: Mapping[str, Any], columns: Sequence[tuple[str, str]]) -> LivePartition:
    return LivePartition(
        id=place,
        spec_id=0,
        path=row["path"].rstrip("/"),
        keys=tuple(
            PartitionKey(name, name, _KINDS.get(type_, KeyKind.TEXT), value)
            for (name, type_), value in zip(columns, row["values"], strict=True)
        ),
        files=row["files"],
        rows=row["rows"],
        bytes=row["bytes"],
        changed_at=clock.from_millis(row["changed"]),
    )


def drop_partitions(
    catalogs: PaimonCatalogs,
    table: TableRef,
    found: PartitionSet,
    ids: Sequence[int],
    summary: Mapping[str, str],
    find: Find,
    lock: AbstractContextManager[HeldLock],
) -> Dropped:
    """Commits one OVERWRITE snapshot that removes exactly the files in `found`. CommitLost if one of them is already gone."""
    own = _helper(catalogs)
    try:
        planned = own.plan(catalogs.load(table), found.handle, json.dumps(list(ids)))
    except JavaError as error:  # no commit was started; for example another tool expired the planned snapshot
        raise CommitLost(table=table, reason=java_reason(error)) from error
    identifier, properties = new_identifier(), json.dumps(dict(summary))

    def attempt() -> int:
        with catalogs.committing(table) as fresh:
            check = own.check(fresh, planned)
            return int(catalogs.commit.commit(fresh, planned.messages(), properties, identifier, {}, check))

    snapshot_id = commit(table, summary, attempt, find, lock)
    return Dropped(snapshot_id, int(planned.files()), int(planned.rows()), int(planned.bytes()))


def _helper(catalogs: PaimonCatalogs) -> Any:
    return catalogs.helper("PaimonPartitions")
