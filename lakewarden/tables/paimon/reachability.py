"""The files that a Paimon table needs: everything that its snapshots, tags, branches and changelogs name.

A snapshot has a base list (manifests of earlier snapshots) and a delta list (its own manifests). Manifest entries add and
delete files; the live files are the sum over all entries of the snapshot. For a sum, the order of entries and snapshots does
not matter: a file that was deleted and added again is live, wherever the two entries are.

A named file is not always needed: a manifest names a deleted file long after the last snapshot that could read it.

A snapshot continues its predecessor, so if both are asked for, only its own delta list has to be read. This saves a lot,
because manifests are merged repeatedly: a thousand commits of fifty files leave a million entries, of which a hundred
thousand are enough. It is proven file by file that each snapshot continued its predecessor: the first snapshot plus all
deltas must equal the last. This fails after a fast-forward to a branch with its own history, or if a writer built on a
snapshot that was rolled back. Then everything is read.

A root is a snapshot, tag or changelog. It names lists, index manifests and statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lakewarden.model.location import hashes, may_be_in, normals, plain_hashes
from lakewarden.model.table import TableView
from lakewarden.tables.metadata_cache import UNREACHED, CachedMetadata, ListedManifests
from lakewarden.tables.paimon.metadata import ADDED, DELETED, MAIN, PaimonMetadata, PaimonRoot, past
from lakewarden.tables.paimon.view import Handle
from lakewarden.tables.reachability import ReachableFiles, ReachableFilesBuilder, contains, own_folders

# Returns those of the paths that exist.
Existing = Callable[[Sequence[str]], set[str]]


@dataclass(frozen=True)
class PaimonReachability:
    """Computes reachability from one table's metadata, through the cache."""

    view: TableView
    known: CachedMetadata
    existing: Existing

    def reached(self, snapshot_ids: Collection[int] | None = None) -> ReachableFiles:
        """All files that these snapshots of main need (None: all roots), and the table's own metadata."""
        roots = self._roots
        if snapshot_ids is not None:
            roots = [root for root in roots if root.is_main_snapshot and root.id in snapshot_ids]
        needs = self._needs(roots)
        own = [*needs.metadata, *self._own(roots, snapshot_ids is None)]
        if snapshot_ids is None:
            self.known.tidy(needs.metadata, needs.metadata)
        needed = ReachableFilesBuilder(self.view)
        needed.add(own)
        needed.add_known(needs.files, needs.book.outside)
        return needed.reached(
            tuple(root.id for root in roots if root.is_main_snapshot), hashes(self._hints())
        )

    def unreached(
        self, removed: Collection[int], tags: Collection[str] = (), changelogs: Collection[int] = ()
    ) -> pa.Table:
        """Files that only these snapshots, tags and changelogs of main need."""
        go = [root for root in self._roots if _goes(root, removed, tags, changelogs)]
        stay = [root for root in self._roots if not _goes(root, removed, tags, changelogs)]
        if self.view.handle.decoupled:  # the changelogs of expired snapshots stay, as separate roots
            stay += [
                PaimonRoot("changelog", MAIN, each.name, each.file, each.content)
                for each in go
                if each.kind == "snapshot" and each.id not in changelogs
            ]
        needed, freed = self._needs(stay), self._needs(go)
        return freed.told(np.setdiff1d(freed.files, needed.files), freed.metadata - needed.metadata)

    def closure(self, snapshot_ids: Collection[int]) -> pa.Table:
        """All files that these snapshots of main need, except the snapshot files themselves and the schemas."""
        known = past(self._roots)
        needs = self._needs([known[each] for each in sorted(snapshot_ids)])
        return needs.told(needs.files, needs.metadata)

    def named_paths(self, numbers: Any) -> Iterator[pa.Array]:
        """The paths of required files and metadata whose hashes are in these sorted numbers."""
        needs = self._needs([root for root in self._roots if root.kind != "changelog"])
        metadata = pa.array(sorted(needs.metadata), pa.string())
        yield metadata.filter(pa.array(contains(numbers, hashes(metadata))))
        needed = np.intersect1d(needs.files, numbers)
        for table in needs.book.tables():
            yield table["path"].combine_chunks().filter(pa.array(contains(needed, hashes(table["path"]))))

    def named_at_all(self, numbers: Any) -> Any:
        """The sorted numbers that occur in a manifest of any root, as added or deleted files."""
        tables = self._needs(self._roots).book.tables()
        named = [np.intersect1d(hashes(table["path"]), numbers) for table in tables]
        return np.unique(np.concatenate(named)) if named else numbers[:0]

    @cached_property
    def _roots(self) -> list[PaimonRoot]:
        return list(self.view.handle.metadata.roots)

    def _own(self, roots: Sequence[PaimonRoot], whole: bool) -> list[str]:
        return [*self.view.handle.metadata.files, *self._hints()] if whole else [root.file for root in roots]

    def _hints(self) -> list[str]:
        """The hint files for the first and last snapshot. They may be missing or outdated."""
        metadata = self.view.handle.metadata
        return [
            f"{metadata.location}/{branch}{folder}/{hint}"
            for branch in ("", *(f"branch/branch-{name}/" for name in metadata.branches))
            for folder in ("snapshot", "changelog")
            for hint in ("EARLIEST", "LATEST")
        ]

    def _needs(self, roots: Sequence[PaimonRoot]) -> _Needs:
        """The files that these roots need. Complete, or raises."""
        metadata = self.view.handle.metadata
        kept = kept_lists(self.view.handle, roots, self.existing)
        named = [named_by(self.view.handle, root, kept) for root in roots]
        lists = list(dict.fromkeys(path for each in named for path in each.lists))
        place = {path: number for number, path in enumerate(lists)}
        listed = self.known.listed(lists, list_lengths(metadata, roots))
        self.known.check_there(listed)
        indexes = list(dict.fromkeys(path for each in named for path in each.index))
        merged = [
            _Merged(root, *(frozenset(listed.of([place[path]]).tolist()) for path in each.merged))
            for root, each in zip(roots, named, strict=True)
            if each.merged
        ]
        changed = {place[path] for each in named for path in (*each.changes, *each.changelog)}
        plain = frozenset(listed.of(changed).tolist())
        runs = _runs(merged, listed.net)
        sets = [part for run in runs for part in _short(run)]
        book = _Book(self.known, listed, indexes, sorted(plain.union(*sets)))
        if not all(book.adds_up(run) for run in runs):
            sets = [each.all() for each in merged]
            book = _Book(self.known, listed, indexes, sorted(plain.union(*sets)))
        live, added = book.live(sets), book.added(plain)
        statistics = [path for each in named for path in each.statistics]
        manifests = listed.paths.to_pylist()
        return _Needs(
            np.unique(np.concatenate([live, added, book.indexed()])),
            frozenset([*lists, *manifests, *indexes, *statistics]),
            dict(zip(manifests, listed.lengths.tolist(), strict=True)),
            book,
        )


@dataclass(frozen=True)
class _Merged:
    """A root whose files are the sum of its base list and its delta list, each as manifest numbers."""

    root: PaimonRoot
    base: frozenset[int]
    delta: frozenset[int]

    def all(self) -> frozenset[int]:
        return self.base | self.delta

    def continues(self, before: _Merged, net: Any) -> bool:
        """Whether its base list may equal the sum of the snapshot before it: the same number of files and rows."""
        if not self.root.follows(before.root) or self.root.rows_before not in (None, before.root.rows):
            return False
        had = before.all()
        gone, new = list(had - self.base), list(self.base - had)
        return bool(net[gone].sum() == net[new].sum())


def _runs(merged: Sequence[_Merged], net: Any) -> list[list[_Merged]]:
    """Groups of consecutive snapshots, each of which seems to continue the one before it."""
    runs: list[list[_Merged]] = []
    for each in merged:
        if runs and each.continues(runs[-1][-1], net):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def _short(run: Sequence[_Merged]) -> list[frozenset[int]]:
    """The manifests to read for a run: all of the first and the last snapshot, and only the deltas in between."""
    return [run[0].all(), *(root.delta for root in run[1:-1]), *(root.all() for root in run[1:][-1:])]


@dataclass(frozen=True)
class _Needs:
    files: Any
    metadata: frozenset[str]
    sizes: dict[str, int]
    book: _Book

    def told(self, files: Any, metadata: Collection[str]) -> pa.Table:
        """The rows of these files (sorted hashes) and metadata paths: path, kind, size (null if unknown)."""
        paths = sorted(metadata)
        own = pa.table(
            {
                "path": pa.array(paths, pa.string()),
                "kind": pa.array([_kind(path) for path in paths], pa.string()),
                "size": pa.array([self.sizes.get(path) for path in paths], pa.int64()),
            },
            schema=UNREACHED,
        )
        seen = np.zeros(len(files), dtype=bool)
        return pa.concat_tables([own, *(_first_of(table, files, seen) for table in self.book.tables())])


class _Book:
    """The entries of all manifests that some roots name, grouped by manifest."""

    def __init__(
        self, known: CachedMetadata, listed: ListedManifests, indexes: Sequence[str], manifests: Sequence[int]
    ) -> None:
        """`manifests` are the numbers of the manifests whose entries are read."""
        self._known = known
        paths = listed.paths.take(pa.array(manifests, pa.int64())).to_pylist()
        self._wanted = [
            *zip(paths, listed.lengths[list(manifests)].tolist(), strict=True),
            *((path, -1) for path in indexes),
        ]
        self._live = [*listed.live[list(manifests)].tolist(), *(-1 for _ in indexes)]
        self._places = {each: place for place, each in enumerate(manifests)}
        own, parts = own_folders(known.view), []
        self.outside: list[pa.Array] = []  # paths of files outside of the table's location
        for each in self.tables():
            plain = normals(each["path"])
            parts.append((plain_hashes(plain), each["kind"].to_numpy(), each["of"].to_numpy()))
            outside = ~may_be_in(plain, own)
            if outside.any():
                self.outside.append(each["path"].filter(pa.array(outside)).combine_chunks())
        empty = np.empty(0, np.uint64), np.empty(0, np.int8), np.empty(0, np.int32)
        numbers, kinds, of = (np.concatenate(each) for each in zip(*(parts or [empty]), strict=True))
        order = np.argsort(of, kind="stable")
        self._files, self._index = np.unique(numbers[order], return_inverse=True)
        self._kinds = kinds[order]
        self._starts = np.searchsorted(of[order], np.arange(len(self._wanted) + 1))

    def tables(self) -> Iterator[pa.Table]:
        """All entries: of, path, size, kind."""
        # Also one index manifest per snapshot, read like any manifest. No list states its entry count.
        return self._known.rows("manifest", self._wanted, self._live)

    def live(self, sets: Sequence[frozenset[int]]) -> Any:
        """Hashes of the files that are live in at least one of these sets of manifests.

        Neighbouring snapshots share most of their manifests, so only the differences are counted.
        """
        counts = np.zeros(len(self._files), dtype=np.int64)
        ever = np.zeros(len(self._files), dtype=bool)
        before: frozenset[int] = frozenset()
        for own in sets:
            touched = [
                *(self._count(counts, each, -1) for each in before - own),
                *(self._count(counts, each, 1) for each in own - before),
            ]
            for part in touched:
                ever[part[counts[part] > 0]] = True
            before = own
        return self._files[ever]

    def adds_up(self, run: Sequence[_Merged]) -> bool:
        """Whether the first snapshot plus all deltas equals the last one. Then each snapshot continued its predecessor."""
        counts = np.zeros(len(self._files), dtype=np.int64)
        for each in (*run[0].all(), *(each for later in run[1:] for each in later.delta)):
            self._count(counts, each, 1)
        for each in run[-1].all():
            self._count(counts, each, -1)
        return not counts.any()

    def added(self, manifests: Collection[int]) -> Any:
        """Hashes of all files that these manifests add, even if others delete them: a changelog is read entry by entry."""
        parts = [self._entries(manifest) for manifest in manifests]
        added = [index[kinds == ADDED] for index, kinds in parts]
        return self._files[np.unique(np.concatenate(added))] if added else np.empty(0, np.uint64)

    def indexed(self) -> Any:
        """Hashes of the index files in the index manifests."""
        start = self._starts[len(self._places)]
        kinds = self._kinds[start:]
        return self._files[np.unique(self._index[start:][kinds != DELETED])]

    def _entries(self, manifest: int) -> tuple[Any, Any]:
        place = self._places[manifest]
        part = slice(self._starts[place], self._starts[place + 1])
        return self._index[part], self._kinds[part]

    def _count(self, counts: Any, manifest: int, sign: int) -> Any:
        index, kinds = self._entries(manifest)
        np.add.at(counts, index, np.where(kinds == ADDED, sign, -sign))
        return index


def _first_of(table: pa.Table, files: Any, seen: Any) -> pa.Table:
    """The rows of these files (sorted hashes), each file once. `seen` has the files of earlier batches."""
    numbers = hashes(table["path"])
    among = np.flatnonzero(contains(files, numbers))
    places = np.searchsorted(files, numbers[among])
    _, first = np.unique(places, return_index=True)
    fresh = among[first][~seen[places[first]]]
    seen[places[first]] = True
    rows = table.take(pa.array(np.sort(fresh)))
    kinds = ["index" if kind not in (ADDED, DELETED) else "data" for kind in rows["kind"].to_pylist()]
    return pa.Table.from_arrays([rows["path"], pa.array(kinds, pa.string()), rows["size"]], schema=UNREACHED)


def _goes(
    root: PaimonRoot, removed: Collection[int], tags: Collection[str], changelogs: Collection[int]
) -> bool:
    if root.branch != MAIN:
        return False
    if root.kind == "tag":
        return root.name in tags
    return root.id in (removed if root.kind == "snapshot" else changelogs)


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    if name.startswith("manifest-list-"):
        return "manifest-list"
    return "manifest" if name.startswith(("manifest-", "index-manifest-")) else "statistics"


_COMPACTED = "COMPACT"


@dataclass(frozen=True, slots=True)
class RootLists:
    """The lists of a root. `merged`: the live files are the sum of their entries. `changes`, `changelog`: every added file is needed.

    `unread`: only the list itself is kept; the files it names are not needed.
    """

    merged: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    changelog: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()

    @property
    def lists(self) -> tuple[str, ...]:
        return *self.merged, *self.changes, *self.changelog, *self.unread


@dataclass(frozen=True, slots=True)
class Kept:
    """Lists that may have been deleted with a snapshot although other roots name them, and those of them that exist."""

    doubtful: frozenset[str]
    there: frozenset[str]

    def needs(self, path: str) -> bool:
        return path not in self.doubtful or path in self.there


def named_by(handle: Handle, root: PaimonRoot, kept: Kept) -> RootLists:
    """The lists that the root needs.

    A tag keeps the rows of its snapshot, but not the changelog: Paimon's own expiry deletes the changelog too.
    """
    metadata, paths = handle.metadata, _lists(handle.metadata, root)
    if root.kind == "changelog":
        return _of_changelog(handle, root, kept)
    optional = "changelog" not in paths or root.kind == "tag" or not kept.needs(paths["changelog"])
    index, statistics = root.content.get("indexManifest"), root.content.get("statistics")
    return RootLists(
        (paths["base"], paths["delta"]),
        changelog=() if optional else (paths["changelog"],),
        index=(metadata.manifest(index),) if index else (),
        statistics=(f"{metadata.location}/statistics/{statistics}",) if statistics else (),
    )


def _of_changelog(handle: Handle, root: PaimonRoot, kept: Kept) -> RootLists:
    """The lists of a changelog. Without a changelog producer, readers use the delta list of a commit as its changelog.

    The delta list of a compaction is never read; it stays because Paimon's own expiry needs it to find replaced files.
    """
    paths = _lists(handle.metadata, root)
    changelog = (paths["changelog"],) if "changelog" in paths else ()
    wanted = "delta" in paths and not _produced(handle, root) and kept.needs(paths["delta"])
    delta = (paths["delta"],) if wanted else ()
    if root.content["commitKind"] == _COMPACTED:
        return RootLists(changelog=changelog, unread=delta)
    return RootLists(changes=delta, changelog=changelog)


def _produced(handle: Handle, root: PaimonRoot) -> bool:
    """Whether a writer produced a separate changelog, which readers use."""
    then = root.branch == MAIN and root.content.get("schemaId") in handle.metadata.producing
    return bool(then and handle.produces_changelogs)


def kept_lists(handle: Handle, roots: Sequence[PaimonRoot], existing: Existing) -> Kept:
    """Lists that expire with a snapshot of main although other roots name them: returns those that still exist.

    There are three cases. A changelog that outlives its snapshot names the snapshot's delta list (if writers produce
    changelogs, readers use these instead, and Paimon deletes the deltas). The first snapshot of a branch shares its changelog
    list with main. And main itself may have been rolled back to a tag, or fast-forwarded to a branch, whose snapshot
    had expired.
    """
    metadata = handle.metadata
    copied = {
        _lists(metadata, root).get("changelog", "")
        for root in metadata.roots
        if root.kind == "tag" or root.branch != MAIN
    }
    doubtful = set()
    for root in roots:
        paths = _lists(metadata, root)
        if root.kind == "changelog":
            doubtful.add("" if _produced(handle, root) else paths.get("delta", ""))
        elif root.kind == "snapshot":
            doubtful |= {paths.get("changelog", "")} & copied
    doubtful.discard("")
    return Kept(frozenset(doubtful), frozenset(existing(sorted(doubtful)) if doubtful else ()))


def _lists(metadata: PaimonMetadata, root: PaimonRoot) -> dict[str, str]:
    names = {name: root.content.get(f"{name}ManifestList") for name in ("base", "delta", "changelog")}
    return {name: metadata.manifest(each) for name, each in names.items() if each}


def list_lengths(metadata: PaimonMetadata, roots: Sequence[PaimonRoot]) -> dict[str, int]:
    """The lengths of lists as recorded in snapshots. A list truncated at the end of a block would otherwise look complete."""
    return {
        metadata.manifest(root.content[f"{name}ManifestList"]): int(root.content[f"{name}ManifestListSize"])
        for root in roots
        for name in ("base", "delta", "changelog")
        if root.content.get(f"{name}ManifestList") and root.content.get(f"{name}ManifestListSize")
    }
