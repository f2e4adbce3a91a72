"""The result of reading all of a table's metadata even if parts are broken: the named files, and the unreadable ones.

`ReachableFiles` is complete or raises; a survey continues after errors. It is used to report what is wrong (fsck), never to decide
that a file is not needed. Files are numbers (lakewarden/model/location.py), 22 bytes each, so millions of files fit.

The last part helps to build a survey in any format: numbered manifests, their entries, and the paths of
file numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lakewarden.model.location import hashes
from lakewarden.tables.metadata_cache import MetadataReader
from lakewarden.tables.reachability import contains

# The file kinds; `FileEntries.kinds` has indexes into this list.
KINDS = (
    "data file",
    "position delete file",
    "equality delete file",
    "deletion vector",
    "index file",
    "changelog file",
)
DATA, VECTOR, INDEX, CHANGELOG = 0, 3, 4, 5
DELETES = (1, 2, VECTOR)
# Kinds of which several entries may share one file: deletion vectors, and the changelogs of several buckets.
_SHARED = (VECTOR, CHANGELOG)


@dataclass(frozen=True, slots=True)
class UnreadableMetadata:
    """A metadata file that could not be read, and why. The files it names are unknown."""

    kind: Literal["manifest list", "manifest", "index manifest"]
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class MissingMetadata:
    """A missing metadata file. Other files prove that it existed: readers look for it, or the numbering has a gap."""

    kind: Literal["current", "branch", "schema", "gap"]
    path: str
    what: str


CopyKind = Literal["", "tag", "branch", "changelog", "gap"]


@dataclass(frozen=True, slots=True)
class WalkRoot:
    """A snapshot: one of the table's own history, or a copy of one, e.g. in a Paimon tag.

    `copy` names the owner of the copy (`tag audit`) and `copy_kind` its kind: `tag`, `branch`, `changelog` or `gap`. Both
    are empty for the table's own history. `adds_up`: manifest entries add and delete files, and the live files are the sum;
    otherwise every named file is live. `records` is the row count that the snapshot states; None if it states none or
    there is nothing to compare it with.
    """

    snapshot_id: int
    lists: tuple[str, ...]
    copy: str = ""
    adds_up: bool = False
    records: int | None = None
    copy_kind: CopyKind = ""


@dataclass(frozen=True, slots=True)
class Lists:
    """The manifests that the roots name: pairs of an index in `roots` (`of`, sorted) and a manifest number (`manifests`)."""

    roots: tuple[WalkRoot, ...]
    of: Any
    manifests: Any

    def naming(self, manifests: Any) -> tuple[WalkRoot, ...]:
        """The roots that name one of these manifests."""
        places = np.unique(self.of[np.isin(self.manifests, manifests)])
        return tuple(self.roots[place] for place in places.tolist())

    def manifests_at(self, place: int) -> Any:
        """The numbers of the manifests that one root names. A manifest that is named twice occurs twice."""
        first, end = np.searchsorted(self.of, (place, place + 1))
        return self.manifests[first:end]


@dataclass(frozen=True, slots=True)
class Manifests:
    """All manifests, each once. `live`: the entry count its list states (-1: unknown). `found`: the real count (-1: not read).

    `records`: rows added minus rows deleted, for formats that count rows this way.
    """

    paths: pa.Array
    numbers: Any
    lengths: Any
    live: Any
    found: Any
    records: Any = None


@dataclass(frozen=True, slots=True)
class FileEntries:
    """One row per manifest entry: hash of the file's path, size (-1: unknown), kind, manifest number, and sign: 1 if the
    entry adds the file, -1 if it deletes it."""

    numbers: Any
    sizes: Any
    kinds: Any
    manifests: Any
    signs: Any

    def among(self, wanted: Any) -> FileEntries:
        """The rows whose path hash is in these sorted numbers."""
        rows = contains(wanted, self.numbers)
        return FileEntries(
            self.numbers[rows], self.sizes[rows], self.kinds[rows], self.manifests[rows], self.signs[rows]
        )


@dataclass(frozen=True)
class WalkResult:
    """Everything a table's metadata names. `unread` describes parts that Lakewarden cannot read at all.

    `spell` turns file numbers into paths. `statistics` are the statistics files of the roots. `lost` are missing metadata files.
    """

    lists: Lists
    manifests: Manifests
    files: FileEntries
    broken: tuple[UnreadableMetadata, ...]
    unread: tuple[str, ...]
    spell: Callable[[Any], pa.Array]
    statistics: tuple[str, ...] = ()
    lost: tuple[MissingMetadata, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.broken and not self.unread and not self.lost

    def own(self, snapshot_id: int | None) -> WalkRoot | None:
        """The snapshot with this id in the table's own history; None if there is none."""
        return self._own.get(snapshot_id) if snapshot_id is not None else None

    def is_whole(self, root: WalkRoot | None) -> bool:
        """Whether all lists and manifests of this root were read."""
        return root is not None and root in self._places and bool(self._whole[self._places[root]])

    def unsure(self) -> tuple[WalkRoot, ...]:
        """Roots whose live files are unknown: an unreadable entry may delete a file that another entry adds."""
        return tuple(root for root in self.lists.roots if root.adds_up and not self.is_whole(root))

    def live(self) -> Any:
        """The sorted numbers of all files that some root needs."""
        plain = np.zeros(len(self.manifests.paths), dtype=bool)
        for place, root in enumerate(self.lists.roots):
            if not root.adds_up:
                plain[self.lists.manifests_at(place)] = True
        numbers = [self.files.numbers[plain[self.files.manifests] & (self.files.signs > 0)]]
        if any(root.adds_up for root in self.lists.roots):
            tally = _Tally(self, np.arange(len(self.files.numbers)), most=0)
            ever = np.zeros(len(tally.numbers), dtype=bool)
            for place in self._adding():
                changed = tally.turn_to(self.lists.manifests_at(place))
                ever[changed[tally.over[changed]]] = True
            numbers.append(tally.numbers[ever])
        return np.unique(np.concatenate(numbers))

    def needing(self, numbers: Any) -> tuple[WalkRoot, ...]:
        """The roots that need one of these files (`numbers` are sorted). Roots that add up count only if they are whole."""
        rows = np.flatnonzero(contains(numbers, self.files.numbers))
        added = np.unique(self.files.manifests[rows[self.files.signs[rows] > 0]])
        roots = {root for root in self.lists.naming(added) if not root.adds_up}
        if adding := list(self._adding()):
            tally = _Tally(self, rows, most=0)
            for place in adding:
                tally.turn_to(self.lists.manifests_at(place))
                if tally.exceeding:
                    roots.add(self.lists.roots[place])
        return tuple(root for root in self.lists.roots if root in roots)

    def needed_by(self, root: WalkRoot | None, numbers: Any) -> Any:
        """For each of the sorted numbers: whether the root needs that file."""
        if root is None:
            return np.zeros(len(numbers), dtype=bool)
        mine = np.isin(self.files.manifests, self.lists.manifests_at(self._places[root]))
        if not root.adds_up:
            return contains(np.unique(self.files.numbers[mine & (self.files.signs > 0)]), numbers)
        named, dense = np.unique(self.files.numbers[mine], return_inverse=True)
        sums = np.bincount(dense, self.files.signs[mine], len(named))
        return contains(named[sums > 0], numbers)

    def counts(self, root: WalkRoot) -> dict[int, int]:
        """The number of files that the root needs, by kind."""
        often = np.bincount(self.lists.manifests_at(self._places[root]), minlength=len(self.manifests.paths))
        weights = often[self.files.manifests] * self.files.signs
        return {kind: int(weights[self.files.kinds == kind].sum()) for kind in range(len(KINDS))}

    def records(self, root: WalkRoot) -> int:
        """The sum of the row counts of the root's manifests."""
        return int(self.manifests.records[self.lists.manifests_at(self._places[root])].sum())

    def named_twice(self) -> dict[WalkRoot, Any]:
        """For each root: the sorted numbers of files with two live entries. Kinds that may share a file are not reported."""
        alone = ~np.isin(self.files.kinds, _SHARED)
        rows = np.flatnonzero(alone & (self.files.signs > 0))
        _, dense, often = np.unique(self.files.numbers[rows], return_inverse=True, return_counts=True)
        suspects = np.unique(self.files.numbers[rows[often[dense] > 1]])
        if not len(suspects):
            return {}
        rows = np.flatnonzero(alone & contains(suspects, self.files.numbers))
        plain = [place for place, root in enumerate(self.lists.roots) if not root.adds_up]
        repeated: dict[WalkRoot, Any] = {}
        for places, chosen in ((plain, rows[self.files.signs[rows] > 0]), (self._adding(), rows)):
            tally = _Tally(self, chosen, most=1)
            for place in places:
                tally.turn_to(self.lists.manifests_at(place))
                if tally.exceeding:
                    repeated[self.lists.roots[place]] = tally.numbers[tally.over]
        return repeated

    def listed_twice(self) -> dict[WalkRoot, Any]:
        """For each root: the numbers of manifests that it names twice, so that their rows are read twice."""
        repeated = {}
        for place, root in enumerate(self.lists.roots):
            named, often = np.unique(self.lists.manifests_at(place), return_counts=True)
            if (often > 1).any():
                repeated[root] = named[often > 1]
        return repeated

    def _adding(self) -> Iterator[int]:
        """The indexes of whole roots whose entries add up."""
        return (place for place, root in enumerate(self.lists.roots) if root.adds_up and self._whole[place])

    @cached_property
    def _places(self) -> dict[WalkRoot, int]:
        return {root: place for place, root in enumerate(self.lists.roots)}

    @cached_property
    def _own(self) -> dict[int, WalkRoot]:
        return {root.snapshot_id: root for root in self.lists.roots if not root.copy}

    @cached_property
    def _whole(self) -> Any:
        """For each root: whether all its lists and manifests were read."""
        unread = {each.path for each in self.broken if each.kind == "manifest list"}
        missing = np.unique(self.lists.of[self.manifests.found[self.lists.manifests] < 0])
        whole = np.array([unread.isdisjoint(root.lists) for root in self.lists.roots], dtype=bool)
        whole[missing] = False
        return whole


class _Tally:
    """Counts how often each file is named, root by root. Neighbouring roots share most manifests, so only differences are counted.

    `numbers` are the files, sorted. `over`: which of them are named more often than `most`. `exceeding`: how many these are.
    """

    def __init__(self, survey: WalkResult, rows: Any, most: int) -> None:
        files = survey.files
        order = np.argsort(files.manifests[rows], kind="stable")
        self.numbers, dense = np.unique(files.numbers[rows], return_inverse=True)
        self._files, self._signs = dense[order], files.signs[rows][order].astype(np.int64)
        every = np.arange(len(survey.manifests.paths) + 1)
        self._starts = np.searchsorted(files.manifests[rows][order], every)
        self._counts = np.zeros(len(self.numbers), dtype=np.int64)
        self._most = most
        self._own = np.empty(0, dtype=np.int64)
        self.over = np.zeros(len(self.numbers), dtype=bool)
        self.exceeding = 0

    def turn_to(self, manifests: Any) -> Any:
        """Change the counts to those of these manifests. Returns the indexes of files whose count may have changed."""
        own = np.unique(manifests)
        own = own[self._starts[own] < self._starts[own + 1]]
        touched = [
            *(self._count(each, -1) for each in np.setdiff1d(self._own, own)),
            *(self._count(each, 1) for each in np.setdiff1d(own, self._own)),
        ]
        self._own = own
        changed = np.unique(np.concatenate(touched)) if touched else np.empty(0, dtype=np.int64)
        over = self._counts[changed] > self._most
        self.exceeding += int(over.sum()) - int(self.over[changed].sum())
        self.over[changed] = over
        return changed

    def _count(self, manifest: int, times: int) -> Any:
        part = slice(self._starts[manifest], self._starts[manifest + 1])
        np.add.at(self._counts, self._files[part], self._signs[part] * times)
        return self._files[part]


# Rows are hashed in batches of this size: hashing one by one would cost more than reading them.
PORTION = 200_000


@dataclass
class Register:
    """Gives each manifest one number, however its path is spelled."""

    known: dict[int, int] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)

    def number(self, listed: pa.Table) -> Any:
        """The manifest number of each entry. Lists share most manifests, so only distinct paths are processed."""
        if not listed.num_rows:
            return np.empty(0, dtype=np.int32)
        encoded = listed["manifest"].combine_chunks().dictionary_encode()
        places = encoded.indices.to_numpy()
        _, first = np.unique(places, return_index=True)
        rows = listed.take(pa.array(first)).to_pylist()
        keys = hashes(encoded.dictionary).tolist()
        numbers = [self._enter(key, row) for key, row in zip(keys, rows, strict=True)]
        return np.array(numbers, dtype=np.int32)[places]

    def _enter(self, key: int, row: Mapping[str, Any]) -> int:
        manifest = self.known.setdefault(key, len(self.paths))
        if manifest == len(self.paths):
            self.paths.append(row["manifest"])
            self.lengths.append(row["length"])
            self.live.append(row["live"])
            self.encrypted.append(row["encrypted"])
        return manifest

    def manifests(self, found: Any, records: Any = None) -> Manifests:
        spelled = pa.array(self.paths, pa.string())
        lengths, live = (np.array(each, dtype=np.int64) for each in (self.lengths, self.live))
        return Manifests(spelled, hashes(spelled), lengths, live, found, records)


def number_lists(
    read: Iterable[tuple[str, pa.Table | None, str]], register: Register, broken: list[UnreadableMetadata]
) -> dict[str, Any]:
    """For each list the manifest numbers of its entries. Lists that cannot be read are returned as broken."""
    numbers: dict[str, Any] = {}
    waiting: list[tuple[str, pa.Table]] = []
    rows = 0
    for path, table, trouble in read:
        if table is None:
            broken.append(UnreadableMetadata("manifest list", path, plain(trouble)))
            continue
        waiting.append((path, table))
        rows += table.num_rows
        if rows >= PORTION:
            numbers |= _numbered(waiting, register)
            waiting, rows = [], 0
    return numbers | _numbered(waiting, register)


def _numbered(tables: Sequence[tuple[str, pa.Table]], register: Register) -> dict[str, Any]:
    if not tables:
        return {}
    numbers = register.number(pa.concat_tables([table for _, table in tables]))
    ends = np.cumsum([table.num_rows for _, table in tables])
    parts = np.split(numbers, ends[:-1])
    return {path: part for (path, _), part in zip(tables, parts, strict=True)}


def lists_of(roots: Sequence[WalkRoot], manifests: Sequence[Any]) -> Lists:
    """The `Lists` of these roots. `manifests` has the manifest numbers of each root, in the same order."""
    of = [np.full(len(each), place, dtype=np.int32) for place, each in enumerate(manifests)]
    return Lists(tuple(roots), joined(of, np.int32), joined(list(manifests), np.int32))


@dataclass
class Rows:
    """Collects manifest entries and hashes them in batches. `kinds` returns the kind and the sign of each entry."""

    kinds: Callable[[pa.Table], tuple[Any, Any]]
    tables: list[pa.Table] = field(default_factory=list)
    of: list[Any] = field(default_factory=list)
    done: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)
    waiting: int = 0

    def add(self, manifest: int, table: pa.Table) -> None:
        self.tables.append(table)
        self.of.append(np.full(table.num_rows, manifest, dtype=np.int32))
        self.waiting += table.num_rows
        if self.waiting >= PORTION:
            self._hash()

    def files(self) -> FileEntries:
        self._hash()
        numbers, sizes, kinds, signs = (
            (list(each) for each in zip(*self.done, strict=True)) if self.done else ([],) * 4
        )
        return FileEntries(
            joined(numbers, np.uint64),
            joined(sizes, np.int64),
            joined(kinds, np.int8),
            joined(self.of, np.int32),
            joined(signs, np.int8),
        )

    def _hash(self) -> None:
        if self.tables:
            table = pa.concat_tables(self.tables)
            sizes = table["size"].fill_null(-1).to_numpy()
            self.done.append((hashes(table["path"]), sizes, *self.kinds(table)))
        self.tables, self.waiting = [], 0


@dataclass(frozen=True, slots=True)
class Spelling:
    """Finds the paths of file numbers. Paths are not kept in memory; the manifests that name them are read again."""

    manifests: Manifests
    files: FileEntries
    reader: MetadataReader
    io: Mapping[str, str]

    def spell(self, numbers: Any) -> pa.Array:
        """One path for each of these sorted numbers that is named by a manifest."""
        spelled = [each for table in self._tables(numbers) for each in self._among(table, numbers)]
        if not spelled:
            return pa.array([], pa.string())
        paths = pa.concat_arrays(spelled)
        _, first = np.unique(hashes(paths), return_index=True)
        return paths.take(pa.array(first))

    def _tables(self, numbers: Any) -> Iterator[pa.Table]:
        chosen = np.unique(self.files.manifests[contains(numbers, self.files.numbers)])
        paths = self.manifests.paths.take(pa.array(chosen)).to_pylist()
        files = [(path, -1, -1) for path in paths]
        return (table for _, table, _ in self.reader.manifests(files, self.io) if table is not None)

    def _among(self, table: pa.Table, numbers: Any) -> Iterator[pa.Array]:
        kept = table["path"].filter(pa.array(contains(numbers, hashes(table["path"]))))
        yield from kept.chunks


def joined(parts: Sequence[Any], kind: Any) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)


def plain(trouble: str) -> str:
    """The reader's message without the name of the exception class."""
    return trouble.removeprefix("ValueError: ")
