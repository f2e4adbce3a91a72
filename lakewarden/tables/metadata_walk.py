"""The result of reading all of a table's metadata even if parts are broken: the named files, and the unreadable ones.

`ReachableFiles` is complete or raises; a survey continues after errors. It is used to report what is wrong (fsck), never to decide
that a file is not needed. Files are numbers (lakewarden/model/location.py), 22 bytes each, so millions of files fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

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
