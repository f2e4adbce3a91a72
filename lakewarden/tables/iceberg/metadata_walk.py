"""Reads all metadata of an Iceberg table for fsck. Always from the store: the cache cannot prove that a file is intact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.model.table import TableView
from lakewarden.tables.metadata_cache import MetadataReader
from lakewarden.tables.metadata_walk import (
    VECTOR,
    FileEntries,
    Manifests,
    Register,
    Rows,
    Spelling,
    UnreadableMetadata,
    WalkResult,
    WalkRoot,
    lists_of,
    number_lists,
    plain,
)

# Decoded as position deletes; a deletion vector is a part of a Puffin file.
_POSITION_DELETES = 1


def survey(view: TableView, reader: MetadataReader, io: Mapping[str, str]) -> WalkResult:
    snapshots = [snapshot for snapshot in view.snapshots if snapshot.manifest_list]
    register = Register()
    broken: list[UnreadableMetadata] = []
    named = number_lists(
        reader.lists([snapshot.manifest_list for snapshot in snapshots], io, {}), register, broken
    )
    roots = [WalkRoot(snapshot.id, (snapshot.manifest_list,)) for snapshot in snapshots]
    nothing = np.empty(0, dtype=np.int32)
    lists = lists_of(roots, [named.get(snapshot.manifest_list, nothing) for snapshot in snapshots])
    manifests, files = _read_manifests(register, broken, reader, io)
    return WalkResult(
        lists,
        manifests,
        files,
        tuple(broken),
        tuple(_unread(len(view.snapshots) - len(snapshots), int(sum(register.encrypted)))),
        Spelling(manifests, files, reader, io).spell,
    )


def _read_manifests(
    register: Register, broken: list[UnreadableMetadata], reader: MetadataReader, io: Mapping[str, str]
) -> tuple[Manifests, FileEntries]:
    paths = register.paths
    counts = np.full(len(paths), -1, dtype=np.int64)
    chosen = [number for number in range(len(paths)) if not register.encrypted[number]]
    # Without an expected count, the reader returns what it finds: a wrong count in the list does not hide the files.
    files = [(paths[each], register.lengths[each], -1) for each in chosen]
    rows = Rows(_kinds)
    for number, (path, table, trouble) in zip(chosen, reader.manifests(files, io), strict=True):
        if table is None:
            broken.append(UnreadableMetadata("manifest", path, plain(trouble)))
            continue
        counts[number] = table.num_rows
        rows.add(number, table)
    return register.manifests(counts), rows.files()


def _kinds(table: pa.Table) -> tuple[Any, Any]:
    """The kind and the sign of each entry. The sign is always 1: only live entries were read."""
    kinds = table["kind"].to_numpy().copy()
    puffin = pc.ends_with(table["path"], ".puffin").to_numpy()
    kinds[(kinds == _POSITION_DELETES) & puffin] = VECTOR
    return kinds, np.ones(table.num_rows, dtype=np.int8)


def _unread(embedded: int, encrypted: int) -> Iterator[str]:
    if embedded:
        yield f"{embedded:,} snapshots that name their manifests in the table's metadata, as the first format version could"
    if encrypted:
        yield f"{encrypted:,} encrypted manifests"
