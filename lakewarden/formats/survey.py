"""A table's metadata walked to its end, whatever is broken on the way: what it names, and what could not be read.

Where `Reached` must be complete or not be at all, a survey goes on. It is for telling what is wrong, never for deciding
that a file is not needed. Files are numbers here (lakewarden/paths.py), 21 bytes each: tables of millions of them fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lakewarden.safety.reached import contains

# What `Files.kinds` counts. Several deletion vectors share one file.
KINDS = ("data file", "position delete file", "equality delete file", "deletion vector")
DATA, VECTOR = 0, 3


@dataclass(frozen=True, slots=True)
class Broken:
    """A file of metadata that could not be read, and why: what it names is not known."""

    kind: Literal["manifest list", "manifest"]
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lists:
    """One list per snapshot. `of` (sorted) and `manifests` are parallel: one pair per entry, by number."""

    snapshot_ids: tuple[int, ...]
    paths: tuple[str, ...]
    of: Any
    manifests: Any

    def naming(self, manifests: Any) -> tuple[int, ...]:
        """Snapshots whose list names one of these manifests."""
        found = np.unique(self.of[np.isin(self.manifests, manifests)])
        return tuple(self.snapshot_ids[each] for each in found.tolist())

    def manifests_of(self, snapshot_id: int | None) -> Any:
        """Numbers of the manifests the snapshot's list names; a manifest named twice is there twice."""
        if snapshot_id not in self.snapshot_ids:
            return self.manifests[:0]
        place = self.snapshot_ids.index(snapshot_id)
        first, end = np.searchsorted(self.of, (place, place + 1))
        return self.manifests[first:end]


@dataclass(frozen=True, slots=True)
class Manifests:
    """Each manifest once. `live` is how many files its list says it names (-1: not told), `found` how many it does (-1: not read)."""

    paths: pa.Array
    numbers: Any
    lengths: Any
    live: Any
    found: Any


@dataclass(frozen=True, slots=True)
class Files:
    """A row for every time a manifest names a live file: the hash of its path, its size, its kind, the manifest's number."""

    numbers: Any
    sizes: Any
    kinds: Any
    manifests: Any


@dataclass(frozen=True, slots=True)
class Survey:
    """`unread` says in words what was left out because it cannot be read by anyone here. `spell` gives paths to numbers."""

    lists: Lists
    manifests: Manifests
    files: Files
    broken: tuple[Broken, ...]
    unread: tuple[str, ...]
    spell: Callable[[Any], pa.Array]

    @property
    def complete(self) -> bool:
        return not self.broken and not self.unread

    def is_whole(self, snapshot_id: int | None) -> bool:
        """Whether everything this snapshot names is known."""
        if snapshot_id not in self.lists.snapshot_ids:
            return False
        place = self.lists.snapshot_ids.index(snapshot_id)
        if any(each.path == self.lists.paths[place] for each in self.broken):
            return False
        return bool((self.manifests.found[self.lists.manifests_of(snapshot_id)] >= 0).all())

    def needing(self, numbers: Any) -> tuple[int, ...]:
        """Snapshots that need one of these files; `numbers` are sorted."""
        return self.lists.naming(np.unique(self.files.manifests[contains(numbers, self.files.numbers)]))

    def needed_by(self, snapshot_id: int | None, numbers: Any) -> Any:
        """For each of the sorted numbers whether the snapshot needs that file."""
        mine = np.isin(self.files.manifests, self.lists.manifests_of(snapshot_id))
        return contains(np.unique(self.files.numbers[mine]), numbers)

    def counts(self, snapshot_id: int) -> dict[int, int]:
        """By kind, how often the snapshot names files."""
        often = np.bincount(self.lists.manifests_of(snapshot_id), minlength=len(self.manifests.paths))
        weights = often[self.files.manifests]
        return {kind: int(weights[self.files.kinds == kind].sum()) for kind in range(len(KINDS))}

    def named_twice(self) -> dict[int, Any]:
        """By snapshot, sorted numbers of files that two live entries of it name. Vectors that share a file are none."""
        rows = np.flatnonzero(self.files.kinds != VECTOR)
        numbers, dense, often = np.unique(self.files.numbers[rows], return_inverse=True, return_counts=True)
        suspects = often[dense] > 1
        dense, manifests = dense[suspects], self.files.manifests[rows][suspects]
        if not len(dense):
            return {}
        found = {}
        for snapshot_id in self.lists.snapshot_ids:
            mine = np.zeros(len(self.manifests.paths), dtype=bool)
            mine[self.lists.manifests_of(snapshot_id)] = True
            twice = np.bincount(dense[mine[manifests]], minlength=0) > 1
            if twice.any():
                found[snapshot_id] = numbers[np.flatnonzero(twice)]
        return found

    def listed_twice(self) -> dict[int, Any]:
        """By snapshot, numbers of manifests that its list names twice: each of their rows is read twice."""
        found = {}
        for snapshot_id in self.lists.snapshot_ids:
            named, often = np.unique(self.lists.manifests_of(snapshot_id), return_counts=True)
            if (often > 1).any():
                found[snapshot_id] = named[often > 1]
        return found
