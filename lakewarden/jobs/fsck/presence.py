"""Checks whether the files that a table names exist: lists its folders once, and stats every file outside of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lakewarden.model.location import hashes
from lakewarden.model.table import TableView
from lakewarden.storage.objects import LISTING, Objects
from lakewarden.tables.metadata_walk import WalkResult
from lakewarden.tables.reachability import contains

# The batch size for stats of files outside of the table's folders.
_ASKED_AT_ONCE = 1_000
# A folder that only a table property names may contain anything: its listing stops after this many surplus files.
_STRANGERS = 10_000
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ReferencedFiles:
    """All files that the table names, each once: sorted hashes, sizes (-1: unknown). `metadata` are paths in no manifest."""

    numbers: Any
    sizes: Any
    metadata: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Presence:
    """The result. `absent` are sorted numbers of missing files; `odd` has the real size of files with a wrong size.

    `unnamed` are files in the table's own folders that it does not name.
    """

    absent: Any
    odd: Mapping[int, int]
    empty: frozenset[int]
    paths: Mapping[int, str]
    listed: int
    unnamed: pa.Table

    def among(self, numbers: Any) -> Any:
        """The missing files among these sorted numbers."""
        return self.absent[contains(numbers, self.absent)]


def wanted(view: TableView, survey: WalkResult) -> ReferencedFiles:
    """All files to look for. If the metadata has two sizes of one file, the first counts."""
    own = list(own_files(view, survey))
    numbers = hashes(pa.array(own, pa.string()))
    manifests = survey.manifests
    everything = np.concatenate([survey.files.numbers, manifests.numbers, numbers])
    unknown = np.full(len(own), _UNKNOWN, dtype=np.int64)
    sizes = np.concatenate([survey.files.sizes, manifests.lengths, unknown])
    unique, first = np.unique(everything, return_index=True)
    spelled = dict(zip(manifests.numbers.tolist(), manifests.paths.to_pylist(), strict=True))
    return ReferencedFiles(unique, sizes[first], spelled | dict(zip(numbers.tolist(), own, strict=True)))


def own_files(view: TableView, survey: WalkResult) -> Iterable[str]:
    """The metadata file and all files that it names directly."""
    yield view.metadata_location
    yield from view.metadata_log
    yield from dict.fromkeys(path for root in survey.lists.roots for path in root.lists)
    yield from (path for _, path in view.statistics)
    yield from survey.statistics


def look_for(
    objects: Objects,
    own: Sequence[str],
    named: Sequence[str],
    wanted: ReferencedFiles,
    spell: Callable[[Any], pa.Array],
) -> Presence:
    """Look for all files. The table's own folders are listed completely. In folders that only a table property names, only
    the table's files are looked for.

    `spell` returns the paths of file numbers from manifests.
    """
    looking = _Looking(wanted)
    for folder in own:
        for batch in objects.list(folder):
            looking.saw(batch, unnamed=True)
    for folder in named:
        most = looking.listed + len(wanted.numbers) + _STRANGERS
        for batch in objects.list(folder):
            looking.saw(batch, unnamed=False)
            if looking.listed > most:
                break
    looking.ask(objects, spell)
    return looking.presence()


@dataclass
class _Looking:
    """A running search. It keeps one bit per file, and paths only of files with a problem."""

    wanted: ReferencedFiles
    seen: Any = None
    gone: list[int] = field(default_factory=list)
    odd: dict[int, int] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)
    paths: dict[int, str] = field(default_factory=dict)
    unnamed: list[pa.RecordBatch] = field(default_factory=list)
    listed: int = 0

    def __post_init__(self) -> None:
        self.seen = np.zeros(len(self.wanted.numbers), dtype=bool)

    def saw(self, batch: pa.RecordBatch, *, unnamed: bool) -> None:
        """Process files of a listing. With `unnamed`, files that the table does not name are kept."""
        numbers = hashes(batch.column("path"))
        named = contains(self.wanted.numbers, numbers)
        self.listed += batch.num_rows
        rest = batch.filter(pa.array(~named))
        if unnamed and rest.num_rows:
            self.unnamed.append(rest)
        sizes = batch.column("size").to_numpy()
        places = np.searchsorted(self.wanted.numbers, numbers[named])
        self._mark(places, sizes[named], batch.column("path").filter(pa.array(named)))

    def _mark(self, places: Any, sizes: Any, paths: pa.Array) -> None:
        self.seen[places] = True
        stated = self.wanted.sizes[places]
        wrong = np.flatnonzero(((stated != _UNKNOWN) & (stated != sizes)) | (sizes == 0))
        for row in wrong.tolist():
            number, size = int(self.wanted.numbers[places[row]]), int(sizes[row])
            self.paths[number] = paths[row].as_py()
            if stated[row] not in (_UNKNOWN, size):
                self.odd[number] = size
            else:
                self.empty.add(number)

    def ask(self, objects: Objects, spell: Callable[[Any], pa.Array]) -> None:
        """Stat the files that no listing contained: they are elsewhere or missing."""
        numbers = self.wanted.numbers[~self.seen]
        own = [self.wanted.metadata[number] for number in numbers.tolist() if number in self.wanted.metadata]
        paths = pa.concat_arrays([pa.array(own, pa.string()), spell(numbers)])
        for start in range(0, len(paths), _ASKED_AT_ONCE):
            self._ask(objects, paths[start : start + _ASKED_AT_ONCE])

    def _ask(self, objects: Objects, paths: pa.Array) -> None:
        stats = objects.stat(paths.to_pylist())
        there = np.array([stat is not None for stat in stats], dtype=bool)
        numbers = hashes(paths)
        sizes = np.array([stat.size for stat in stats if stat is not None], dtype=np.int64)
        places = np.searchsorted(self.wanted.numbers, numbers[there])
        self._mark(places, sizes, paths.filter(pa.array(there)))
        gone = numbers[~there].tolist()
        self.gone += gone
        self.paths.update(zip(gone, paths.filter(pa.array(~there)).to_pylist(), strict=True))

    def presence(self) -> Presence:
        return Presence(
            np.unique(np.array(self.gone, dtype=np.uint64)),
            self.odd,
            frozenset(self.empty),
            self.paths,
            self.listed,
            pa.Table.from_batches(self.unnamed, LISTING),
        )
