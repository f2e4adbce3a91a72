"""A Paimon table's own files: snapshots, tags, branches, changelogs, consumers and schemas, read as they lie there.

Each is a small JSON file; which of them there are is the table's state. Read here and not through the library, because its
classes skip what is missing, and here nothing may be skipped: a root that is not known is a file lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lakewarden.errors import LakewardenError
from lakewarden.model.location import is_local
from lakewarden.model.table import COLD_SOURCE_UUID
from lakewarden.tables.interface import NoSense

log = logging.getLogger(__name__)

MAIN = "main"
FOLDERS = ("snapshot", "changelog", "tag", "consumer", "schema", "branch")

# What a cold table has in place of a snapshot that was never handed off says so in its properties. It names nothing: where
# others name lists of manifests, it says this.
GAP = "cold-tier.gap"
NOTHING = "expired-before-it-was-handed-off"
_FURTHER = ("changelogManifestList", "indexManifest", "statistics")

# Names of branches, tags and consumers may hold slashes; snapshots, changelogs and schemas are numbered.
_PLACE = re.compile(
    r"^(?:branch/branch-(?P<branch>.+?)/)?"
    r"(?:(?P<folder>snapshot|changelog|schema)/(?P=folder)-(?P<number>\d+)"
    r"|(?P<named>tag|consumer)/(?P=named)-(?P<name>.+))$"
)
# What else lies there and keeps nothing: hints, what writers left half written. Not where it may be a branch's tag of such a name.
_HARMLESS = re.compile(
    r"^(?:branch/branch-(?:(?!/tag/tag-).)+?/)?"
    r"(?:(?:snapshot|changelog|tag|consumer|schema)/(?:EARLIEST|LATEST|[._][^/]*)"
    r"|(?:snapshot|changelog|schema)/[^/]*\.tmp)$"
)
# Others expire, tag and commit while this is read: then everything is listed again, so often at most.
_ATTEMPTS = 5
_THREADS = 16

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Root:
    """What keeps files: a snapshot, a tag's copy of one, or a changelog that outlived its snapshot."""

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
        """How many rows it has, deleted ones too, as its writer counted."""
        told = self.content.get("totalRecordCount")
        return None if told is None else int(told)

    @property
    def rows_before(self) -> int | None:
        """How many the snapshot had that it was built on."""
        added = self.content.get("deltaRecordCount")
        return None if self.rows is None or added is None else self.rows - int(added)

    def follows(self, other: Root) -> bool:
        """Whether it is the very next snapshot of the same branch."""
        alike = self.kind == other.kind == "snapshot" and self.branch == other.branch
        return alike and self.id == other.id + 1


@dataclass(frozen=True, slots=True)
class Metadata:
    """Everything at one moment. `files` are the paths of all of it, `version` differs whenever any of it does.

    `producing` are main's schemas under which writers produce changelogs.
    """

    location: str
    roots: tuple[Root, ...]
    consumers: Mapping[str, int]
    branches: tuple[str, ...]
    first_schema: Mapping[str, Any]
    producing: frozenset[int]
    files: tuple[str, ...]
    version: str

    @property
    def uuid(self) -> str:
        """Paimon names no uuid. A table made anew has a first schema of another moment; a renamed one keeps its own."""
        digest = hashlib.sha256(json.dumps(self.first_schema, sort_keys=True).encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def manifest(self, name: str) -> str:
        return f"{self.location}/manifest/{name}"


class Files(Protocol):
    """A store with the table's files."""

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Every file under the folder: path, size, modified, stamp; a folder that is not there is empty."""

    def read(self, path: str) -> bytes:
        """The whole file, or FileNotFoundError."""

    def stat(self, paths: Sequence[str]) -> Sequence[object | None]:
        """In order; None for what is not there."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A metadata file as a listing has it. Without a stamp nothing tells that it is still the same."""

    path: str
    stamp: str
    size: int
    modified: datetime


# Content by table and listed file: one is read once, as long as it is the same. What a table no longer has is forgotten.
Known = dict[str, dict[Listed, Mapping[str, Any]]]


def read_metadata(objects: Files, location: str, known: Known) -> Metadata:
    """Complete, or raises: every root that was listed has been read, and the listing was the same afterwards.

    A root that gets another name while it is listed could be missed under both: then everything is read again.
    """
    found = _listed(objects, location)
    for _ in range(_ATTEMPTS):
        contents = _read(objects, found, known.get(location, {}))
        again = _listed(objects, location)
        if contents is not None and again == found:
            known[location] = {each: told for each, told in contents.items() if each.stamp}
            return _metadata(
                location, {each: told for each, told in contents.items() if not _is_mark(each, told)}
            )
        found = again
    raise LakewardenError(
        reason=f"read the snapshots of {location}: they changed {_ATTEMPTS} times while they were read",
        hint="another program writes, expires or rolls back this table right now; run again when it is done",
    )


def _listed(objects: Files, location: str) -> set[Listed]:
    """Every metadata file that keeps something or tells something. One of another name is passed over, as Paimon does."""
    root = location.rstrip("/")
    found = set()
    for batches in _each(lambda folder: list(objects.list(folder)), [f"{root}/{each}" for each in FOLDERS]):
        for batch in batches:
            columns = (batch[name].to_pylist() for name in ("path", "stamp", "size", "modified"))
            for path, stamp, size, modified in zip(*columns, strict=True):
                below = path[len(root) + 1 :]
                # Harmless first: what a writer left half written bears the name of what it was to be. Paimon's library
                # marks an empty folder of an object store by an object whose name ends in a slash.
                if below.endswith("/") or _HARMLESS.search(below):
                    continue
                if not _PLACE.match(below):
                    log.warning("%s is of no kind that Paimon names so: passed over, and never deleted", path)
                    continue
                found.add(Listed(path, stamp or "", size, modified))
    return found


def _read(
    objects: Files, found: set[Listed], known: Mapping[Listed, Mapping[str, Any]]
) -> dict[Listed, Mapping[str, Any]] | None:
    """None where one of them is gone by now."""
    unread = [each for each in found if each not in known]
    try:
        contents = _each(objects.read, [each.path for each in unread])
    except FileNotFoundError:
        return None
    read = {each: _document(each.path, told) for each, told in zip(unread, contents, strict=True)}
    return {each: read[each] if each in read else known[each] for each in found}


def _each(ask: Callable[[str], _Answer], paths: Sequence[str]) -> list[_Answer]:
    """What the store says to each. All at once, but of a disk, which answers before a thread has been told to ask."""
    if not paths or is_local(paths[0]):
        return [ask(path) for path in paths]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="lakewarden-paimon") as pool:
        return list(pool.map(ask, paths))


def _document(path: str, content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
        if isinstance(document, dict):
            return document
        reason = "it is no JSON object"
    except ValueError as error:
        reason = str(error)
    raise LakewardenError(
        reason=f"read {path}: {reason}",
        hint="nothing was changed; what it names is not known, so nothing of this table can be taken for unneeded",
    ) from NoSense(reason)


def _is_mark(listed: Listed, content: Mapping[str, Any]) -> bool:
    """Paimon's mark that a tag was made. By what it says: a tag may have a name that looks like one."""
    return "/tag/tag-success-file/" in listed.path and "id" not in content and "creationTime" in content


def _is_gap(content: Mapping[str, Any]) -> bool:
    """By what it names too: a property of a commit is its writer's."""
    told = GAP in (content.get("properties") or {}) and not any(content.get(each) for each in _FURTHER)
    return told and content.get("baseManifestList") == content.get("deltaManifestList") == NOTHING


def _metadata(location: str, contents: Mapping[Listed, Mapping[str, Any]]) -> Metadata:
    root = location.rstrip("/")
    roots: list[Root] = []
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
            roots.append(Root(folder, branch, name, listed.path, content, listed.modified))
        elif folder == "consumer" and branch == MAIN:
            consumers[name] = int(content["nextSnapshot"])
        elif folder == "schema" and branch == MAIN:
            schemas[int(name)] = content
    if 0 not in schemas:
        raise LakewardenError(
            reason=f"read {location}: its first schema, schema/schema-0, is not there",
            hint="check that its location can be listed; without that file the table cannot be told from others",
        ) from NoSense("no first schema")
    if made_cold(schemas[0]):
        roots = [each for each in roots if each.kind != "snapshot" or not _is_gap(each.content)]
    there = sorted(contents, key=lambda each: each.path)
    told = "\n".join(f"{each.path} {each.stamp} {each.size} {each.modified}" for each in there)
    return Metadata(
        root,
        tuple(sorted(roots, key=_order)),
        consumers,
        tuple(sorted(branches)),
        schemas[0],
        frozenset(id_ for id_, schema in schemas.items() if _produces(schema)),
        tuple(each.path for each in there),
        hashlib.sha256(told.encode()).hexdigest()[:16],
    )


def made_cold(first_schema: Mapping[str, Any]) -> bool:
    """Whether hand-off made the table as a colder tier. An option that was set later is in a later schema, and says nothing."""
    return COLD_SOURCE_UUID in (first_schema.get("options") or {})


def _produces(schema: Mapping[str, Any]) -> bool:
    return str((schema.get("options") or {}).get("changelog-producer", "none")).lower() != "none"


def _order(root: Root) -> tuple[str, int, str, str]:
    return root.branch, root.id, root.kind, root.name


def main_snapshots(roots: Sequence[Root]) -> list[Root]:
    return sorted((each for each in roots if each.is_main_snapshot), key=lambda each: each.id)


def past(roots: Sequence[Root]) -> dict[int, Root]:
    """By id every snapshot main has or had: where it expired, a tag may still have its copy."""
    copies = {each.id: each for each in roots if each.kind == "tag" and each.branch == MAIN}
    return copies | {each.id: each for each in main_snapshots(roots)}


def newest_run(roots: Sequence[Root]) -> list[Root]:
    """Main's snapshots from the newest back to the first gap: what lies before one is a remnant of an expiry that stopped."""
    mine = main_snapshots(roots)
    for place in range(len(mine) - 1, 0, -1):
        if mine[place].id != mine[place - 1].id + 1:
            return mine[place:]
    return mine
