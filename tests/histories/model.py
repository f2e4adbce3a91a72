"""A modelled Iceberg table: what its metadata says is in memory, every file it names is a real, tiny one on disk.

It knows nothing of Lakewarden's reachability: `needed` is a plain walk over the model's own objects, which is what the
histories are judged by.
"""

from __future__ import annotations

import json
import os
import re
import uuid as uuids
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from random import Random

from lakewarden.model.table import Ref, TableRef

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITIONS, EQUALITY = 0, 1, 2
MAIN = "main"
# How many earlier metadata files the table names; older ones are left behind, as Iceberg leaves them.
LOG = 3


def plain(path: str) -> str:
    """The one name of a file on disk, however it is spelled."""
    return re.sub(r"/+", "/", path.removeprefix("file:"))


def respelled(path: str, rng: Random) -> str:
    """The same file under another name: writers do not agree on how to write a path."""
    name = plain(path)
    folder, _, last = name.rpartition("/")
    return rng.choice([name, name, f"file:{name}", f"file://{name}", f"{folder}//{last}"])


def generated(number: int, stem: str = "") -> str:
    """A name as Iceberg's library gives it: a file of any other name may be older than its table, and then nobody deletes it."""
    return f"00000-{number}-{stem}{uuids.UUID(int=number)}"


def there(name: str) -> bool:
    return Path(name).exists()


class Clock:
    """Time that only passes when it is told to, and a little with every look at it: no two moments are the same."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def tick(self) -> datetime:
        self.moment += timedelta(milliseconds=1)
        return self.moment


@dataclass
class Disk:
    """Real files. `written` tells when each was written last, `writes` how often."""

    clock: Clock
    written: dict[str, datetime] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)

    def write(self, path: str, content: bytes) -> int:
        """So many bytes, modified at the modelled moment."""
        name, now = plain(path), self.clock.tick()
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        nanos = round(now.timestamp() * 1_000_000) * 1000
        os.utime(name, ns=(nanos, nanos))
        self.written[name] = now
        self.writes[name] = self.writes.get(name, 0) + 1
        return len(content)

    def has(self, path: str) -> bool:
        return there(plain(path))

    def remove(self, path: str) -> None:
        """By someone else than Lakewarden."""
        Path(plain(path)).unlink()


@dataclass(frozen=True)
class File:
    """A data or delete file as a manifest spells it."""

    path: str
    size: int
    kind: int = DATA


@dataclass(frozen=True)
class Manifest:
    path: str
    length: int
    entries: tuple[tuple[int, File], ...]

    @cached_property
    def live(self) -> tuple[File, ...]:
        return tuple(file for status, file in self.entries if status != DELETED)


@dataclass(frozen=True)
class Snap:
    """A snapshot and its manifest list: the manifests, each as this list spells it."""

    id: int
    parent: int | None
    sequence: int
    at: datetime
    operation: str
    summary: dict[str, str]
    list_path: str
    manifests: tuple[tuple[str, Manifest], ...]

    @cached_property
    def files(self) -> tuple[File, ...]:
        return tuple(file for _, manifest in self.manifests for file in manifest.live)

    @cached_property
    def needs(self) -> frozenset[str]:
        """Every file that someone who reads this snapshot opens."""
        named = [self.list_path, *(path for path, _ in self.manifests), *(file.path for file in self.files)]
        return frozenset(plain(each) for each in named)


@dataclass(frozen=True)
class Meta:
    """One metadata file: it is never changed, the table moves on to the next."""

    path: str
    log: tuple[str, ...] = ()
    snapshots: tuple[Snap, ...] = ()
    refs: tuple[Ref, ...] = ()
    statistics: tuple[tuple[int, str], ...] = ()
    updated_ms: int = 0
    sequence: int = 0

    def snapshot(self, snapshot_id: int | None) -> Snap | None:
        return next((each for each in self.snapshots if each.id == snapshot_id), None)

    def ref(self, name: str) -> Ref | None:
        return next((each for each in self.refs if each.name == name), None)

    def head(self, branch: str = MAIN) -> Snap | None:
        ref = self.ref(branch)
        return None if ref is None else self.snapshot(ref.snapshot_id)

    @cached_property
    def read(self) -> frozenset[str]:
        """Every file that a reader of any snapshot opens."""
        return frozenset().union(*(each.needs for each in self.snapshots))

    @cached_property
    def needed(self) -> frozenset[str]:
        """Every file that any snapshot needs, and the table's own metadata."""
        there = {each.id for each in self.snapshots}
        own = [self.path, *self.log, *(path for snapshot, path in self.statistics if snapshot in there)]
        return self.read.union(plain(each) for each in own)


class Table:
    """A table with its pointer. Every change writes a new metadata file and moves the pointer, in one step."""

    def __init__(self, ref: TableRef, folder: str, disk: Disk, rng: Random) -> None:
        self.ref, self.disk = ref, disk
        self.uuid = str(uuids.UUID(int=rng.getrandbits(128), version=4))
        self.location = respelled(folder, rng)
        self.folder = plain(folder)
        self.version = 0
        self.ids = rng.randrange(10**6) * 1000
        self.sequence = 0
        self.lists: dict[str, Snap] = {}
        self.manifests: dict[str, Manifest] = {}
        self.meta = self._written(Meta(""))
        self.earlier: list[Meta] = []

    # ------------------------------------------------------------ the pointer

    def commit(self, meta: Meta) -> None:
        self.move(self.prepared(meta))

    def prepared(self, meta: Meta) -> Meta:
        """The metadata file written, the pointer not moved: a commit on its way."""
        return self._written(replace(meta, log=(*self.meta.log, self.meta.path)[-LOG:]))

    def move(self, meta: Meta) -> None:
        self.earlier.append(self.meta)
        self.meta = meta

    def _written(self, meta: Meta) -> Meta:
        self.version += 1
        path = f"{self.location}/metadata/{self.version:05d}-{self.uuid[:8]}.metadata.json"
        updated_ms = int(self.disk.clock.tick().timestamp() * 1000)
        document = {
            "format-version": 2,
            "table-uuid": self.uuid,
            "location": self.location,
            "last-sequence-number": self.sequence,
            "last-updated-ms": updated_ms,
        }
        self.disk.write(path, json.dumps(document).encode())
        return replace(meta, path=path, updated_ms=updated_ms, sequence=self.sequence)

    # ------------------------------------------------------------ files

    def data_path(self, name: str, rng: Random) -> str:
        return respelled(f"{self.folder}/data/day={rng.randrange(3)}/{name}", rng)

    def new_files(self, count: int, rng: Random, kind: int = DATA, stem: str = "") -> list[File]:
        suffix = "puffin" if kind == POSITIONS else "parquet"
        made = []
        for _ in range(count):
            self.ids += 1
            path = self.data_path(f"{generated(self.ids, stem)}.{suffix}", rng)
            made.append(File(path, self.disk.write(path, b"x" * rng.randrange(1, 9)), kind))
        return made

    def manifest(self, entries: Iterable[tuple[int, File]], rng: Random) -> Manifest:
        self.ids += 1
        path = respelled(f"{self.folder}/metadata/{uuids.UUID(int=self.ids)}-m0.avro", rng)
        found = tuple(entries)
        made = Manifest(path, self.disk.write(path, b"m" * (len(found) + 1)), found)
        self.manifests[plain(path)] = made
        return made

    # ------------------------------------------------------------ snapshots

    def add_snapshot(
        self,
        manifests: Sequence[Manifest],
        operation: str,
        rng: Random,
        branch: str | None = MAIN,
        summary: dict[str, str] | None = None,
        parent: int | None = -1,
    ) -> Snap:
        """A snapshot on top of the branch; with no branch it is staged: nothing names it but the list of snapshots."""
        head = self.meta.head(branch or MAIN)
        self.ids += 1
        self.sequence += 1
        path = respelled(f"{self.folder}/metadata/snap-{self.ids}-1-{uuids.UUID(int=self.ids)}.avro", rng)
        self.disk.write(path, b"l")
        above = (None if head is None else head.id) if parent == -1 else parent
        named = tuple((_sometimes(each.path, rng), each) for each in manifests)
        snap = Snap(
            self.ids, above, self.sequence, self.disk.clock.tick(), operation, summary or {}, path, named
        )
        self.lists[plain(path)] = snap
        meta = replace(self.meta, snapshots=(*self.meta.snapshots, snap))
        self.commit(meta if branch is None else _pointed(meta, branch, snap.id))
        return snap

    def append(
        self,
        files: Sequence[File],
        rng: Random,
        branch: str | None = MAIN,
        summary: dict[str, str] | None = None,
    ) -> Snap:
        kept = self.carried(branch)
        made = self.manifest(((ADDED, each) for each in files), rng)
        return self.add_snapshot([*kept, made], "append", rng, branch, summary)

    def replace_files(
        self, gone: set[str], new: Sequence[File], operation: str, rng: Random, branch: str = MAIN
    ) -> Snap:
        """Files leave, by their plain names, and others come: manifests that named one are written anew."""
        manifests: list[Manifest] = []
        for manifest in self.carried(branch):
            if gone.isdisjoint(plain(file.path) for file in manifest.live):
                manifests.append(manifest)
                continue
            entries = [(DELETED if plain(file.path) in gone else EXISTING, file) for file in manifest.live]
            manifests.append(self.manifest(entries, rng))
        if new:
            manifests.append(self.manifest(((ADDED, each) for each in new), rng))
        return self.add_snapshot(manifests, operation, rng, branch)

    def rewrite_manifests(self, rng: Random) -> Snap:
        """The same files, named by one or two new manifests."""
        files = [file for manifest in self.carried(MAIN) for file in manifest.live]
        cut = rng.randrange(len(files) + 1)
        parts = [part for part in (files[:cut], files[cut:]) if part]
        manifests = [self.manifest(((EXISTING, each) for each in part), rng) for part in parts]
        return self.add_snapshot(manifests, "replace", rng)

    def carried(self, branch: str | None) -> list[Manifest]:
        """The manifests a next snapshot takes over: those that still name a live file."""
        head = self.meta.head(branch or MAIN)
        return [] if head is None else [each for _, each in head.manifests if each.live]

    def set_ref(self, ref: Ref) -> None:
        self.commit(_with_ref(self.meta, ref))

    def drop_ref(self, name: str) -> None:
        self.commit(replace(self.meta, refs=tuple(each for each in self.meta.refs if each.name != name)))

    def set_statistics(self, snapshot_id: int, path: str) -> None:
        others = tuple(each for each in self.meta.statistics if each[0] != snapshot_id)
        self.commit(replace(self.meta, statistics=(*others, (snapshot_id, path))))

    def without(self, ids: set[int], refs: set[str] = frozenset()) -> Meta:  # type: ignore[assignment]
        """The metadata without these snapshots, their statistics, and these refs."""
        return replace(
            self.meta,
            snapshots=tuple(each for each in self.meta.snapshots if each.id not in ids),
            refs=tuple(each for each in self.meta.refs if each.name not in refs),
            statistics=tuple(each for each in self.meta.statistics if each[0] not in ids),
        )


def _sometimes(path: str, rng: Random) -> str:
    return respelled(path, rng) if rng.random() < 0.1 else path


def _pointed(meta: Meta, branch: str, snapshot_id: int) -> Meta:
    known = meta.ref(branch)
    return _with_ref(
        meta, replace(known, snapshot_id=snapshot_id) if known else Ref(branch, "branch", snapshot_id)
    )


def _with_ref(meta: Meta, ref: Ref) -> Meta:
    others = tuple(each for each in meta.refs if each.name != ref.name)
    return replace(meta, refs=(*others, ref))
