"""Reads the metadata files of a Paimon table: snapshots, tags, branches, changelogs, consumers and schemas.

Each is a small JSON file, and the set of these files is the table's state. They are not read through the library, because
its classes skip missing files. Nothing may be skipped here: files of an overlooked root would be deleted.

`PaimonReader` decodes manifest lists and manifests in bulk, with the full path of every file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, islice
from typing import Any, Literal, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import LakewardenError
from lakewarden.model.location import is_local
from lakewarden.model.table import COLD_SOURCE_UUID, TableView
from lakewarden.tables.interface import InvalidMetadata

log = logging.getLogger(__name__)

MAIN = "main"
FOLDERS = ("snapshot", "changelog", "tag", "consumer", "schema", "branch")

# In a cold table, a placeholder replaces a snapshot that was never handed off. Its properties say so. It names no files:
# this text is in the place of the manifest lists.
GAP = "cold-tier.gap"
NOTHING = "expired-before-it-was-handed-off"
_FURTHER = ("changelogManifestList", "indexManifest", "statistics")

# Names of branches, tags and consumers may contain slashes; snapshots, changelogs and schemas have numbers.
_PLACE = re.compile(
    r"^(?:branch/branch-(?P<branch>.+?)/)?"
    r"(?:(?P<folder>snapshot|changelog|schema)/(?P=folder)-(?P<number>\d+)"
    r"|(?P<named>tag|consumer)/(?P=named)-(?P<name>.+))$"
)
# Other files in these folders, which keep no files alive: hints, half-written files. Not if it may be a tag with such a name.
_HARMLESS = re.compile(
    r"^(?:branch/branch-(?:(?!/tag/tag-).)+?/)?"
    r"(?:(?:snapshot|changelog|tag|consumer|schema)/(?:EARLIEST|LATEST|[._][^/]*)"
    r"|(?:snapshot|changelog|schema)/[^/]*\.tmp)$"
)
# If other tools expire, tag or commit during the reading, everything is listed again, at most this often.
_ATTEMPTS = 5
_THREADS = 16

_Answer = TypeVar("_Answer")

# Cached rows of a manifest. Kinds: 0 added, 1 deleted, 2 index file, 3 file of deletion vectors.
NAMED = pa.schema([("path", pa.string()), ("size", pa.int64()), ("kind", pa.int8())])
ADDED, DELETED, INDEX, VECTORS = 0, 1, 2, 3

What = Literal["paimon-list", "paimon-manifest", "paimon-index"]


@dataclass(frozen=True, slots=True)
class PaimonRoot:
    """A root that keeps files: a snapshot, the copy of a snapshot in a tag, or a changelog that outlived its snapshot."""

    kind: str  # snapshot, tag or changelog
    branch: str
    name: str
    file: str
    content: Mapping[str, Any]
    written_at: datetime | None = None

    @property
    def id(self) -> int:
        return int(self.content["id"])

    @property
    def is_main_snapshot(self) -> bool:
        return self.kind == "snapshot" and self.branch == MAIN

    @property
    def rows(self) -> int | None:
        """The row count that the writer recorded, including deleted rows."""
        count = self.content.get("totalRecordCount")
        return None if count is None else int(count)

    @property
    def rows_before(self) -> int | None:
        """The row count of the snapshot it was built on."""
        added = self.content.get("deltaRecordCount")
        return None if self.rows is None or added is None else self.rows - int(added)

    def follows(self, other: PaimonRoot) -> bool:
        """Whether it is the direct successor of `other` in the same branch."""
        alike = self.kind == other.kind == "snapshot" and self.branch == other.branch
        return alike and self.id == other.id + 1


@dataclass(frozen=True, slots=True)
class PaimonMetadata:
    """All metadata files at one time. `files` are their paths; `version` changes whenever any of them changes.

    `producing` are the ids of main's schemas under which writers produce changelogs.
    """

    location: str
    roots: tuple[PaimonRoot, ...]
    consumers: Mapping[str, int]
    branches: tuple[str, ...]
    first_schema: Mapping[str, Any]
    producing: frozenset[int]
    files: tuple[str, ...]
    version: str

    @property
    def uuid(self) -> str:
        """An identity from the first schema, because Paimon has no uuid. It survives a rename; a recreated table has another one."""
        digest = hashlib.sha256(json.dumps(self.first_schema, sort_keys=True).encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def manifest(self, name: str) -> str:
        return f"{self.location}/manifest/{name}"


class PaimonFiles(Protocol):
    """Access to the table's files in a store."""

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        """All files under the folder: path, size, modified, stamp. A missing folder counts as empty."""

    def read(self, path: str) -> bytes:
        """The content of the file. Raises FileNotFoundError."""

    def stat(self, paths: Sequence[str]) -> Sequence[object | None]:
        """The stat results in the order of the paths; None for a missing file."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A metadata file in a listing. Without a stamp it is unknown whether its content is still the same."""

    path: str
    stamp: str
    size: int
    modified: datetime


# Parsed content by table and listed file: an unchanged file is not read again. Entries of removed files are dropped.
Known = dict[str, dict[ListedFile, Mapping[str, Any]]]


def read_metadata(objects: PaimonFiles, location: str, known: Known) -> PaimonMetadata:
    """Complete, or raises: every listed root was read, and a second listing afterwards was the same.

    If a file is renamed during the listing, it could be missed under both names: then everything is read again.
    """
    listed = _listed(objects, location)
    for _ in range(_ATTEMPTS):
        contents = _read(objects, listed, known.get(location, {}))
        again = _listed(objects, location)
        if contents is not None and again == listed:
            known[location] = {each: document for each, document in contents.items() if each.stamp}
            return _metadata(
                location,
                {each: document for each, document in contents.items() if not _is_mark(each, document)},
            )
        listed = again
    raise LakewardenError(
        reason=f"read the snapshots of {location}: they changed {_ATTEMPTS} times while they were read",
        hint="another program writes, expires or rolls back this table right now; run again when it is done",
    )


def _listed(objects: PaimonFiles, location: str) -> set[ListedFile]:
    """All metadata files with meaning for the table. Files with other names are ignored, as in Paimon."""
    root = location.rstrip("/")
    files = set()
    for batches in _each(lambda folder: list(objects.list(folder)), [f"{root}/{each}" for each in FOLDERS]):
        for batch in batches:
            columns = (batch[name].to_pylist() for name in ("path", "stamp", "size", "modified"))
            for path, stamp, size, modified in zip(*columns, strict=True):
                below = path[len(root) + 1 :]
                # Ignored files first: a half-written file contains the name of its target. Paimon's library marks an empty folder in
                # an object store by an object whose name ends in a slash.
                if below.endswith("/") or _HARMLESS.search(below):
                    continue
                if not _PLACE.match(below):
                    log.warning(
                        "%s has a name that Paimon does not use there: it is ignored and never deleted", path
                    )
                    continue
                files.add(ListedFile(path, stamp or "", size, modified))
    return files


def _read(
    objects: PaimonFiles, found: set[ListedFile], known: Mapping[ListedFile, Mapping[str, Any]]
) -> dict[ListedFile, Mapping[str, Any]] | None:
    """The content of all listed files. None if one of them has been removed since."""
    unread = [each for each in found if each not in known]
    try:
        contents = _each(objects.read, [each.path for each in unread])
    except FileNotFoundError:
        return None
    read = {each: _document(each.path, told) for each, told in zip(unread, contents, strict=True)}
    return {each: read[each] if each in read else known[each] for each in found}


def _each(ask: Callable[[str], _Answer], paths: Sequence[str]) -> list[_Answer]:
    """The store's answer for each path. In parallel, except on a local disk, where starting a thread takes longer."""
    if not paths or is_local(paths[0]):
        return [ask(path) for path in paths]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="lakewarden-paimon") as pool:
        return list(pool.map(ask, paths))


def _document(path: str, content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
        if isinstance(document, dict):
            return document
        reason = "it is not a JSON object"
    except ValueError as error:
        reason = str(error)
    raise LakewardenError(
        reason=f"read {path}: {reason}",
        hint="nothing was changed; the files it names are unknown, so no file of this table can be proven unneeded",
    ) from InvalidMetadata(reason)


def _is_mark(listed: ListedFile, content: Mapping[str, Any]) -> bool:
    """Whether this is Paimon's marker for a created tag. Decided by its content: a tag may have a similar name."""
    return "/tag/tag-success-file/" in listed.path and "id" not in content and "creationTime" in content


def _is_gap(content: Mapping[str, Any]) -> bool:
    """Whether this is a placeholder snapshot. Its list name is checked too: any writer can set a commit property."""
    marked = GAP in (content.get("properties") or {}) and not any(content.get(each) for each in _FURTHER)
    return marked and content.get("baseManifestList") == content.get("deltaManifestList") == NOTHING


def _metadata(location: str, contents: Mapping[ListedFile, Mapping[str, Any]]) -> PaimonMetadata:
    root = location.rstrip("/")
    roots: list[PaimonRoot] = []
    consumers: dict[str, int] = {}
    branches: set[str] = set()
    schemas: dict[int, Mapping[str, Any]] = {}
    for listed, content in contents.items():
        place = _PLACE.match(listed.path[len(root) + 1 :])
        assert place is not None, "only such paths were listed"
        branch, folder = place["branch"] or MAIN, place["folder"] or place["named"]
        name = place["number"] or place["name"]
        if branch != MAIN:
            branches.add(branch)
        if folder in ("snapshot", "tag", "changelog"):
            roots.append(PaimonRoot(folder, branch, name, listed.path, content, listed.modified))
        elif folder == "consumer" and branch == MAIN:
            consumers[name] = int(content["nextSnapshot"])
        elif folder == "schema" and branch == MAIN:
            schemas[int(name)] = content
    if 0 not in schemas:
        raise LakewardenError(
            reason=f"read {location}: its first schema, schema/schema-0, does not exist",
            hint="check that its location can be listed; without that file the table cannot be identified",
        ) from InvalidMetadata("no first schema")
    if made_cold(schemas[0]):
        roots = [root for root in roots if root.kind != "snapshot" or not _is_gap(root.content)]
    there = sorted(contents, key=lambda each: each.path)
    lines = "\n".join(f"{each.path} {each.stamp} {each.size} {each.modified}" for each in there)
    return PaimonMetadata(
        root,
        tuple(sorted(roots, key=_order)),
        consumers,
        tuple(sorted(branches)),
        schemas[0],
        frozenset(id_ for id_, schema in schemas.items() if _produces(schema)),
        tuple(each.path for each in there),
        hashlib.sha256(lines.encode()).hexdigest()[:16],
    )


def made_cold(first_schema: Mapping[str, Any]) -> bool:
    """Whether hand-off created this table as a cold tier. Only the first schema counts: anyone can set an option later."""
    return COLD_SOURCE_UUID in (first_schema.get("options") or {})


def _produces(schema: Mapping[str, Any]) -> bool:
    return str((schema.get("options") or {}).get("changelog-producer", "none")).lower() != "none"


def _order(root: PaimonRoot) -> tuple[str, int, str, str]:
    return root.branch, root.id, root.kind, root.name


def main_snapshots(roots: Sequence[PaimonRoot]) -> list[PaimonRoot]:
    return sorted((root for root in roots if root.is_main_snapshot), key=lambda each: each.id)


def past(roots: Sequence[PaimonRoot]) -> dict[int, PaimonRoot]:
    """By id all snapshots of main that still exist, or of which a tag still has a copy."""
    copies = {root.id: root for root in roots if root.kind == "tag" and root.branch == MAIN}
    return copies | {root.id: root for root in main_snapshots(roots)}


def newest_run(roots: Sequence[PaimonRoot]) -> list[PaimonRoot]:
    """Main's snapshots from the newest back to the first gap. Older ones are the rest of an expiry that stopped."""
    mine = main_snapshots(roots)
    for place in range(len(mine) - 1, 0, -1):
        if mine[place].id != mine[place - 1].id + 1:
            return mine[place:]
    return mine


# The same with the row count of the file; null for an extra file of a data file, which has no own entry.
COUNTED = NAMED.append(pa.field("rows", pa.int64()))
_POSTPONED = -2
_TOGETHER = 64


class Decoder(Protocol):
    def decode(
        self, what: What, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Yields each decoded (path, length, entries) in order, or None and the reason. A count of -1 is not checked."""

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        """The paths that do not exist in the store."""


@dataclass(frozen=True, slots=True)
class PaimonReader:
    """A MetadataReader for one Paimon table. `folders` returns the library's folders for partitions (JSON of base64)."""

    view: TableView
    decoder: Decoder
    folders: Callable[[str], str]
    _known: dict[bytes, str] = field(default_factory=dict)

    def lists(
        self, paths: Sequence[str], io: Mapping[str, str], lengths: Mapping[str, int]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Yields for each list its manifests (manifest, length, live, encrypted); here `live` counts all entries.

        A list whose length differs from `lengths` is not read.
        """
        files = [(path, lengths.get(path, -1), -1) for path in paths]
        decoded = self.decoder.decode("paimon-list", files, io)
        while together := list(islice(decoded, _TOGETHER)):
            yield from _shared(together, self._with_folder)

    def manifests(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Yields for each manifest or index manifest its files: path, size, kind."""
        for path, table, trouble in self.counted(wanted, io):
            yield path, None if table is None else table.select(NAMED.names), trouble

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        return self.decoder.absent(paths, io)

    def counted(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """The same, with the row count of each file."""
        for index, group in groupby(wanted, key=lambda each: is_index(each[0])):
            what: What = "paimon-index" if index else "paimon-manifest"
            decoded = self.decoder.decode(what, list(group), io)
            while together := list(islice(decoded, _TOGETHER)):
                yield from self._named_together(together, index)

    def named_whole(self, manifests: Sequence[tuple[str, int]], io: Mapping[str, str]) -> Iterator[str]:
        """The files that these manifests (path, length) name by their full path, not relative to the table."""
        for index, group in groupby(manifests, key=lambda each: is_index(each[0])):
            what: What = "paimon-index" if index else "paimon-manifest"
            files = [(path, length, -1) for path, length in group]
            for path, entries, trouble in self.decoder.decode(what, files, io):
                if entries is None:
                    raise LakewardenError(
                        reason=f"read {path}: {trouble}", hint="check it with `lakewarden fsck`"
                    )
                yield from pc.drop_null(entries["external"]).to_pylist()

    def _named_together(
        self, decoded: Sequence[tuple[str, pa.Table | None, str]], index: bool
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        tables = [table for _, table, _ in decoded if table is not None]
        entries = pa.concat_tables(tables).combine_chunks() if tables else None
        if entries is None or pc.sum(pc.list_value_length(entries["extra"])).as_py():
            for path, table, trouble in decoded:  # with extra files, there are more rows than entries
                yield path, None if table is None else self._named(table, index), trouble
            return
        yield from _shared(decoded, lambda entries: self._named(entries, index))

    def _with_folder(self, table: pa.Table) -> pa.Table:
        folder = f"{self.view.handle.metadata.location}/manifest/"
        paths = pc.binary_join_element_wise(folder, table["manifest"].combine_chunks(), "")
        return table.set_column(0, "manifest", paths)

    def _named(self, entries: pa.Table, index: bool) -> pa.Table:
        if not entries.num_rows:
            return COUNTED.empty_table()
        folders = self._index_folders(entries) if index else self._bucket_folders(entries)
        inside = pc.binary_join_element_wise(folders, entries["name"].combine_chunks(), "")
        paths = _where_it_really_is(pc.coalesce(entries["external"].combine_chunks(), inside))
        added = entries["added"].combine_chunks()
        here = pc.if_else(entries["vectors"].combine_chunks(), VECTORS, INDEX) if index else ADDED
        kinds = pc.if_else(added, here, DELETED).cast(pa.int8())
        columns = [paths, entries["size"].combine_chunks(), kinds, entries["rows"].combine_chunks()]
        named = pa.Table.from_arrays(columns, schema=COUNTED)
        extra = self._extra(entries, paths, kinds)
        return pa.concat_tables([named, extra]) if extra.num_rows else named

    def _extra(self, entries: pa.Table, paths: pa.Array, kinds: pa.Array) -> pa.Table:
        """Rows for the extra files of data files, such as bloom filters: they lie next to the data file."""
        extra = entries["extra"].combine_chunks()
        of = pc.list_parent_indices(extra)
        if not len(of):
            return COUNTED.empty_table()
        folder = pc.replace_substring_regex(paths.take(of), r"[^/]*$", "")
        whole = pc.binary_join_element_wise(folder, pc.list_flatten(extra), "")
        unknown = pa.nulls(len(of), pa.int64())
        return pa.Table.from_arrays([whole, unknown, kinds.take(of), unknown], schema=COUNTED)

    def _index_folders(self, entries: pa.Table) -> pa.Array:
        if self.view.handle.index_beside_data:
            return self._bucket_folders(entries)
        return pa.array([f"{self.view.handle.metadata.location}/index/"] * entries.num_rows, pa.string())

    def _bucket_folders(self, entries: pa.Table) -> pa.Array:
        partitions = entries["partition"].combine_chunks().dictionary_encode()
        own = [self._folder(each) for each in self._told(partitions.dictionary.to_pylist())]
        folders = pa.array(own, pa.string()).take(partitions.indices)
        buckets = entries["bucket"].combine_chunks().dictionary_encode()
        names = ["postpone" if each == _POSTPONED else str(each) for each in buckets.dictionary.to_pylist()]
        within = pa.array([f"bucket-{name}/" for name in names], pa.string()).take(buckets.indices)
        return pc.binary_join_element_wise(folders, within, "")

    def _told(self, partitions: Sequence[bytes]) -> list[str]:
        unknown = [partition for partition in partitions if partition not in self._known]
        if unknown:
            encoded = json.dumps([base64.b64encode(each).decode() for each in unknown])
            self._known.update(zip(unknown, json.loads(self.folders(encoded)), strict=True))
        return [self._known[partition] for partition in partitions]

    def _folder(self, relative: str) -> str:
        return f"{self.view.handle.metadata.location}/{relative}"


def _shared(
    decoded: Sequence[tuple[str, pa.Table | None, str]], change: Callable[[pa.Table], pa.Table]
) -> Iterator[tuple[str, pa.Table | None, str]]:
    """Applies one change to the rows of all manifests in one call: an Arrow call per manifest would be slower."""
    tables = [table for _, table, _ in decoded if table is not None]
    changed, start = change(pa.concat_tables(tables).combine_chunks()) if tables else None, 0
    for path, table, trouble in decoded:
        if table is None or changed is None:
            yield path, None, trouble
            continue
        yield path, changed.slice(start, table.num_rows), trouble
        start += table.num_rows


# A changelog that was compacted before its commit is one file for several buckets: an entry names a part by offset and length.
_PART = r"bucket-[^/]+/(compacted-changelog-[^/$]+)\$(\d+)-(\d+)-\d+-\d+(\.[^/]*)$"


def is_shared(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether the entries name parts of a file: then no entry has the size of the whole file."""
    return pc.match_substring_regex(paths, r"/compacted-changelog-[^/]*$")


def _where_it_really_is(paths: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring(paths, "compacted-changelog-")).as_py():
        return paths
    return pc.replace_substring_regex(paths, _PART, r"bucket-\2/\1$\2-\3\4")


def is_index(path: str) -> bool:
    return path.rpartition("/")[2].startswith("index-manifest-")
