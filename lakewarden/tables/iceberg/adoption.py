"""Adopts files of other tools into an Iceberg table: checks their footers, then appends them in one snapshot.

No file is added twice. Each attempt checks that none of the files is live at the head, and commits only on top of that
same head. If another process appends first (even one that was believed dead), the check is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lakewarden.errors import CommitLost
from lakewarden.model.location import normal
from lakewarden.model.table import TableRef
from lakewarden.tables.errors import not_adopted
from lakewarden.tables.iceberg.catalog import IcebergCatalogs, catalog_error
from lakewarden.tables.iceberg.commit import Sending, commit, find_commit
from lakewarden.tables.interface import Adoption
from lakewarden.tables.jvm import JavaError

_ATTEMPTS = 16


def check_adoption(catalogs: IcebergCatalogs, table: TableRef, paths: Sequence[str]) -> Adoption:
    loaded = catalogs.load(table)
    candidates = catalogs.adoption.candidates(json.dumps(list(paths)))
    live = _live(catalogs, loaded, table, candidates, paths)
    if live:
        raise not_adopted(table, live[0], "it is part of the table already", len(live) - 1)
    try:
        described = json.loads(catalogs.adoption.describe(loaded, candidates))
    except JavaError as error:
        raise catalog_error(error, f"the files to adopt into {table}") from error
    if described["unfit"]:
        first, *others = described["unfit"]
        raise not_adopted(table, first["path"], first["reason"], len(others))
    return Adoption(
        tuple(paths), described["rows"], described["bytes"], tuple(described["partitions"]), candidates
    )


def commit_adoption(
    catalogs: IcebergCatalogs, table: TableRef, adoption: Adoption, summary: Mapping[str, str]
) -> int:
    live: list[str] = []

    def attempt(sending: Sending) -> bool:
        loaded = catalogs.load(table)
        live.extend(_live(catalogs, loaded, table, adoption.handle, adoption.paths))
        if live:
            return False
        head = loaded.currentSnapshot()
        parent = -1 if head is None else head.snapshotId()
        catalogs.adoption.append(sending.watched(loaded), adoption.handle, parent, json.dumps(dict(summary)))
        return True

    snapshot_id = commit(catalogs, table, summary, attempt, _ATTEMPTS)
    if snapshot_id is None:
        # An attempt that was reported as failed may have committed them.
        snapshot_id = find_commit(catalogs, table, summary)
    if snapshot_id is None:
        raise CommitLost(table=table, reason=f"another commit added {live[0]} first")
    return snapshot_id


def find_adoption(catalogs: IcebergCatalogs, table: TableRef, load_id: str) -> int | None:
    snapshot_id: int = catalogs.bridge.findSnapshot(
        catalogs.load(table), json.dumps({"lineage.load": load_id})
    )
    return None if snapshot_id == -1 else snapshot_id


def live_among(catalogs: IcebergCatalogs, table: TableRef, paths: Sequence[str]) -> list[str]:
    candidates = catalogs.adoption.candidates(json.dumps(list(paths)))
    return _live(catalogs, catalogs.load(table), table, candidates, paths)


def _live(
    catalogs: IcebergCatalogs, loaded: Any, table: TableRef, candidates: Any, paths: Sequence[str]
) -> list[str]:
    """The paths that are live in the current snapshot, in any spelling. Only manifests not searched before are read."""
    try:
        namesakes = json.loads(catalogs.adoption.namesakes(loaded, candidates))
    except JavaError as error:
        raise catalog_error(error, f"the metadata of {table}") from error
    named = {normal(namesake) for namesake in namesakes}
    return [path for path in paths if normal(path) in named]


class IcebergLoads:
    """Implements LoadSupport for Iceberg."""

    def __init__(self, catalogs: IcebergCatalogs) -> None:
        self._catalogs = catalogs

    def check_adoption(self, table: TableRef, paths: Sequence[str]) -> Adoption:
        return check_adoption(self._catalogs, table, paths)

    def find_adoption(self, table: TableRef, load_id: str) -> int | None:
        return find_adoption(self._catalogs, table, load_id)

    def live_among(self, table: TableRef, paths: Sequence[str]) -> list[str]:
        return live_among(self._catalogs, table, paths)
