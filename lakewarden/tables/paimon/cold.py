"""The cold tier of a Paimon table: a table in another catalog with every snapshot that was handed off.

Paimon's metadata names files relative to the table's folder, so every file is copied unchanged to the same relative path.
The metadata is written last: schemas, then tags, then snapshots from oldest to newest, each an own file that appears
atomically. If the process stops anywhere, each existing snapshot is readable and has its tags.

The cold table has no hint files for the first and last snapshot. Readers list the folder instead, so they are never outdated.

For time travel, Paimon does a binary search over snapshot ids and fails if one is missing. If other tools expired
snapshots before the hand-off, the gap is filled with snapshots without files. A time before or after the gap is found; a
time inside the gap cannot be read, because the table's content at that time is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import CommitLost, CommitUnknown, NoSuchTable, PolicyError, Refused
from lakewarden.model.location import Location, join
from lakewarden.model.table import COLD_SOURCE, COLD_SOURCE_UUID, Ref, TableRef, TableView
from lakewarden.tables.cold import refuse_other, rehome
from lakewarden.tables.interface import ColdHome, CommitGuard, Copying
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit import HeldLock
from lakewarden.tables.paimon.metadata import (
    GAP,
    NOTHING,
    PaimonFiles,
    PaimonReader,
    PaimonRoot,
    main_snapshots,
    past,
)
from lakewarden.tables.paimon.reachability import PaimonReachability

_DATA = pa.array(["data", "index"])
# Options of the live table that expire snapshots, tags, changelogs or partitions, or that name folders outside of the table.
_NOT_THERE = (
    "snapshot.",
    "changelog.",
    "tag.",
    "consumer.",
    "partition.expiration",
    "metastore.",
    "metadata.iceberg.",
    "commit.callback",
    "data-file.external-paths",
    "path",
)
_FOR_EVER = {
    "write-only": "true",  # if a writer uses the table by mistake, it neither compacts nor expires
    "snapshot.time-retained": "36500 d",
    "snapshot.num-retained.min": str(2**31 - 1),
    "snapshot.num-retained.max": str(2**31 - 1),
}
# Any Paimon expiry stops at the snapshots that a consumer has not read yet.
_KEEPER = "consumer/consumer-cold-tier"
# The list name in a placeholder snapshot. A reader's error shows this name and so explains the cause.
_NOTHING: Mapping[str, Any] = {
    "baseManifestList": NOTHING,
    "deltaManifestList": NOTHING,
    "properties": {GAP: "true"},
}
_NAMES = (
    "baseManifestListSize",
    "deltaManifestListSize",
    "changelogManifestList",
    "changelogManifestListSize",
    "indexManifest",
    "statistics",
)
_TERM = ("tagCreateTime", "tagTimeRetained")
_FALLBACK = "scan.fallback-branch"


@dataclass(frozen=True)
class PaimonCold:
    """Implements ColdTier for Paimon."""

    stays_because: ClassVar[str] = "a cold Paimon table keeps its snapshots forever"

    catalogs: PaimonCatalogs
    view: Callable[[TableRef], TableView]
    reach: Callable[[TableView], PaimonReachability]
    reader: Callable[[TableView], PaimonReader]
    store: Callable[[str], PaimonFiles]
    locked: Callable[[TableView], AbstractContextManager[HeldLock]]

    def find(self, view: TableView, catalog: str) -> ColdHome | None:
        cold = self.cold(view, catalog)
        if cold is None:
            return None
        others = _others(view, cold)
        there = frozenset(snapshot.id for snapshot in cold.snapshots if snapshot.id not in others)
        return ColdHome(cold.ref, cold.location.rstrip("/"), there, cold.io)

    def closure(self, view: TableView, snapshot_ids: Collection[int]) -> pa.Table:
        return self.reach(view).closure(snapshot_ids)

    def check(self, view: TableView, files: pa.Table) -> None:
        """Refuses tables with files that are named by their full path: readers of the copy would read the original."""
        if _FALLBACK in view.properties:
            raise Refused(
                action="hand off",
                target=view.ref,
                reason=f"it also reads rows of branch {view.properties[_FALLBACK]} ({_FALLBACK}), and only main is handed off",
                hint="switch hand-off off for it: handoff_enabled=false",
            )
        manifests = files.filter(pc.equal(files["kind"], "manifest")).select(["path", "size"])
        lengths = manifests["size"].fill_null(-1).to_pylist()
        files_to_read = list(zip(manifests["path"].to_pylist(), lengths, strict=True))
        needed = set(files["path"].to_pylist())
        for path in self.reader(view).named_whole(files_to_read, view.io):
            if path in needed:
                raise Refused(
                    action="hand off",
                    target=view.ref,
                    reason=f"{path} is named by its full path: a copy of the table would still read the original file",
                    hint="compact the table first: rewritten files lie in the table's own folders; or switch hand-off off for it",
                )

    def order(self, files: pa.Table) -> list[Copying]:
        data = pc.is_in(files["kind"], _DATA)
        return [Copying(files.filter(data)), Copying(files.filter(pc.invert(data)), instant=True)]

    def may_name(self, path: str) -> bool:
        return False

    def rehome(self, view: TableView, home: ColdHome) -> Callable[[str], str]:
        return rehome(view, home)

    def cold(self, view: TableView, catalog: str) -> TableView | None:
        there = self.catalogs.names()
        if catalog not in there:
            reason = f"no Paimon catalog {catalog} is configured; configured: {', '.join(there)}"
            raise PolicyError(key="handoff_catalog", reason=reason)
        ref = _named(view, catalog)
        if self.catalogs.metastore(catalog) == "rest":
            raise Refused(
                action="hand off to",
                target=ref,
                reason="a REST catalog manages the snapshots of its tables itself and accepts no old ones",
                hint="name a filesystem, JDBC or Hive catalog: policy key handoff_catalog",
            )
        try:
            cold = self.view(ref)
        except NoSuchTable:
            return None
        refuse_other(ref, view, cold.properties.get(COLD_SOURCE_UUID))
        return cold


class PaimonColdWriter:
    """Implements ColdWriter for Paimon."""

    def __init__(self, guard: CommitGuard, tier: PaimonCold) -> None:
        self._guard, self._tier = guard, tier

    def make(self, view: TableView, catalog: str) -> ColdHome:
        self._guard.check(_named(view, catalog), None)
        cold = self._tier.cold(view, catalog)
        if cold is None:
            first = self._schema(view, f"{view.location.rstrip('/')}/schema/schema-0")
            self._tier.catalogs.make(_named(view, catalog), json.dumps(first))
        elif others := _others(view, cold):
            raise Refused(
                action="hand off to",
                target=cold.ref,
                reason=f"its snapshot {min(others)} differs from that of {view.ref}, which was rolled back since",
                hint="name another catalog for new hand-offs: policy key handoff_catalog",
            )
        home = self._tier.find(view, catalog)
        assert home is not None, "it was made a moment ago"
        return home

    def register(
        self, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Sequence[Ref]
    ) -> None:
        self._guard.check(home.ref, None)
        known, cold = past(view.handle.metadata.roots), self._tier.view(home.ref)
        snapshots = {each: _snapshot(known[each]) for each in snapshot_ids}
        there = {root.id: root.content for root in _roots(cold)}
        named = {root.name: root.content for root in cold.handle.metadata.roots if root.kind == "tag"}
        metadata_files = [
            *self._schemas(view),
            (_KEEPER, {"nextSnapshot": 0}),
            # The files of a snapshot are written before it: a repeated run only checks whether the snapshot exists.
            *tag_files(tags, snapshots, named),
            *((_file(id_), gap) for id_, gap in gaps(there | snapshots)),
        ]
        replaced = self._filled(cold) | {_tag(tag.name): named[tag.name] for tag in tags if tag.name in named}
        with self._tier.locked(cold) as lock:
            self._check_same(view, snapshots)
            lock.check()
            self._put(home, metadata_files, replaced)
            self._put(home, [(_file(id_), snapshots[id_]) for id_ in sorted(snapshots)], replaced)
        now = self._tier.find(view, home.ref.catalog)
        if now is None or not now.snapshots.issuperset(snapshot_ids):
            raise CommitUnknown(
                table=home.ref, reason="they were written, but the table does not show all of them"
            )

    def release(self, view: TableView, home: ColdHome, snapshot_ids: Collection[int]) -> None:
        self._guard.check(home.ref, None)
        raise Refused(
            action="release",
            target=f"snapshot {min(snapshot_ids)} of {home.ref}",
            reason=self._tier.stays_because,
            hint="unset cold_retention_hours for it",
        )

    def _put(
        self,
        home: ColdHome,
        made: Sequence[tuple[str, Mapping[str, Any]]],
        replaced: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Write files. Existing files in `replaced` are overwritten; all other existing files stay."""
        lines = [(path, json.dumps(each), replaced.get(path, each) != each) for path, each in made]
        try:
            self._tier.catalogs.cold.put(self._tier.catalogs.load(home.ref), json.dumps(lines))
        except JavaError as error:
            raise CommitUnknown(table=home.ref, reason=java_reason(error)) from error

    def _check_same(self, view: TableView, wanted: Mapping[int, Mapping[str, Any]]) -> None:
        """Refuses if a copied snapshot was rolled back: it is no longer part of the history. An expired one is still valid."""
        now = self._tier.view(view.ref)
        newest = -1 if now.current_snapshot_id is None else now.current_snapshot_id
        changed = [root.id for root in _roots(now) if root.content != wanted.get(root.id, root.content)]
        if now.uuid != view.uuid or changed or newest < max(wanted):
            raise CommitLost(table=view.ref, reason="it was rolled back: its snapshots have changed")

    def _filled(self, cold: TableView) -> dict[str, Mapping[str, Any]]:
        """The placeholder snapshots for all gaps, by path below the table's folder."""
        known = {root.file for root in _roots(cold)}
        return {
            f"snapshot/{name}": json.loads(self._tier.store(cold.ref.catalog).read(path))
            for name, path in _metadata_files(cold, "snapshot")
            if path not in known
        }

    def _schemas(self, view: TableView) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, path in _metadata_files(view, "schema"):
            yield f"schema/{name}", self._schema(view, path)

    def _schema(self, view: TableView, path: str) -> Mapping[str, Any]:
        """The live table's schema, without the options that expire data, and with the uuid of the live table."""
        schema = json.loads(self._tier.store(view.ref.catalog).read(path))
        kept = {key: value for key, value in schema["options"].items() if not key.startswith(_NOT_THERE)}
        marks = {COLD_SOURCE: str(view.ref), COLD_SOURCE_UUID: view.uuid}
        return {**schema, "options": {**kept, **_FOR_EVER, **marks}}


def _metadata_files(view: TableView, folder: str) -> Iterator[tuple[str, str]]:
    """The metadata files in one folder of the table, as (name below the folder, path)."""
    place = Location.of(join(view.location, folder))
    for path in view.handle.metadata.files:
        if name := Location.of(path).below(place):
            yield name, path


def gaps(snapshots: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """A placeholder for each snapshot id that is missing between others; its time follows the snapshot before the gap. Pure."""
    ids = sorted(snapshots)
    for before, after in pairwise(ids):
        last = snapshots[before]
        kept = {key: value for key, value in last.items() if key not in _NAMES}
        at = min(last["timeMillis"] + 1, snapshots[after]["timeMillis"])
        for id_ in range(before + 1, after):
            yield id_, {**kept, "id": id_, "timeMillis": at, **_NOTHING}


def tag_files(
    tags: Sequence[Ref], snapshots: Mapping[int, Mapping[str, Any]], there: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tag files. A name that several snapshots had goes to the newest; the older tag gets its snapshot id as a suffix. Pure."""
    for tag in tags:
        earlier = there.get(tag.name)
        if earlier is not None and earlier["id"] != tag.snapshot_id:
            yield _tag(f"{tag.name}-{earlier['id']}"), earlier
        yield _tag(tag.name), snapshots[tag.snapshot_id]


def _tag(name: str) -> str:
    return f"tag/tag-{name}"


def _file(snapshot_id: int) -> str:
    return f"snapshot/snapshot-{snapshot_id}"


def _named(view: TableView, catalog: str) -> TableRef:
    return TableRef(catalog, view.ref.namespace, view.ref.name)


def _snapshot(root: PaimonRoot) -> dict[str, Any]:
    """The snapshot's content without the expiry time of a tag: in the cold table nothing expires."""
    return {key: value for key, value in root.content.items() if key not in _TERM}


def _roots(view: TableView) -> list[PaimonRoot]:
    return main_snapshots(view.handle.metadata.roots)


def _others(view: TableView, cold: TableView) -> frozenset[int]:
    """Ids that mean different snapshots in the two tables: the live table was rolled back and used the ids again."""
    live = {root.id: root.content for root in _roots(view)}
    return frozenset(root.id for root in _roots(cold) if root.content != live.get(root.id, root.content))
