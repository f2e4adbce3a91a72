"""Metadata files in a table's folders that the table does not name, and whose each is: another table's, or left behind by a commit."""

from __future__ import annotations

import gzip
import json
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lakewarden.engine.kernels.storage import is_local
from lakewarden.engine.objects import Objects
from lakewarden.model import TableView
from lakewarden.paths import normal
from lakewarden.safety.ownership import MetadataFile

_HEAD = 4096
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_LOCATION = re.compile(rb'"location"\s*:\s*("[^"]+")')
# Iceberg's, and Paimon's schemas: each says that its folder is a table's.
_METADATA = re.compile(r"\.metadata\.json(\.gz)?$|/schema/schema-\d+$")
# Each takes half a kilobyte.
_MOST = 50_000


def metadata_folders(view: TableView) -> list[str]:
    """Where metadata files of this table are, and those of another would be that shares its location."""
    named = view.properties.get("write.metadata.path")
    folders = [view.metadata_location.rpartition("/")[0], f"{view.location.rstrip('/')}/metadata"]
    return list({normal(each): each for each in (*folders, *([named] if named else []))}.values())


class KnownStrays:
    """Metadata files are never written twice: whose one is need be read once, as long as its stamp is the same.

    Iceberg leaves such a file with every commit, and a worker lives for months: of a table only what its folders still have is
    kept, and of all tables so much, those looked at longest ago go first. The one that was looked at last always stays.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._by_table: dict[str, Mapping[tuple[str, str], MetadataFile]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(len(each) for each in self._by_table.values())

    def of(self, table_uuid: str) -> Mapping[tuple[str, str], MetadataFile]:
        """By path and stamp."""
        return self._by_table.get(table_uuid, {})

    def keep(self, table_uuid: str, found: Mapping[tuple[str, str], MetadataFile]) -> None:
        """All there is now, instead of what there was."""
        with self._lock:
            self._by_table.pop(table_uuid, None)
            self._by_table[table_uuid] = found
            while len(self) > self._most and len(self._by_table) > 1:
                del self._by_table[next(iter(self._by_table))]


def strays_in_metadata_folders(
    objects: Objects, view: TableView, known: KnownStrays | None = None
) -> list[MetadataFile]:
    """Metadata files beside the table's own that its log does not name, and whose each is."""
    found = {
        path: stamp
        for folder in metadata_folders(view)
        for batch in objects.list(folder)
        for path, stamp in zip(batch["path"].to_pylist(), batch["stamp"].to_pylist(), strict=True)
        if ".metadata.json" in path
    }
    return read_strays(objects, view, found, known)


def read_strays(
    objects: Objects, view: TableView, stamps: Mapping[str, str], known: KnownStrays | None = None
) -> list[MetadataFile]:
    """Of these paths (each with its stamp) the metadata files that the table's log does not name, and whose each is."""
    own = {normal(each) for each in (view.metadata_location, *view.metadata_log)}
    wanted = {normal(path): path for path in stamps if _METADATA.search(path)}
    strays = [path for plain, path in wanted.items() if plain not in own]
    before = {} if known is None else known.of(view.uuid)
    told = [before[path, stamps[path]] for path in strays if (path, stamps[path]) in before]
    unread = [path for path in strays if (path, stamps[path]) not in before]
    read = [each for each in _read_all(unread, lambda path: whose(path, objects.read)) if each]
    if known is not None:
        found = {(each.path, stamps[each.path]): each for each in (*told, *read)}
        known.keep(view.uuid, {key: each for key, each in found.items() if key[1]})
    return told + read


def _read_all(paths: Sequence[str], read: Callable[[str], MetadataFile | None]) -> list[MetadataFile | None]:
    """Requests to a store wait for their answers side by side; a disk answers before a thread has been told to ask."""
    if not paths or is_local(paths[0]):
        return [read(each) for each in paths]
    with ThreadPoolExecutor(16, thread_name_prefix="lakewarden-strays") as pool:
        return list(pool.map(read, paths))


def whose(path: str, read: Callable[[str, int, int | None], bytes]) -> MetadataFile | None:
    """Which table a metadata file says it is of; None for one that is gone by now. The uuid is near the beginning."""
    try:
        head = read(path, 0, _HEAD)
        if not head.startswith(b"\x1f\x8b"):
            named, placed = _UUID.search(head), _LOCATION.search(head)
            if named:
                return MetadataFile(path, named[1].decode(), json.loads(placed[1]) if placed else None)
        return _described(path, _document(read(path, 0, None)))
    except FileNotFoundError:
        return None


def _document(content: bytes) -> Mapping[str, object]:
    """What it says, or nothing where it is no JSON: a file of which it cannot be told whose it is."""
    try:
        plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        document = json.loads(plain)
    except (ValueError, OSError, EOFError, zlib.error):
        return {}
    return document if isinstance(document, dict) else {}


def _described(path: str, document: Mapping[str, object]) -> MetadataFile:
    folder, schema, _ = path.rpartition("/schema/schema-")
    if schema:  # Paimon's, which names neither: it is of the table it lies in
        return MetadataFile(path, None, folder)
    uuid, location = document.get("table-uuid"), document.get("location")
    return MetadataFile(path, str(uuid) if uuid else None, str(location) if location else None)
