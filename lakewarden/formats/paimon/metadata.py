"""A Paimon table's own files: snapshots, tags, branches, changelogs, consumers and schemas, read as they lie there.

Each is a small JSON file that is written once; which of them there are is the table's state. Read here and not through the
library, because its classes skip what is missing, and here nothing may be skipped: a root that is not known is a file lost.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from lakewarden.errors import LakewardenError
from lakewarden.paths import normal

MAIN = "main"
FOLDERS = ("snapshot", "changelog", "tag", "consumer", "schema", "branch")


_PLACE = re.compile(
    r"^(?:branch/branch-(?P<branch>[^/]+)/)?(?P<folder>snapshot|changelog|tag|consumer|schema)/(?P=folder)-(?P<name>[^/]+)$"
)
# Named by a number; a name such as `snapshot-7.tmp` is a writer's scrap, and no root.
_NUMBERED = ("snapshot", "changelog", "schema")
# Others expire, tag and commit while this is read: then everything is listed again, so often at most.
_ATTEMPTS = 5
_THREADS = 16


@dataclass(frozen=True, slots=True)
class Root:
    """What keeps files: a snapshot, a tag's copy of one, or a changelog that outlived its snapshot."""

    kind: str  # snapshot, tag or changelog
    branch: str
    name: str
    file: str
    content: Mapping[str, Any]

    @property
    def id(self) -> int:
        return int(self.content["id"])

    @property
    def is_main_snapshot(self) -> bool:
        return self.kind == "snapshot" and self.branch == MAIN


@dataclass(frozen=True, slots=True)
class Metadata:
    """Everything at one moment. `files` are the paths of all of it, `version` differs whenever any of it does."""

    location: str
    roots: tuple[Root, ...]
    consumers: Mapping[str, int]
    branches: tuple[str, ...]
    first_schema: Mapping[str, Any]
    files: tuple[str, ...]
    version: str

    @property
    def uuid(self) -> str:
        """Paimon names no uuid. A table made anew has a first schema of another time, one that was moved another place."""
        told = (
            f"{normal(self.location)} {self.first_schema.get('timeMillis')} {self.first_schema.get('fields')}"
        )
        digest = hashlib.sha256(told.encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def manifest(self, name: str) -> str:
        return f"{self.location}/manifest/{name}"


class Files(Protocol):
    """A store with the table's files."""

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Every file under the folder with its path and stamp; a folder that is not there is empty."""

    def read(self, path: str) -> bytes:
        """The whole file, or FileNotFoundError."""

    def stat(self, paths: Sequence[str]) -> Sequence[object | None]:
        """In order; None for what is not there."""


# Content by path and stamp: a file is read once, as long as it is the same.
Known = dict[tuple[str, str], Mapping[str, Any]]


def read_metadata(objects: Files, location: str, known: Known) -> Metadata:
    """Complete, or raises: every root that was listed has been read."""
    for _ in range(_ATTEMPTS):
        found = dict(_listed(objects, location))
        contents = _read(objects, found, known)
        if contents is not None:
            return _metadata(location, found, contents)
    raise LakewardenError(
        reason=f"read the snapshots of {location}: they changed {_ATTEMPTS} times while they were read",
        hint="another program expires or rolls back this table right now; run again when it is done",
    )


def _listed(objects: Files, location: str) -> Iterator[tuple[str, str]]:
    """Path and stamp of every metadata file whose name says what it is."""
    root = location.rstrip("/")
    for folder in FOLDERS:
        for batch in objects.list(f"{root}/{folder}"):
            for path, stamp in zip(batch["path"].to_pylist(), batch["stamp"].to_pylist(), strict=True):
                if _place(root, path) is not None:
                    yield path, stamp


def _place(root: str, path: str) -> re.Match[str] | None:
    found = _PLACE.match(path[len(root) + 1 :])
    if found is None or (found["folder"] in _NUMBERED and not found["name"].isdigit()):
        return None
    return found


def _read(objects: Files, found: Mapping[str, str], known: Known) -> dict[str, Mapping[str, Any]] | None:
    """None where one of them is gone by now."""
    unread = [path for path, stamp in found.items() if (path, stamp) not in known]
    try:
        if len(unread) > 1:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="lakewarden-paimon") as pool:
                contents = list(pool.map(objects.read, unread))
        else:
            contents = [objects.read(path) for path in unread]
    except FileNotFoundError:
        return None
    for path, content in zip(unread, contents, strict=True):
        known[path, found[path]] = _document(path, content)
    return {path: known[path, stamp] for path, stamp in found.items()}


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
    )


def _metadata(location: str, found: Mapping[str, str], contents: Mapping[str, Mapping[str, Any]]) -> Metadata:
    root = location.rstrip("/")
    roots: list[Root] = []
    consumers: dict[str, int] = {}
    branches: set[str] = set()
    schemas: dict[int, Mapping[str, Any]] = {}
    for path, content in contents.items():
        place = _PLACE.match(path[len(root) + 1 :])
        assert place is not None, "only such paths were listed"
        branch, folder, name = place["branch"] or MAIN, place["folder"], place["name"]
        if branch != MAIN:
            branches.add(branch)
        if folder in ("snapshot", "tag", "changelog"):
            roots.append(Root(folder, branch, name, path, content))
        elif folder == "consumer" and branch == MAIN:
            consumers[name] = int(content["nextSnapshot"])
        elif folder == "schema" and branch == MAIN:
            schemas[int(name)] = content
    if not schemas:
        raise LakewardenError(
            reason=f"read {location}: it has no schema file", hint="check that its location can be listed"
        )
    told = "\n".join(f"{path} {found[path]}" for path in sorted(found))
    return Metadata(
        root,
        tuple(sorted(roots, key=_order)),
        consumers,
        tuple(sorted(branches)),
        schemas[min(schemas)],
        tuple(sorted(found)),
        hashlib.sha256(told.encode()).hexdigest()[:16],
    )


def _order(root: Root) -> tuple[str, int, str, str]:
    return root.branch, root.id, root.kind, root.name


def newest_run(roots: Sequence[Root]) -> list[Root]:
    """Main's snapshots from the newest back to the first gap: what lies before one is a remnant of an expiry that stopped."""
    mine = sorted((each for each in roots if each.is_main_snapshot), key=lambda each: each.id)
    for place in range(len(mine) - 1, 0, -1):
        if mine[place].id != mine[place - 1].id + 1:
            return mine[place:]
    return mine
