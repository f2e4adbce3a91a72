"""What a Paimon table needs: everything its snapshots, tags, branches and changelogs lead to.

A snapshot has a list of the manifests it took over and one of those it added. A manifest's entries add files and delete them;
live is what the entries of all of a snapshot's manifests add up to. That is a sum, so neither the order of entries nor that
of snapshots matters: a file deleted and added again is live, wherever the two entries stand.

Named is not needed: a manifest goes on naming a file that it deletes long after the last snapshot that could read it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lakewarden.formats.paimon.metadata import MAIN, Root
from lakewarden.formats.paimon.reader import ADDED, DELETED
from lakewarden.formats.remembered import UNREACHED, Listed, Remembered
from lakewarden.model import TableView
from lakewarden.paths import hashes
from lakewarden.safety.reached import Reached, contains

_COMPACTED = "COMPACT"


@dataclass(frozen=True)
class Reach:
    """Asks one table's metadata, through the cache."""

    view: TableView
    known: Remembered
    # Which of these paths are there: a changelog may name a list that went with its snapshot.
    existing: Callable[[Sequence[str]], set[str]]

    def reached(self, snapshot_ids: Collection[int] | None = None) -> Reached:
        """Every file that these snapshots of main need (all roots, when not said), and the table's own metadata."""
        roots = self._roots
        if snapshot_ids is not None:
            roots = [each for each in roots if each.is_main_snapshot and each.id in snapshot_ids]
        needs = self._needs(roots)
        own = [*needs.metadata, *self._own(roots, snapshot_ids is None)]
        if snapshot_ids is None:
            self.known.tidy(needs.metadata, needs.metadata)
        return Reached(
            self.view.ref,
            self.view.uuid,
            self.view.metadata_location,
            tuple(each.id for each in roots if each.is_main_snapshot),
            np.unique(np.concatenate([needs.files, hashes(own)])),
            hashes(self._hints()),
        )

    def unreached(
        self, removed: Collection[int], tags: Collection[str] = (), changelogs: Collection[int] = ()
    ) -> pa.Table:
        """What is reachable now and would not be without these snapshots, tags and changelogs of main."""
        go = [each for each in self._roots if _goes(each, removed, tags, changelogs)]
        stay = [each for each in self._roots if not _goes(each, removed, tags, changelogs)]
        if self.view.handle.decoupled:  # the changelogs of what expires stay, as roots of their own
            stay += [
                Root("changelog", MAIN, each.name, each.file, each.content)
                for each in go
                if each.kind == "snapshot" and each.id not in changelogs
            ]
        needed, freed = self._needs(stay), self._needs(go)
        files = np.setdiff1d(freed.files, needed.files)
        metadata = sorted(set(freed.metadata) - set(needed.metadata))
        sizes = freed.sizes
        parts = [
            pa.table(
                {
                    "path": pa.array(metadata, pa.string()),
                    "kind": pa.array([_kind(each) for each in metadata], pa.string()),
                    "size": pa.array([sizes.get(each) for each in metadata], pa.int64()),
                },
                schema=UNREACHED,
            )
        ]
        seen = np.zeros(len(files), dtype=bool)
        parts += [_first_of(table, files, seen) for table in freed.book.tables()]
        return pa.concat_tables(parts)

    def named_paths(self, numbers: Any) -> Iterator[pa.Array]:
        """The metadata and files whose hashes are among these sorted numbers, and that must be there."""
        needs = self._needs([each for each in self._roots if each.kind != "changelog"])
        metadata = pa.array(sorted(needs.metadata), pa.string())
        yield metadata.filter(pa.array(contains(numbers, hashes(metadata))))
        wanted = np.intersect1d(needs.files, numbers)
        for table in needs.book.tables():
            yield table["path"].combine_chunks().filter(pa.array(contains(wanted, hashes(table["path"]))))

    @cached_property
    def _roots(self) -> list[Root]:
        return list(self.view.handle.metadata.roots)

    def _own(self, roots: Sequence[Root], whole: bool) -> list[str]:
        return [*self.view.handle.metadata.files, *self._hints()] if whole else [each.file for each in roots]

    def _hints(self) -> list[str]:
        """Files that say which snapshot is the first and the last. They may be missing or late."""
        metadata = self.view.handle.metadata
        return [
            f"{metadata.location}/{branch}{folder}/{hint}"
            for branch in ("", *(f"branch/branch-{each}/" for each in metadata.branches))
            for folder in ("snapshot", "changelog")
            for hint in ("EARLIEST", "LATEST")
        ]

    def _needs(self, roots: Sequence[Root]) -> _Needs:
        """What these roots keep. Complete, or raises."""
        deltas = self._changelog_deltas(roots)
        per_root = [self._lists(each, deltas) for each in roots]
        lists = list(dict.fromkeys(path for three in per_root for paths in three for path in paths))
        place = {path: number for number, path in enumerate(lists)}
        listed = self.known.listed(lists, self._list_lengths(roots))
        indexes = list(dict.fromkeys(path for root in roots for path in self._index(root)))
        book = _Book(self.known, listed, indexes)
        live = book.live([listed.of([place[path] for path in merged]) for merged, *_ in per_root if merged])
        added = book.added(listed.of(sorted({place[path] for _, plain, _ in per_root for path in plain})))
        statistics = [
            f"{self.view.handle.metadata.location}/statistics/{root.content['statistics']}"
            for root in roots
            if root.content.get("statistics") and root.kind != "changelog"
        ]
        manifests = listed.paths.to_pylist()
        return _Needs(
            np.unique(np.concatenate([live, added, book.indexed()])),
            frozenset([*lists, *manifests, *indexes, *statistics]),
            dict(zip(manifests, listed.lengths.tolist(), strict=True)),
            book,
        )

    def _lists(self, root: Root, deltas: Collection[str]) -> tuple[list[str], list[str], list[str]]:
        """Lists whose entries add up to what is live, those of which every added file is needed, and those that just stay.

        Without a producer of changelogs it is the delta that is read as one: what a commit of new rows added. Of a
        compaction it is never read, and stays because Paimon's own expiry learns from it what was replaced.
        """
        manifest = self.view.handle.metadata.manifest
        told = {name: root.content.get(f"{name}ManifestList") for name in ("base", "delta", "changelog")}
        paths = {name: manifest(each) for name, each in told.items() if each}
        plain = [paths["changelog"]] if "changelog" in paths else []
        if root.kind == "changelog":
            delta = [each for name, each in paths.items() if name == "delta" and each in deltas]
            return ([], plain, delta) if root.content["commitKind"] == _COMPACTED else ([], plain + delta, [])
        return [paths["base"], paths["delta"]], plain, []

    def _produced(self, root: Root) -> bool:
        """Whether a changelog was made by a writer, beside the rows, and is read as such."""
        handle = self.view.handle
        then = root.branch == MAIN and root.content.get("schemaId") in handle.metadata.producing
        return bool(then and handle.produces_changelogs)

    def _list_lengths(self, roots: Sequence[Root]) -> dict[str, int]:
        """A list that was cut short at the end of a block reads like a shorter one: snapshots tell how long each is."""
        manifest = self.view.handle.metadata.manifest
        return {
            manifest(root.content[f"{name}ManifestList"]): int(root.content[f"{name}ManifestListSize"])
            for root in roots
            for name in ("base", "delta", "changelog")
            if root.content.get(f"{name}ManifestList") and root.content.get(f"{name}ManifestListSize")
        }

    def _index(self, root: Root) -> list[str]:
        named = root.content.get("indexManifest")
        return [self.view.handle.metadata.manifest(named)] if named and root.kind != "changelog" else []

    def _changelog_deltas(self, roots: Sequence[Root]) -> set[str]:
        """Lists of deltas that changelogs still need: those that were not deleted together with their snapshots.

        Not where writers produced changelogs, and do so now: these are read instead, and Paimon lets go of the deltas.
        """
        named = {
            self.view.handle.metadata.manifest(each.content["deltaManifestList"])
            for each in roots
            if each.kind == "changelog" and each.content.get("deltaManifestList") and not self._produced(each)
        }
        return self.existing(sorted(named)) if named else set()


@dataclass(frozen=True)
class _Needs:
    files: Any
    metadata: frozenset[str]
    sizes: dict[str, int]
    book: _Book


class _Book:
    """The entries of all manifests that some roots lead to, by manifest."""

    def __init__(self, known: Remembered, listed: Listed, indexes: Sequence[str]) -> None:
        self._known = known
        self._wanted = [
            *zip(listed.paths.to_pylist(), (int(each) for each in listed.lengths), strict=True),
            *((path, -1) for path in indexes),
        ]
        self._live = [*(int(each) for each in listed.live), *(-1 for _ in indexes)]
        self._manifests = len(listed.paths)
        parts = [(hashes(t["path"]), t["kind"].to_numpy(), t["of"].to_numpy()) for t in self.tables()]
        empty = np.empty(0, np.uint64), np.empty(0, np.int8), np.empty(0, np.int32)
        numbers, kinds, of = (np.concatenate(each) for each in zip(*(parts or [empty]), strict=True))
        order = np.argsort(of, kind="stable")
        self._files, self._index = np.unique(numbers[order], return_inverse=True)
        self._kinds = kinds[order]
        self._starts = np.searchsorted(of[order], np.arange(len(self._wanted) + 1))

    def tables(self) -> Iterator[pa.Table]:
        """Every entry: of, path, size, kind."""
        # One index manifest more per snapshot, read like any manifest; how many entries it has, no list tells.
        return self._known.rows("manifest", self._wanted, self._live)

    def live(self, sets: Sequence[Any]) -> Any:
        """Hashes of the files that are live in at least one of these sets of manifests.

        Neighbouring snapshots share nearly all their manifests, so only what comes and goes is counted.
        """
        counts = np.zeros(len(self._files), dtype=np.int64)
        ever = np.zeros(len(self._files), dtype=bool)
        before = np.empty(0, dtype=np.int64)
        for own in sets:
            touched = [
                *(self._count(counts, each, -1) for each in np.setdiff1d(before, own)),
                *(self._count(counts, each, 1) for each in np.setdiff1d(own, before)),
            ]
            for part in touched:
                ever[part[counts[part] > 0]] = True
            before = own
        return self._files[ever]

    def added(self, manifests: Any) -> Any:
        """Hashes of what these manifests add, whatever others delete: a changelog is read entry by entry."""
        parts = [self._entries(each) for each in manifests]
        found = [index[kinds == ADDED] for index, kinds in parts]
        return self._files[np.unique(np.concatenate(found))] if found else np.empty(0, np.uint64)

    def indexed(self) -> Any:
        """Hashes of the index files that the index manifests name."""
        start = self._starts[self._manifests]
        kinds = self._kinds[start:]
        return self._files[np.unique(self._index[start:][kinds != DELETED])]

    def _entries(self, manifest: int) -> tuple[Any, Any]:
        part = slice(self._starts[manifest], self._starts[manifest + 1])
        return self._index[part], self._kinds[part]

    def _count(self, counts: Any, manifest: int, sign: int) -> Any:
        index, kinds = self._entries(manifest)
        np.add.at(counts, index, np.where(kinds == ADDED, sign, -sign))
        return index


def _first_of(table: pa.Table, files: Any, seen: Any) -> pa.Table:
    """The rows of these files (sorted hashes), each file once: `seen` is what earlier portions had."""
    numbers = hashes(table["path"])
    among = np.flatnonzero(contains(files, numbers))
    places = np.searchsorted(files, numbers[among])
    _, first = np.unique(places, return_index=True)
    fresh = among[first][~seen[places[first]]]
    seen[places[first]] = True
    rows = table.take(pa.array(np.sort(fresh)))
    kinds = ["index" if kind not in (ADDED, DELETED) else "data" for kind in rows["kind"].to_pylist()]
    return pa.Table.from_arrays([rows["path"], pa.array(kinds, pa.string()), rows["size"]], schema=UNREACHED)


def _goes(root: Root, removed: Collection[int], tags: Collection[str], changelogs: Collection[int]) -> bool:
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
