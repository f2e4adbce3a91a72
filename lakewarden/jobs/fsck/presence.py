"""Whether the files a table names are there: one listing of its folders, and a question for each file it does not tell of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lakewarden.model.location import hashes
from lakewarden.model.table import TableView
from lakewarden.storage.objects import LISTING, Objects
from lakewarden.tables.metadata_walk import Survey
from lakewarden.tables.reachability import contains

# Files outside of the table's folders are asked for one by one, so many at once.
_ASKED_AT_ONCE = 1_000
# A folder that only the table's writer names may hold anything: its listing ends after this many files more than the table has.
_STRANGERS = 10_000
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Every file the table names, once: sorted hashes, and sizes (-1: not told). `metadata` spells those no manifest names."""

    numbers: Any
    sizes: Any
    metadata: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Presence:
    """What was looked for. `absent` is sorted; `odd` has the size found where it is another than the metadata tells.

    `unnamed` are files of the table's own folders that it does not name.
    """

    absent: Any
    odd: Mapping[int, int]
    empty: frozenset[int]
    paths: Mapping[int, str]
    listed: int
    unnamed: pa.Table

    def among(self, numbers: Any) -> Any:
        """Those of the absent files whose numbers are among these sorted ones."""
        return self.absent[contains(numbers, self.absent)]


def wanted(view: TableView, survey: Survey) -> Wanted:
    """Where metadata tells two sizes of one file, the first counts."""
    own = list(own_files(view, survey))
    numbers = hashes(pa.array(own, pa.string()))
    manifests = survey.manifests
    everything = np.concatenate([survey.files.numbers, manifests.numbers, numbers])
    unknown = np.full(len(own), _UNKNOWN, dtype=np.int64)
    sizes = np.concatenate([survey.files.sizes, manifests.lengths, unknown])
    unique, first = np.unique(everything, return_index=True)
    spelled = dict(zip(manifests.numbers.tolist(), manifests.paths.to_pylist(), strict=True))
    return Wanted(unique, sizes[first], spelled | dict(zip(numbers.tolist(), own, strict=True)))


def own_files(view: TableView, survey: Survey) -> Iterable[str]:
    """Files that the table's metadata file names itself, and that one."""
    yield view.metadata_location
    yield from view.metadata_log
    yield from dict.fromkeys(path for root in survey.lists.roots for path in root.lists)
    yield from (path for _, path in view.statistics)
    yield from survey.statistics


def look_for(
    objects: Objects,
    own: Sequence[str],
    named: Sequence[str],
    wanted: Wanted,
    spell: Callable[[Any], pa.Array],
) -> Presence:
    """The table's own folders are listed whole. Those that only its writer names are listed for the table's files alone.

    `spell` gives paths to numbers of files that manifests name.
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
    """A search under way: a bit for each file, paths only of those something is wrong with."""

    wanted: Wanted
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
        """Files of a listing. With `unnamed` those are kept that the table does not name."""
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
        told = self.wanted.sizes[places]
        wrong = np.flatnonzero(((told != _UNKNOWN) & (told != sizes)) | (sizes == 0))
        for row in wrong.tolist():
            number, size = int(self.wanted.numbers[places[row]]), int(sizes[row])
            self.paths[number] = paths[row].as_py()
            if told[row] not in (_UNKNOWN, size):
                self.odd[number] = size
            else:
                self.empty.add(number)

    def ask(self, objects: Objects, spell: Callable[[Any], pa.Array]) -> None:
        """What was not listed lies elsewhere, or is not there."""
        numbers = self.wanted.numbers[~self.seen]
        own = [self.wanted.metadata[each] for each in numbers.tolist() if each in self.wanted.metadata]
        paths = pa.concat_arrays([pa.array(own, pa.string()), spell(numbers)])
        for start in range(0, len(paths), _ASKED_AT_ONCE):
            self._ask(objects, paths[start : start + _ASKED_AT_ONCE])

    def _ask(self, objects: Objects, paths: pa.Array) -> None:
        stats = objects.stat(paths.to_pylist())
        there = np.array([each is not None for each in stats], dtype=bool)
        numbers = hashes(paths)
        sizes = np.array([each.size for each in stats if each is not None], dtype=np.int64)
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
