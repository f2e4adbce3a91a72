"""Lists the manifests of a Paimon snapshot, and merges many manifests into few."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager

from lakewarden.model.files import Manifest
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.jvm import JavaError
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit import Find, commit, new_identifier
from lakewarden.tables.paimon.commit_lock import HeldLock
from lakewarden.tables.paimon.errors import catalog_error

_ONE_SPEC = 0
_CONTENT = "data"


def manifests(catalogs: PaimonCatalogs, view: TableView, snapshot_id: int) -> list[Manifest]:
    """The manifests of data files. A Paimon manifest has both added and deleted files."""
    helper = catalogs.helper("PaimonManifests")
    try:
        rows = json.loads(helper.manifests(catalogs.load(view.ref), snapshot_id))
    except JavaError as error:
        raise catalog_error(error, f"the manifests of {view.ref}") from error
    folder = view.handle.metadata
    return [Manifest(folder.manifest(name), size, _ONE_SPEC, _CONTENT) for name, size in rows]


def fold(
    catalogs: PaimonCatalogs,
    table: TableRef,
    target_bytes: int,
    summary: Mapping[str, str],
    find: Find,
    lock: AbstractContextManager[HeldLock],
) -> int:
    """Merges all manifests in one snapshot that changes no files. Entries that cancel each other out are removed."""
    options = catalogs.helper("PaimonManifests").folding(target_bytes)

    def attempt() -> int:
        properties = json.dumps(dict(summary))
        with catalogs.committing(table) as loaded:
            return int(catalogs.commit.commit(loaded, [], properties, new_identifier(), options, None))

    return commit(table, summary, attempt, find, lock)
