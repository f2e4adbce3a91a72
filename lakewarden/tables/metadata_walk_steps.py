"""Helpers to build a survey in any format: numbered manifests, their entries, and the paths of file numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lakewarden.model.location import hashes
from lakewarden.tables.metadata_cache import MetadataReader
from lakewarden.tables.metadata_walk import FileEntries, Lists, Manifests, UnreadableMetadata, WalkRoot
from lakewarden.tables.reachability import contains

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
