"""Adopts files of other tools into a Paimon table: checks their footers, then appends them in one snapshot.

Only append tables without buckets accept files as they are. If a file is not in the folder where Paimon expects it, its
manifest entry contains the full path. Such a file is read, kept and expired like any other.

A file can be added only once. For Paimon, a file with a delete entry in any manifest is deleted, and Paimon's expiry
deletes removed files without checking whether they were added again. So a file that any manifest still names, live or
not, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from lakewarden.errors import CommitLost, Refused
from lakewarden.model.location import hashes, same
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.errors import not_adopted
from lakewarden.tables.interface import Adoption
from lakewarden.tables.jvm import JavaError
from lakewarden.tables.paimon.arrow_schema import left_alone, special_column
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit import Find, HeldLock, commit, new_identifier
from lakewarden.tables.paimon.errors import catalog_error
from lakewarden.tables.paimon.reachability import PaimonReachability
from lakewarden.tables.reachability import contains


def check_adoption(
    catalogs: PaimonCatalogs, view: TableView, reach: PaimonReachability, paths: Sequence[str]
) -> Adoption:
    _refuse_table(view)
    live = live_among(view, reach, paths)
    if live:
        raise not_adopted(view.ref, live[0], "it is part of the table already", len(live) - 1)
    before = _ever_named(reach, paths)
    if before:
        reason = "it was part of the table before, and Paimon treats it as deleted"
        raise not_adopted(view.ref, before[0], f"{reason}: give it another name", len(before) - 1)
    loaded = catalogs.load(view.ref)
    try:
        candidates = catalogs.adoption.candidates(loaded, json.dumps(list(paths)))
        described = json.loads(candidates.told())
        namesakes = json.loads(catalogs.adoption.namesakes(loaded, candidates))
    except JavaError as error:
        raise catalog_error(error, f"the files to adopt into {view.ref}") from error
    if described["unfit"]:
        first, *others = described["unfit"]
        raise not_adopted(view.ref, first["path"], first["reason"], len(others))
    if namesakes:
        reason = (
            "another file of its partition has the same name, and deletion vectors refer to files by name"
        )
        raise not_adopted(view.ref, namesakes[0], reason, len(namesakes) - 1)
    files = described["files"]
    return Adoption(
        tuple(paths),
        sum(file["rows"] for file in files),
        sum(file["bytes"] for file in files),
        tuple(sorted({file["partition"] for file in files})),
        (candidates, [file["path"] for file in files if not same(file["path"], file["place"])]),
    )


def commit_adoption(
    catalogs: PaimonCatalogs,
    table: TableRef,
    adoption: Adoption,
    summary: Mapping[str, str],
    reach: Callable[[], PaimonReachability],
    find: Find,
    lock: AbstractContextManager[HeldLock],
) -> int:
    """Commits under the lock. Checks again that no file was added since the first check; the library checks once more."""
    candidates, outside = adoption.handle
    identifier, properties = new_identifier(), json.dumps(dict(summary))

    def attempt() -> int:
        taken = _ever_named(reach(), adoption.paths)
        with catalogs.committing(table) as loaded:
            taken = taken or json.loads(catalogs.adoption.namesakes(loaded, candidates))
            if taken:
                raise CommitLost(table=table, reason=f"another commit added {taken[0]} first")
            messages = catalogs.adoption.messages(loaded, candidates, json.dumps(outside))
            return int(catalogs.commit.commit(loaded, messages, properties, identifier))

    return commit(table, summary, attempt, find, lock)


def live_among(view: TableView, reach: PaimonReachability, paths: Sequence[str]) -> list[str]:
    """The paths that the current snapshot needs, in any spelling."""
    if view.current_snapshot_id is None:
        return []
    return _among(paths, reach.reached([view.current_snapshot_id]).numbers)


def _ever_named(reach: PaimonReachability, paths: Sequence[str]) -> list[str]:
    return _among(paths, reach.named_at_all(np.unique(hashes(list(paths)))))


def _among(paths: Sequence[str], numbers: Any) -> list[str]:
    contained = contains(numbers, hashes(list(paths)))
    return [path for path, known in zip(paths, contained.tolist(), strict=True) if known]


def _refuse_table(view: TableView) -> None:
    if view.keyed:
        reason = "its rows have primary keys, and only a Paimon writer can choose the bucket and the order of a row"
    elif int(view.properties.get("bucket", "-1")) != -1:
        reason = f"it has {view.properties['bucket']} buckets, and only a Paimon writer can choose the bucket of a row"
    elif left := left_alone(view):
        reason = left
    elif special := special_column(view):
        reason = f"the schema has a {special} column, which other tools store differently than Paimon"
    else:
        return
    raise Refused(
        action="adopt files into",
        target=view.ref,
        reason=reason,
        hint=f"nothing was changed; let Paimon write the rows: `INSERT INTO {view.ref.short} SELECT … FROM parquet.`…``",
    )


class PaimonLoads:
    """Implements LoadSupport for Paimon."""

    def __init__(
        self,
        catalogs: PaimonCatalogs,
        view: Callable[[TableRef], TableView],
        reach: Callable[[TableView], PaimonReachability],
        find: Callable[[TableRef, Mapping[str, str]], int | None],
    ) -> None:
        self._catalogs, self._view, self._reach, self._find = catalogs, view, reach, find

    def check_adoption(self, table: TableRef, paths: Sequence[str]) -> Adoption:
        view = self._view(table)
        return check_adoption(self._catalogs, view, self._reach(view), paths)

    def find_adoption(self, table: TableRef, load_id: str) -> int | None:
        return self._find(table, {"lineage.load": load_id})

    def live_among(self, table: TableRef, paths: Sequence[str]) -> list[str]:
        view = self._view(table)
        return live_among(view, self._reach(view), paths)
