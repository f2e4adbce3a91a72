"""The colder tier of a Paimon table: another table, of another catalog, that has every snapshot that was handed off.

Paimon's metadata names files by their place in the table's folder, so every file is copied as it is to the same place below
the cold table's. What makes the cold table is written last: schemas, then tags, then snapshots from the oldest on, each a file of
its own that is there at once. So wherever this stops, a snapshot that is there can be read, and has its tags.

The cold table has no hints which snapshot is the first and the last: readers list the folder instead, and are never late.

Paimon looks for a moment by halving the numbers between the first snapshot and the last, and fails where one is missing. So
where others expired before us, the gap is filled with snapshots that name nothing: a moment on either side of it is found, and
one inside cannot be read, as nobody knows what the table was then.
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
from lakewarden.model.table import COLD_SOURCE, COLD_SOURCE_UUID, Ref, TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.cold import refuse_other, rehome
from lakewarden.tables.interface import ColdHome, CommitGuard, Copying
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon.catalog import Catalogs
from lakewarden.tables.paimon.commit_lock import Held
from lakewarden.tables.paimon.manifest_reader import PaimonReader
from lakewarden.tables.paimon.metadata import GAP, NOTHING, Files, Root, main_snapshots, past
from lakewarden.tables.paimon.reachability import Reach

_DATA = pa.array(["data", "index"])
# Options of the live table by which snapshots, tags, changelogs or partitions leave, or that lead out of the table's folder.
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
    "write-only": "true",  # a writer that came here by mistake neither compacts nor expires
    "snapshot.time-retained": "36500 d",
    "snapshot.num-retained.min": str(2**31 - 1),
    "snapshot.num-retained.max": str(2**31 - 1),
}
# Paimon's expiry, asked for by whomever, stops at what a consumer has still to read.
_KEEPER = "consumer/consumer-cold-tier"
# What a snapshot that stands in for another names instead: a reader's error tells why.
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
    """Every promise of ColdTier."""

    stays_because: ClassVar[str] = "a cold table of Paimon keeps its snapshots for good"

    catalogs: Catalogs
    view: Callable[[TableRef], TableView]
    reach: Callable[[TableView], Reach]
    reader: Callable[[TableView], PaimonReader]
    store: Callable[[str], Files]
    locked: Callable[[TableView], AbstractContextManager[Held]]

    def find(self, view: TableView, catalog: str) -> ColdHome | None:
        cold = self.cold(view, catalog)
        if cold is None:
            return None
        others = _others(view, cold)
        there = frozenset(each.id for each in cold.snapshots if each.id not in others)
        return ColdHome(cold.ref, cold.location.rstrip("/"), there, cold.io)

    def closure(self, view: TableView, snapshot_ids: Collection[int]) -> pa.Table:
        return self.reach(view).closure(snapshot_ids)

    def check(self, view: TableView, files: pa.Table) -> None:
        """A file named by its whole path would still be looked for where it was."""
        if _FALLBACK in view.properties:
            raise Refused(
                action="hand off",
                target=view.ref,
                reason=f"its rows are those of branch {view.properties[_FALLBACK]} too ({_FALLBACK}), and only main is handed off",
                hint="switch hand-off off for it: handoff_enabled=false",
            )
        manifests = files.filter(pc.equal(files["kind"], "manifest")).select(["path", "size"])
        lengths = manifests["size"].fill_null(-1).to_pylist()
        wanted = list(zip(manifests["path"].to_pylist(), lengths, strict=True))
        needed = set(files["path"].to_pylist())
        for path in self.reader(view).named_whole(wanted, view.io):
            if path in needed:
                raise Refused(
                    action="hand off",
                    target=view.ref,
                    reason=f"{path} is named by its whole path: a copy of the table would still look for it there",
                    hint="compact the table first: what is rewritten lies in the table's own folders; or switch hand-off off for it",
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
                reason="a REST catalog keeps the snapshots of its tables itself, and takes no old ones",
                hint="name a filesystem, JDBC or Hive catalog: policy key handoff_catalog",
            )
        try:
            cold = self.view(ref)
        except NoSuchTable:
            return None
        refuse_other(ref, view, cold.properties.get(COLD_SOURCE_UUID))
        return cold


class PaimonColdWriter:
    """Every promise of ColdWriter."""

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
                reason=f"it has another snapshot {min(others)} than {view.ref}, which was rolled back since",
                hint="name another catalog for what comes now: policy key handoff_catalog",
            )
        home = self._tier.find(view, catalog)
        assert home is not None, "it was made a moment ago"
        return home

    def register(
        self, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Sequence[Ref]
    ) -> None:
        self._guard.check(home.ref, None)
        known, cold = past(view.handle.metadata.roots), self._tier.view(home.ref)
        wanted = {each: _snapshot(known[each]) for each in snapshot_ids}
        there = {each.id: each.content for each in _roots(cold)}
        named = {each.name: each.content for each in cold.handle.metadata.roots if each.kind == "tag"}
        made = [
            *self._schemas(view),
            (_KEEPER, {"nextSnapshot": 0}),
            # What goes with a snapshot comes before it: a run that is repeated looks for snapshots alone.
            *tag_files(tags, wanted, named),
            *((_file(id_), gap) for id_, gap in gaps(there | wanted)),
        ]
        replaced = self._filled(cold) | {
            _tag(each.name): named[each.name] for each in tags if each.name in named
        }
        with self._tier.locked(cold) as lock:
            self._check_same(view, wanted)
            lock.check()
            self._put(home, made, replaced)
            self._put(home, [(_file(id_), wanted[id_]) for id_ in sorted(wanted)], replaced)
        now = self._tier.find(view, home.ref.catalog)
        if now is None or not now.snapshots.issuperset(snapshot_ids):
            raise CommitUnknown(table=home.ref, reason="they were written, and it does not show all of them")

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
        """`replaced` are files that are there and give way to others of their name; all else that is there stays."""
        told = [(path, json.dumps(each), replaced.get(path, each) != each) for path, each in made]
        try:
            self._tier.catalogs.cold.put(self._tier.catalogs.load(home.ref), json.dumps(told))
        except JavaError as error:
            raise CommitUnknown(table=home.ref, reason=java_reason(error)) from error

    def _check_same(self, view: TableView, wanted: Mapping[int, Mapping[str, Any]]) -> None:
        """Others may expire what was copied, and its copy is as good; but what was rolled back is none of the table's past."""
        now = self._tier.view(view.ref)
        newest = -1 if now.current_snapshot_id is None else now.current_snapshot_id
        changed = [each.id for each in _roots(now) if each.content != wanted.get(each.id, each.content)]
        if now.uuid != view.uuid or changed or newest < max(wanted):
            raise CommitLost(table=view.ref, reason="it was rolled back: its snapshots are others now")

    def _filled(self, cold: TableView) -> dict[str, Mapping[str, Any]]:
        """What stands in for snapshots, by path below the table's folder."""
        known = {each.file for each in _roots(cold)}
        return {
            f"snapshot/{name}": json.loads(self._tier.store(cold.ref.catalog).read(path))
            for name, path in _metadata_files(cold, "snapshot")
            if path not in known
        }

    def _schemas(self, view: TableView) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, path in _metadata_files(view, "schema"):
            yield f"schema/{name}", self._schema(view, path)

    def _schema(self, view: TableView, path: str) -> Mapping[str, Any]:
        """As the live table has it, but that nothing leaves, and that it says whose it is."""
        schema = json.loads(self._tier.store(view.ref.catalog).read(path))
        kept = {key: value for key, value in schema["options"].items() if not key.startswith(_NOT_THERE)}
        marks = {COLD_SOURCE: str(view.ref), COLD_SOURCE_UUID: view.uuid}
        return {**schema, "options": {**kept, **_FOR_EVER, **marks}}


def _metadata_files(view: TableView, folder: str) -> Iterator[tuple[str, str]]:
    """Files of one of the table's own folders: their names below it, and their paths."""
    place = Location.of(join(view.location, folder))
    for path in view.handle.metadata.files:
        if name := Location.of(path).below(place):
            yield name, path


def gaps(snapshots: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """What stands in for each snapshot that is missing between others, from right after the one before it. Pure."""
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
    """A name is the newest snapshot's that had it; the one before keeps it with its id behind. Pure."""
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


def _snapshot(root: Root) -> dict[str, Any]:
    """Without the end that a tag may have: what is there stays."""
    return {key: value for key, value in root.content.items() if key not in _TERM}


def _roots(view: TableView) -> list[Root]:
    return main_snapshots(view.handle.metadata.roots)


def _others(view: TableView, cold: TableView) -> frozenset[int]:
    """Ids that both tables have, each for a snapshot of its own: the live table was rolled back, and counted on from there."""
    live = {each.id: each.content for each in _roots(view)}
    return frozenset(each.id for each in _roots(cold) if each.content != live.get(each.id, each.content))
