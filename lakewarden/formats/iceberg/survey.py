"""An Iceberg table walked to its end for fsck. Read from the store each time: what is remembered proves nothing about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.formats.remembered import MetadataReader
from lakewarden.formats.survey import VECTOR, Broken, Files, Lists, Manifests, Survey
from lakewarden.model import Snapshot, TableView
from lakewarden.paths import hashes
from lakewarden.safety.reached import contains

# Rows are hashed so many at a time: one by one costs more than reading them.
_PORTION = 200_000
# Decoded as position deletes; a vector is a part of a Puffin file.
_POSITION_DELETES = 1


def survey(view: TableView, reader: MetadataReader, io: Mapping[str, str]) -> Survey:
    told = [each for each in view.snapshots if each.manifest_list]
    register = _Register()
    broken: list[Broken] = []
    lists = _read_lists(told, register, broken, reader, io)
    manifests, files = _read_manifests(register, broken, reader, io)
    return Survey(
        lists,
        manifests,
        files,
        tuple(broken),
        tuple(_unread(len(view.snapshots) - len(told), int(sum(register.encrypted)))),
        _Spelling(manifests, files, reader, io).spell,
    )


@dataclass
class _Register:
    """Manifests by number, each once, whichever way its path is spelled."""

    known: dict[int, int] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)

    def number(self, listed: pa.Table) -> Any:
        """The number of each entry's manifest. Lists name nearly the same ones: only the different ones are looked at."""
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
        found = self.known.setdefault(key, len(self.paths))
        if found == len(self.paths):
            self.paths.append(row["manifest"])
            self.lengths.append(row["length"])
            self.live.append(row["live"])
            self.encrypted.append(row["encrypted"])
        return found


def _read_lists(
    snapshots: Sequence[Snapshot],
    register: _Register,
    broken: list[Broken],
    reader: MetadataReader,
    io: Mapping[str, str],
) -> Lists:
    paths = [each.manifest_list for each in snapshots]
    of: list[Any] = []
    manifests: list[Any] = []
    waiting: list[pa.Table] = []
    rows = 0
    for place, (path, table, trouble) in enumerate(reader.lists(paths, io)):
        if table is None:
            broken.append(Broken("manifest list", path, _plain(trouble)))
            continue
        waiting.append(table)
        rows += table.num_rows
        of.append(np.full(table.num_rows, place, dtype=np.int32))
        if rows >= _PORTION:
            manifests.append(register.number(pa.concat_tables(waiting)))
            waiting, rows = [], 0
    if waiting:
        manifests.append(register.number(pa.concat_tables(waiting)))
    ids = tuple(each.id for each in snapshots)
    return Lists(ids, tuple(paths), _joined(of, np.int32), _joined(manifests, np.int32))


def _read_manifests(
    register: _Register, broken: list[Broken], reader: MetadataReader, io: Mapping[str, str]
) -> tuple[Manifests, Files]:
    paths = register.paths
    found = np.full(len(paths), -1, dtype=np.int64)
    chosen = [each for each in range(len(paths)) if not register.encrypted[each]]
    # Not told how many files to expect, the reader gives what there is: that counts differ does not hide the files.
    wanted = [(paths[each], register.lengths[each], -1) for each in chosen]
    rows = _Rows()
    for number, (path, table, trouble) in zip(chosen, reader.manifests(wanted, io), strict=True):
        if table is None:
            broken.append(Broken("manifest", path, _plain(trouble)))
            continue
        found[number] = table.num_rows
        rows.add(number, table)
    spelled = pa.array(paths, pa.string())
    lengths, live = (np.array(each, dtype=np.int64) for each in (register.lengths, register.live))
    return Manifests(spelled, hashes(spelled), lengths, live, found), rows.files()


@dataclass
class _Rows:
    """Entries under way: tables until there are enough of them to hash, then numbers."""

    tables: list[pa.Table] = field(default_factory=list)
    of: list[Any] = field(default_factory=list)
    done: list[tuple[Any, Any, Any]] = field(default_factory=list)
    waiting: int = 0

    def add(self, manifest: int, table: pa.Table) -> None:
        self.tables.append(table)
        self.of.append(np.full(table.num_rows, manifest, dtype=np.int32))
        self.waiting += table.num_rows
        if self.waiting >= _PORTION:
            self._hash()

    def files(self) -> Files:
        self._hash()
        numbers, sizes, kinds = (
            (list(each) for each in zip(*self.done, strict=True)) if self.done else ([],) * 3
        )
        return Files(
            _joined(numbers, np.uint64),
            _joined(sizes, np.int64),
            _joined(kinds, np.int8),
            _joined(self.of, np.int32),
        )

    def _hash(self) -> None:
        if self.tables:
            table = pa.concat_tables(self.tables)
            self.done.append((hashes(table["path"]), table["size"].to_numpy(), _kinds(table)))
        self.tables, self.waiting = [], 0


def _kinds(table: pa.Table) -> Any:
    kinds = table["kind"].to_numpy().copy()
    puffin = pc.ends_with(table["path"], ".puffin").to_numpy()
    kinds[(kinds == _POSITION_DELETES) & puffin] = VECTOR
    return kinds


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Paths were not kept: the few that are wanted are read again, from the manifests that name them."""

    manifests: Manifests
    files: Files
    reader: MetadataReader
    io: Mapping[str, str]

    def spell(self, numbers: Any) -> pa.Array:
        """Of each of these sorted numbers that a manifest names, one path."""
        found = [each for table in self._tables(numbers) for each in self._among(table, numbers)]
        if not found:
            return pa.array([], pa.string())
        paths = pa.concat_arrays(found)
        _, first = np.unique(hashes(paths), return_index=True)
        return paths.take(pa.array(first))

    def _tables(self, numbers: Any) -> Iterator[pa.Table]:
        chosen = np.unique(self.files.manifests[contains(numbers, self.files.numbers)])
        paths = self.manifests.paths.take(pa.array(chosen)).to_pylist()
        wanted = [(path, -1, -1) for path in paths]
        return (table for _, table, _ in self.reader.manifests(wanted, self.io) if table is not None)

    def _among(self, table: pa.Table, numbers: Any) -> Iterator[pa.Array]:
        kept = table["path"].filter(pa.array(contains(numbers, hashes(table["path"]))))
        yield from kept.chunks


def _joined(parts: Sequence[Any], kind: Any) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)


def _plain(trouble: str) -> str:
    """The reader's own words, without the name of the class that carries them."""
    return trouble.removeprefix("ValueError: ")


def _unread(embedded: int, encrypted: int) -> Iterator[str]:
    if embedded:
        yield f"{embedded:,} snapshots that name their manifests in the table's metadata, as the first format version could"
    if encrypted:
        yield f"{encrypted:,} encrypted manifests"
