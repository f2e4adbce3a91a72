"""Reads all metadata of a Paimon table for fsck. Always from the store: the cache cannot prove that a file is intact.

A snapshot and its changelog are two separate roots: one can be readable without the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.model.location import normal
from lakewarden.model.table import TableView
from lakewarden.tables.metadata_walk import (
    CHANGELOG,
    DATA,
    VECTOR,
    CopyKind,
    FileEntries,
    Manifests,
    MissingMetadata,
    Register,
    Rows,
    Spelling,
    UnreadableMetadata,
    WalkResult,
    WalkRoot,
    joined,
    lists_of,
    number_lists,
    plain,
)
from lakewarden.tables.metadata_walk import INDEX as INDEX_FILE
from lakewarden.tables.paimon.metadata import (
    DELETED,
    INDEX,
    MAIN,
    VECTORS,
    PaimonFiles,
    PaimonMetadata,
    PaimonReader,
    PaimonRoot,
    is_index,
    is_shared,
    newest_run,
)
from lakewarden.tables.paimon.reachability import Existing, RootLists, kept_lists, list_lengths, named_by

_KINDS = {DELETED: DATA, INDEX: INDEX_FILE, VECTORS: VECTOR}


@dataclass(frozen=True, slots=True)
class _Part:
    """A root of the survey, with its index manifests, and which of its lists are lists of changelogs."""

    root: WalkRoot
    index: tuple[str, ...] = ()
    changelog: tuple[str, ...] = ()


def survey(view: TableView, reader: PaimonReader, store: PaimonFiles, existing: Existing) -> WalkResult:
    metadata: PaimonMetadata = view.handle.metadata
    kept = kept_lists(view.handle, metadata.roots, existing)
    named = [named_by(view.handle, root, kept) for root in metadata.roots]
    parts = list(_parts(metadata, named))
    register, broken = Register(), list[UnreadableMetadata]()
    paths = list(dict.fromkeys(path for each in parts for path in each.root.lists))
    lengths = list_lengths(metadata, metadata.roots)
    numbers = number_lists(reader.lists(paths, view.io, lengths), register, broken)
    numbers |= _number_indexes(parts, register)
    lists = lists_of([part.root for part in parts], [_manifests(part, numbers) for part in parts])
    changelogs = joined([numbers[path] for each in parts for path in each.changelog if path in numbers], int)
    manifests, files = _read_manifests(register, np.unique(changelogs), broken, reader, view.io)
    whole = WalkResult(
        lists,
        manifests,
        files,
        tuple(broken),
        (),
        Spelling(manifests, files, reader, view.io).spell,
        tuple(dict.fromkeys(path for each in named for path in each.statistics)),
        tuple(_lost(metadata, store, existing)),
    )
    # Manifests still name deleted files: only files that some root needs must exist.
    return replace(whole, files=files.among(whole.live()))


def _parts(metadata: PaimonMetadata, named: Sequence[RootLists]) -> Iterator[_Part]:
    history = {root.file for root in newest_run(metadata.roots)}
    for kept, told in zip(metadata.roots, named, strict=True):
        if told.merged:
            own = kept.file in history
            kind: CopyKind = "" if own else _kind(kept)
            copy = "" if own else _label(kept)
            records = kept.content.get("totalRecordCount")
            rows = None if records is None else int(records)
            yield _Part(
                WalkRoot(kept.id, told.merged, copy, adds_up=True, records=rows, copy_kind=kind), told.index
            )
        if told.changelog or told.changes:
            kind, copy = _kind(kept), _label(kept)
            if kept.branch == MAIN and kept.kind != "tag":
                kind, copy = "changelog", f"changelog {kept.id}"
            root = WalkRoot(kept.id, (*told.changes, *told.changelog), copy, copy_kind=kind)
            yield _Part(root, changelog=told.changelog)


def _kind(kept: PaimonRoot) -> CopyKind:
    if kept.kind == "tag":
        return "tag"
    return "branch" if kept.branch != MAIN else "gap"


def _label(kept: PaimonRoot) -> str:
    if kept.kind == "tag":
        return f"tag {kept.name}" if kept.branch == MAIN else f"tag {kept.name} of branch {kept.branch}"
    return f"branch {kept.branch}" if kept.branch != MAIN else f"snapshot {kept.id} before a gap"


def _number_indexes(parts: Sequence[_Part], register: Register) -> dict[str, Any]:
    """Numbers the index manifests. Snapshots name them directly, without their length or entry count."""
    paths = list(dict.fromkeys(path for each in parts for path in each.index))
    unknown = [-1] * len(paths)
    rows = {"manifest": paths, "length": unknown, "live": unknown, "encrypted": [False] * len(paths)}
    numbers = register.number(pa.table(rows)) if paths else ()
    return {path: np.array([number], np.int32) for path, number in zip(paths, numbers, strict=True)}


def _manifests(part: _Part, numbers: Mapping[str, Any]) -> Any:
    known = [numbers[path] for path in (*part.root.lists, *part.index) if path in numbers]
    return joined(known, np.int32)


def _read_manifests(
    register: Register,
    changelogs: Any,
    broken: list[UnreadableMetadata],
    reader: PaimonReader,
    io: Mapping[str, str],
) -> tuple[Manifests, FileEntries]:
    counts = np.full(len(register.paths), -1, dtype=np.int64)
    records = np.zeros(len(register.paths), dtype=np.int64)
    rows, of_changes = Rows(_kinds), set(changelogs.tolist())
    # Without an expected count, the reader returns what it finds: a wrong count in the list does not hide the files.
    manifests = [(path, length, -1) for path, length in zip(register.paths, register.lengths, strict=True)]
    for number, (path, table, trouble) in enumerate(reader.counted(manifests, io)):
        if table is None:
            broken.append(
                UnreadableMetadata("index manifest" if is_index(path) else "manifest", path, plain(trouble))
            )
            continue
        counts[number] = table.num_rows - table["rows"].null_count
        if number in of_changes:
            table = _without_sizes_of_parts(table)
        else:
            signs = np.where(table["kind"].to_numpy() == DELETED, -1, 1)
            records[number] = (table["rows"].fill_null(0).to_numpy() * signs).sum()
        rows.add(number, table)
    files = rows.files()
    files.kinds[np.isin(files.manifests, changelogs)] = CHANGELOG
    return register.manifests(counts, records), files


def _without_sizes_of_parts(table: pa.Table) -> pa.Table:
    sizes = pc.if_else(is_shared(table["path"]), pa.scalar(None, pa.int64()), table["size"])
    return table.set_column(table.schema.get_field_index("size"), "size", sizes)


def _kinds(table: pa.Table) -> tuple[Any, Any]:
    codes = table["kind"].to_numpy()
    kinds = np.zeros(len(codes), dtype=np.int8)
    for kind, here in _KINDS.items():
        kinds[codes == kind] = here
    return kinds, np.where(codes == DELETED, -1, 1).astype(np.int8)


# ------------------------------------------------------------ the table's own files


def _lost(metadata: PaimonMetadata, store: PaimonFiles, existing: Existing) -> Iterator[MissingMetadata]:
    for branch in (MAIN, *metadata.branches):
        folder = metadata.location if branch == MAIN else f"{metadata.location}/branch/branch-{branch}"
        kept = [root for root in metadata.roots if root.branch == branch]
        yield from _lost_head(branch, f"{folder}/snapshot", kept, store, existing)
        yield from _lost_schemas(metadata, f"{folder}/schema", kept)
    yield from _gaps(metadata)


def _lost_head(
    branch: str, folder: str, kept: Sequence[PaimonRoot], store: PaimonFiles, existing: Existing
) -> Iterator[MissingMetadata]:
    """Reports a LATEST file that names a missing snapshot: readers trust it, unless the snapshot after it exists."""
    try:
        hint = int(store.read(f"{folder}/LATEST"))
    except (FileNotFoundError, ValueError):
        return  # then readers ignore the hint and list the folder
    newest = max((each.id for each in kept if each.kind == "snapshot"), default=0)
    path = f"{folder}/snapshot-{hint}"
    if hint > newest and not existing([path]):
        there = f"the newest one is {newest}" if newest else "there is none"
        what = f"{folder}/LATEST leads readers to snapshot {hint} of {branch}, which does not exist; {there}"
        yield MissingMetadata("current" if branch == MAIN else "branch", path, what)


def _lost_schemas(
    metadata: PaimonMetadata, folder: str, kept: Sequence[PaimonRoot]
) -> Iterator[MissingMetadata]:
    """Reports missing schemas. They are numbered from 0 and never deleted, because a file of any age may use any of them."""
    begin = normal(f"{folder}/schema-")
    paths = (normal(file) for file in metadata.files)
    there = {int(path.removeprefix(begin)) for path in paths if path.startswith(begin)}
    newest = max([*there, *(int(each.content.get("schemaId") or 0) for each in kept)], default=-1)
    for number in sorted(set(range(newest + 1)) - there):
        what = (
            f"schema {number} of {newest + 1} does not exist: files that were written with it cannot be read"
        )
        yield MissingMetadata("schema", f"{folder}/schema-{number}", what)


def _gaps(metadata: PaimonMetadata) -> Iterator[MissingMetadata]:
    """Reports gaps between snapshot ids. A placeholder in a cold table is not a gap: the snapshot was never handed off."""
    ids = sorted(root.id for root in metadata.roots if root.is_main_snapshot)
    known = {file.rpartition("/snapshot/snapshot-")[2] for file in metadata.files}
    for before, after in pairwise(ids):
        if any(str(number) not in known for number in range(before + 1, after)):
            missing = (
                f"snapshot {before + 1}" if after == before + 2 else f"snapshots {before + 1} to {after - 1}"
            )
            what = f"{missing} cannot be found, but older and newer ones exist: lost, or the rest of an expiry that stopped half way"
            yield MissingMetadata("gap", f"{metadata.location}/snapshot/snapshot-{before + 1}", what)
