"""Reads the metadata files in a table's folders that the table itself does not name, and says of which table
each is. Whether such a file stops a deletion is decided in lakewarden/deletion.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from lakewarden.model.location import Location, is_generated, is_local, join, name_of, parent, real
from lakewarden.model.table import TableView
from lakewarden.tables.places import MARKS, Places, TableMetadataFile, format_of, roots

if TYPE_CHECKING:
    import pyarrow as pa


_HEAD = 4096
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_UPDATED = re.compile(rb'"last-updated-ms"\s*:\s*(\d+)')
_SEQUENCE = re.compile(rb'"last-sequence-number"\s*:\s*(\d+)')
_LOCATION = re.compile(rb'"location"\s*:\s*("[^"]+")')
_VERSION_1 = re.compile(rb'"format-version"\s*:\s*1\b')
_METADATA = re.compile(r"\.metadata\.json(\.gz)?$")

# Matches every file whose name shows that its folder belongs to a table of some format.
METADATA = r"\.metadata\.json(\.gz)?$|/schema/schema-\d+$|/_delta_log/|/\.hoodie/"

# How far out of order Iceberg allows the times of two entries of a metadata log to be.
_SKEW_MS = 60_000
# How many states after its base state we search for a commit that lost a race and was retried.
_SOON = 32
# The most metadata files to remember. Each takes half a kilobyte.
_MOST = 50_000


class MetadataStore(Protocol):
    """The part of a store that is needed to find and read metadata files."""

    def list(self, folder: str) -> Iterator[pa.RecordBatch]: ...

    def stat(self, paths: Sequence[str]) -> Sequence[object | None]: ...

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes: ...


def metadata_folders(view: TableView, places: Places) -> list[str]:
    """Folders that hold this table's metadata files, and the metadata of any other table that shares its
    location. Only the table's own places.
    """
    named = view.properties.get("write.metadata.path")
    folders = [parent(view.metadata_location), join(view.location, "metadata")]
    by_place = {Location.of(each): each for each in (*folders, *([named] if named else []))}
    return [each for each in by_place.values() if places.is_own(view, each)]


class ForeignMetadataCache:
    """Cache of metadata files that were read before. Metadata files are never overwritten, so a file is read
    again only if its stamp changed.

    Iceberg leaves such a file with every commit, and a worker runs for months. So the cache keeps only the
    files that a table's folders still have. It has a maximum size over all tables and drops the least recently
    read tables first, but never the last one that was read.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._by_table: dict[str, Mapping[tuple[str, str], TableMetadataFile]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(len(each) for each in self._by_table.values())

    def of(self, table_uuid: str) -> Mapping[tuple[str, str], TableMetadataFile]:
        """The known files of a table, by path and stamp."""
        return self._by_table.get(table_uuid, {})

    def keep(self, table_uuid: str, found: Mapping[tuple[str, str], TableMetadataFile]) -> None:
        """Replace the known files of a table with the files that exist now."""
        with self._lock:
            self._by_table.pop(table_uuid, None)
            self._by_table[table_uuid] = found
            while len(self) > self._most and len(self._by_table) > 1:
                del self._by_table[next(iter(self._by_table))]


def foreign_metadata(objects: MetadataStore, view: TableView) -> list[TableMetadataFile]:
    """One metadata file of each other format in the table's folders. Takes a few short listings, whatever the table's size."""
    # Apache XTable writes the metadata of its target format into the folder of the data files.
    named = (*roots(view).values(), join(view.location, "data"))
    places = {Location.of(each): each.rstrip("/") for each in named}
    folders = [
        f"{place}/{folder}"
        for place in places.values()
        for format_, (folder, _) in MARKS.items()
        if format_ != view.format
    ]
    files = _read_all(folders, lambda folder: _first_foreign(objects, folder))
    return [each for each in files if each is not None]


def _first_foreign(objects: MetadataStore, folder: str) -> TableMetadataFile | None:
    # Paimon never deletes its first schema. So we ask for that file, because the folder may hold many other files.
    first = f"{folder}/schema-0"
    if format_of(first) is not None and objects.stat([first])[0] is not None:
        return _of_another_format(first)
    for batch in islice(objects.list(folder), 1):
        for path in batch["path"].to_pylist():
            if format_of(path) is not None:
                return _of_another_format(path)
    return None


def _of_another_format(path: str) -> TableMetadataFile | None:
    """Judged by its name: such files name no uuid, and belong to the table whose folder they are in."""
    format_ = format_of(path)
    if format_ is None:
        return None
    place = f"/{MARKS[format_][0]}/"
    return TableMetadataFile(path, None, path[: path.rindex(place)], format_)


def strays_in_metadata_folders(
    objects: MetadataStore, view: TableView, places: Places, known: ForeignMetadataCache | None = None
) -> list[TableMetadataFile]:
    """Metadata files beside the table's own that its log does not name, and files of other formats, each with its owner."""
    stamps = {
        path: stamp
        for folder in metadata_folders(view, places)
        for batch in objects.list(folder)
        for path, stamp in zip(batch["path"].to_pylist(), batch["stamp"].to_pylist(), strict=True)
        if ".metadata.json" in path
    }
    return foreign_metadata(objects, view) + read_strays(objects, view, stamps, known)


def read_strays(
    objects: MetadataStore,
    view: TableView,
    stamps: Mapping[str, str],
    known: ForeignMetadataCache | None = None,
) -> list[TableMetadataFile]:
    """Of these paths (each with its stamp), the metadata files that the table's log does not name, each with its owner."""
    own = {Location.of(each) for each in (view.metadata_location, *view.metadata_log)}
    by_place = {Location.of(path): path for path in stamps if _METADATA.search(path)}
    strays = [path for place, path in by_place.items() if place not in own]
    other = (_of_another_format(path) for path in stamps if Location.of(path) not in own)
    before = {} if known is None else known.of(view.uuid)
    cached = [before[path, stamps[path]] for path in strays if (path, stamps[path]) in before]
    unread = [path for path in strays if (path, stamps[path]) not in before]
    read = [each for each in _read_all(unread, lambda path: whose(path, objects.read)) if each]
    if known is not None:
        by_stamp = {(each.path, stamps[each.path]): each for each in (*cached, *read)}
        known.keep(view.uuid, {key: each for key, each in by_stamp.items() if key[1]})
    return [*(each for each in other if each), *cached, *read]


def log_of(objects: MetadataStore, view: TableView, path: str) -> list[tuple[str, int]]:
    """The metadata files that an earlier metadata file of the table names, oldest first. Empty if that file cannot be read."""
    try:
        document = document_of(objects.read(path, 0, None))
    except FileNotFoundError:
        return []
    log = document.get("metadata-log")
    if document.get("table-uuid") != view.uuid or not isinstance(log, list):
        return []
    try:
        return [(str(each["metadata-file"]), int(each["timestamp-ms"])) for each in log]
    except (KeyError, TypeError, ValueError):  # the log is not usable
        return []


def manifest_lists(document: Mapping[str, object]) -> dict[object, str] | None:
    """The snapshots of a metadata file, each with its manifest list. None if the file does not say."""
    snapshots = document.get("snapshots")
    if not isinstance(snapshots, list) or not all(isinstance(each, dict) for each in snapshots):
        return None
    return {each.get("snapshot-id"): str(each.get("manifest-list") or "") for each in snapshots}


def _read_all(
    paths: Sequence[str], read: Callable[[str], TableMetadataFile | None]
) -> list[TableMetadataFile | None]:
    """Reads from a store run in parallel because each waits for an answer. A disk answers faster than a thread starts."""
    if not paths or is_local(paths[0]):
        return [read(each) for each in paths]
    with ThreadPoolExecutor(16, thread_name_prefix="lakewarden-strays") as pool:
        return list(pool.map(read, paths))


def whose(path: str, read: Callable[[str, int, int | None], bytes]) -> TableMetadataFile | None:
    """Which table a metadata file belongs to. None if the file no longer exists. The uuid is near the beginning of the file."""
    try:
        head = read(path, 0, _HEAD)
        if not head.startswith(b"\x1f\x8b"):
            named, placed = _UUID.search(head), _LOCATION.search(head)
            updated, sequence = _UPDATED.search(head), _SEQUENCE.search(head)
            # Only format version 1 has no sequence number. Otherwise it comes later in the file, and all of the
            # file is read.
            if named and updated and (sequence or _VERSION_1.search(head)):
                return TableMetadataFile(
                    path,
                    named[1].decode(),
                    json.loads(placed[1]) if placed else None,
                    updated_ms=int(updated[1]),
                    sequence_number=int(sequence[1]) if sequence else 0,
                )
        return _described(path, document_of(read(path, 0, None)))
    except FileNotFoundError:
        return None


def document_of(content: bytes) -> Mapping[str, object]:
    """The file's JSON, or an empty mapping if it is not JSON: then its owner cannot be determined."""
    try:
        plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        document = json.loads(plain)
    except (ValueError, OSError, EOFError, zlib.error):
        return {}
    return document if isinstance(document, dict) else {}


def _described(path: str, document: Mapping[str, object]) -> TableMetadataFile:
    uuid, location = document.get("table-uuid"), document.get("location")
    updated, sequence = document.get("last-updated-ms"), document.get("last-sequence-number")
    return TableMetadataFile(
        path,
        str(uuid) if uuid else None,
        str(location) if location else None,
        updated_ms=updated if isinstance(updated, int) else None,
        sequence_number=sequence if isinstance(sequence, int) else 0,
    )


def forks(view: TableView, found: Sequence[TableMetadataFile]) -> list[TableMetadataFile]:
    """Metadata files of this table that are neither its current one nor its ancestors, as far back as its log
    goes.

    Back to the oldest entry of the log, every ancestor is known by name. An older file may be an ancestor that
    the log no longer names, unless it is known to be `forked`.
    """
    since = view.updated_ms + 1 if view.log_since_ms is None else view.log_since_ms
    suspects = [
        each
        for each in of_this_table(view, found)
        if each.forked or is_ahead(view, each) or (each.updated_ms is not None and each.updated_ms >= since)
    ]
    if not suspects:
        return []
    own = history(view)
    return [each for each in suspects if not own.has(each.path)]


def of_this_table(view: TableView, found: Sequence[TableMetadataFile]) -> list[TableMetadataFile]:
    return [each for each in found if each.uuid == view.uuid and each.format == view.format == "iceberg"]


class MetadataHistory:
    """Metadata files that are known states of a table.

    They are known under every name of their place, also through a link or a second mount. deletion/spelling.py decides
    whether files in such a place may be deleted, and its message names both places.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._places: set[Location] = set()
        self._names: set[str] = set()
        self.add(paths)

    def add(self, paths: Iterable[str]) -> bool:
        """Add these files. Returns whether any of them was not known."""
        before = len(self._places)
        for path in paths:
            self._places |= {Location.of(path), Location.of(real(path))}
            self._names |= {name_of(path)} if is_generated(path) else set()
        return len(self._places) > before

    def has(self, path: str) -> bool:
        return (
            Location.of(path) in self._places
            or name_of(path) in self._names
            or Location.of(real(path)) in self._places
        )


def history(view: TableView) -> MetadataHistory:
    """The catalog's current metadata file and the ancestors that it names."""
    return MetadataHistory((view.metadata_location, *view.metadata_log))


def is_ahead(view: TableView, file: TableMetadataFile) -> bool:
    """Whether the file is newer than the current one, by time or by sequence number: the clocks of two writers differ."""
    later = file.updated_ms is None or file.updated_ms > view.updated_ms
    return later or file.sequence_number > view.sequence_number


def without_ancestors(
    objects: MetadataStore, view: TableView, strays: Sequence[TableMetadataFile], *, whole: bool
) -> list[TableMetadataFile]:
    """Follow the logs back: the oldest file that one log names has a log itself. A file in the covered time
    that no log names is a fork.

    The walk ends at the first older log that cannot be read. Files from before that time may be ancestors or
    not: they pass.
    """
    own, since, oldest = history(view), view.log_since_ms, view.metadata_log[:1]
    unnamed = of_this_table(view, strays)
    left = [each for each in (unnamed if whole else forks(view, strays)) if not own.has(each.path)]
    while since is not None and any(_may_be_before(each, since) for each in left):
        named = log_of(objects, view, oldest[0])
        if not own.add(path for path, _ in named):
            break
        left = [each for each in left if not own.has(each.path)]
        first, at = named[0]
        since, oldest = min(since, at), (first,)
    forked = {each.path for each in left if whole and since is not None and _written_since(each, since)}
    ancestors = {each.path for each in unnamed if own.has(each.path)}
    return [
        replace(each, forked=True) if each.path in forked else each
        for each in strays
        if each.path not in ancestors
    ]


def _written_since(file: TableMetadataFile, since: int) -> bool:
    return file.updated_ms is None or file.updated_ms >= since


def _may_be_before(file: TableMetadataFile, since: int) -> bool:
    """Whether a log older than the one that begins at `since` may name the file. The clocks of two writers may differ."""
    return file.updated_ms is None or file.updated_ms < since + _SKEW_MS


def states_around(
    objects: MetadataStore, view: TableView, document: Mapping[str, object]
) -> tuple[set[tuple[object, Location]], int | None]:
    """Snapshots of the state that a commit was built on, and of the next few states. The table may have expired
    the old snapshots since, and a retried commit appears soon after. None if the commit was built on no state
    of this table.

    Also the time when the next state was written, by a faster commit.
    """
    log = document.get("metadata-log")
    last = log[-1] if isinstance(log, list) and log else None
    before = Location.of(str(last.get("metadata-file"))) if isinstance(last, dict) else None
    states = [*view.metadata_log, view.metadata_location]
    while before is not None and before not in map(Location.of, states):
        older = [path for path, _ in log_of(objects, view, states[0])]
        if not older:
            return set(), None
        states = [*older, *states]
    if before is None:
        return set(), None
    first = [Location.of(each) for each in states].index(before)
    places: set[tuple[object, Location]] = set()
    winner_ms: int | None = None
    for number, path in enumerate(states[first : first + _SOON]):
        with suppress(FileNotFoundError):
            state = document_of(objects.read(path, 0, None))
            places |= {place_of(id_, place) for id_, place in (manifest_lists(state) or {}).items()}
            at = state.get("last-updated-ms")
            if number == 1 and isinstance(at, int):
                winner_ms = at
    return places, winner_ms


def place_of(snapshot: object, manifest_list: str | None) -> tuple[object, Location]:
    return snapshot, Location.of(manifest_list or "")
