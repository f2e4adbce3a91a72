"""Reads manifest lists and manifests through the cache, so that each is decoded only once.

It works for every format: lists name manifests, manifests name files. A file that cannot be read raises an
error with its path. Lists and manifests never change, so their content is cached by path; `ReachCache` keeps it
on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from lakewarden.errors import LakewardenError
from lakewarden.model.location import hashes
from lakewarden.model.table import TableView

# Files that are no longer needed: path as the metadata spells it, kind, size (null if no metadata has it).
UNREACHED = pa.schema([("path", pa.string()), ("kind", pa.string()), ("size", pa.int64())])

# Decoded files are cached in batches: finished batches survive an interruption, and memory stays bounded.
_PORTION = 100_000

Kind = Literal["list", "manifest"]


class MetadataReader(Protocol):
    """Decodes manifest lists and manifests in bulk and yields the content of each as soon as it is read."""

    def lists(
        self, paths: Sequence[str], io: Mapping[str, str], lengths: Mapping[str, int]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Yields for each list its manifests (manifest, length, live, encrypted), or None and the reason.

        A list whose length differs from `lengths` was truncated; it is not read.
        """

    def manifests(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Yields for each (path, length, live count) the live files (path, size, kind), or None and the reason."""

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        """The paths that do not exist in the store. Complete, or raises."""


@dataclass(frozen=True, slots=True)
class ListedManifests:
    """The manifests that each list names. The manifests of list i are `manifests[starts[i]:starts[i + 1]]`.

    `same` maps each requested list to its number here: two snapshots may share a list.
    """

    same: Any
    starts: Any
    manifests: Any
    paths: pa.Array
    lengths: Any
    live: Any
    net: Any  # files added less files deleted, where entries of a manifest do both
    numbers: Any

    def of(self, lists: Collection[int]) -> Any:
        """The numbers of all manifests that these lists name, without duplicates."""
        places = {int(self.same[each]) for each in lists}
        parts = [self.manifests[self.starts[place] : self.starts[place + 1]] for place in places]
        return np.unique(np.concatenate(parts)) if parts else self.manifests[:0]


@dataclass(frozen=True, slots=True)
class CachedMetadata:
    """The lists and manifests of one table, read through the cache.

    A cached file is not read again, but it must still exist in the store: readers of the table need it.
    """

    view: TableView
    reader: MetadataReader
    io: Mapping[str, str] = field(repr=False)
    cache: ReachCache
    _there: set[str] = field(default_factory=set)

    def tidy(self, lists: Collection[str], manifests: Collection[str]) -> None:
        """Merge the cache files if there are many, and keep only these lists and manifests."""
        if self.cache.crowded("list"):
            self.cache.keep_only("list", set(lists))
        if self.cache.crowded("manifest"):
            self.cache.keep_only("manifest", set(manifests))

    def listed(self, lists: Sequence[str], lengths: Mapping[str, int] | None = None) -> ListedManifests:
        """The manifests that these lists name. `lengths` are the expected sizes of the list files, where known."""
        once = {path: place for place, path in enumerate(dict.fromkeys(lists))}
        same = np.array([once[path] for path in lists], dtype=np.int64)
        batches = self.rows("list", [(path, (lengths or {}).get(path, -1)) for path in once], ())
        tables = [table for table in batches if table.num_rows]
        if not tables:
            nothing = np.empty(0, dtype=np.int32)
            starts = np.zeros(len(once) + 1, dtype=np.int64)
            return ListedManifests(
                same,
                starts,
                nothing,
                pa.array([], pa.string()),
                nothing,
                nothing,
                nothing,
                np.empty(0, np.uint64),
            )
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        encoded = table["manifest"].combine_chunks()
        table = table.drop_columns("manifest")
        used, first = np.unique(encoded.indices.to_numpy(), return_index=True)
        if table["encrypted"].take(pa.array(first)).to_numpy().any():
            raise LakewardenError(
                reason=f"read the manifests of {self.view.ref}: they are encrypted, so the files they name are unknown",
                hint="encrypted tables are compacted, but not expired, swept or purged by this release",
            )
        return _as_listed(table, encoded, used, first, same, len(once))

    def named(self, listed: ListedManifests, manifests: Any) -> Iterator[pa.Table]:
        """The live files of these manifests, in batches. Manifests without live files are not opened."""
        chosen = [manifest for manifest in manifests.tolist() if listed.live[manifest] != 0]
        paths = listed.paths.take(pa.array(chosen, pa.int64())).to_pylist()
        lengths = [(path, int(listed.lengths[each])) for path, each in zip(paths, chosen, strict=True)]
        return self.rows("manifest", lengths, [int(listed.live[each]) for each in chosen])

    def check_there(self, listed: ListedManifests) -> None:
        """Raises LakewardenError for the first manifest with live files that does not exist in the store."""
        chosen = pa.array(np.flatnonzero(listed.live != 0), pa.int64())
        self._check_there("manifest", listed.paths.take(chosen).to_pylist())

    def _check_there(self, kind: Kind, paths: Sequence[str]) -> None:
        unchecked = [path for path in paths if path not in self._there]
        missing = self.reader.absent(unchecked, self.io) if unchecked else []
        if missing:
            raise _unreadable(self.view, kind, missing[0], "it does not exist")
        self._there.update(unchecked)

    def rows(self, kind: Kind, wanted: Sequence[tuple[str, int]], live: Sequence[int]) -> Iterator[pa.Table]:
        """The rows of each (path, length), in batches. The column `of` is the index in `wanted`."""
        cached, missing = self.cache.find(kind, wanted)
        self._check_there(kind, [path for _, numbers in cached for path in numbers])
        for segment, numbers in cached:
            try:
                rows = segment.rows(numbers)
            except FileNotFoundError:  # another process has just merged the cache files
                missing += numbers.values()
                continue
            yield rows
        yield from self._read(kind, [(place, *wanted[place]) for place in missing], live)

    def _read(
        self, kind: Kind, wanted: Sequence[tuple[int, str, int]], live: Sequence[int]
    ) -> Iterator[pa.Table]:
        if kind == "list":
            lengths = {path: length for _, path, length in wanted if length >= 0}
            read = self.reader.lists([path for _, path, _ in wanted], self.io, lengths)
        else:
            read = self.reader.manifests(
                [(path, length, live[place]) for place, path, length in wanted], self.io
            )
        portion: list[tuple[int, str, int, pa.Table]] = []
        rows = 0
        for (place, path, length), (_, table, trouble) in zip(wanted, read, strict=True):
            if table is None:
                raise _unreadable(self.view, kind, path, trouble)
            portion.append((place, path, length, table))
            rows += table.num_rows
            if rows >= _PORTION:
                yield self._remember(kind, portion)
                portion, rows = [], 0
        if portion:
            yield self._remember(kind, portion)

    def _remember(self, kind: Kind, portion: Sequence[tuple[int, str, int, pa.Table]]) -> pa.Table:
        counts = [table.num_rows for _, _, _, table in portion]
        rows = pa.concat_tables([table for _, _, _, table in portion])
        if (
            kind == "list"
        ):  # lists share most manifests: half a million names may be 1,500 different manifests
            rows = rows.set_column(0, "manifest", rows["manifest"].combine_chunks().dictionary_encode())
        self.cache.add(
            kind,
            [path for _, path, _, _ in portion],
            [length for _, _, length, _ in portion],
            counts,
            rows,
        )
        of = np.repeat(np.array([place for place, *_ in portion], dtype=np.int32), counts)
        return rows.add_column(0, "of", pa.array(of))


def _as_listed(
    table: pa.Table, encoded: Any, used: Any, first: Any, same: Any, lists: int
) -> ListedManifests:
    """Numbers the manifests by the hash of their normal form: two spellings of one path are one manifest."""
    paths = encoded.dictionary.take(pa.array(used))
    numbers, place, inverse = np.unique(hashes(paths), return_index=True, return_inverse=True)
    columns = ("length", "live", "net" if "net" in table.column_names else "live")
    lengths, live, net = (table[name].to_numpy()[first][place] for name in columns)
    number_of = np.zeros(len(encoded.dictionary), dtype=np.int32)
    number_of[used] = inverse
    of = table["of"].to_numpy()
    order = np.argsort(of, kind="stable")
    return ListedManifests(
        same,
        np.searchsorted(of[order], np.arange(lists + 1)),
        number_of[encoded.indices.to_numpy()][order],
        paths.take(pa.array(place)),
        lengths,
        live,
        net,
        numbers,
    )


def _unreadable(view: TableView, kind: Kind, path: str, trouble: str) -> LakewardenError:
    what = "manifest list" if kind == "list" else "manifest"
    return LakewardenError(
        reason=f"read the {what} {path} of {view.ref}: {trouble}",
        hint=f"nothing was changed; `lakewarden fsck {view.ref}` shows what else is wrong and how to repair it",
    )


_INDEX = b"lakewarden.index"
_VERSION = 3
# More cache files than this are merged into one: each run adds at most one of each kind.
_MANY = 12


@dataclass(frozen=True, slots=True)
class Segment:
    """One cache file: the lists or manifests in it, and the number of rows of each."""

    path: Path
    names: tuple[str, ...]
    lengths: tuple[int, ...]
    counts: Any

    def rows(self, wanted: Mapping[str, int]) -> pa.Table:
        """The rows of these paths. `wanted` gives the number of each path, which becomes the column `of`."""
        numbers = np.array([wanted.get(name, -1) for name in self.names], dtype=np.int32)
        with pa.memory_map(str(self.path)) as source:
            table = pa.ipc.open_file(source).read_all()
        of = np.repeat(numbers, self.counts)
        table = table.set_column(0, "of", pa.array(of))
        return table if (numbers >= 0).all() else table.filter(pa.array(of >= 0))


class ReachCache:
    """The cache of one table. A damaged file, a full disk or a missing folder makes it slower, never wrong.

    Each table (by uuid) has a folder of Arrow files, each named by a digest of its content. A damaged file
    does not match its name and is deleted. The whole folder may be deleted at any time; the next run then
    reads the metadata again.

      <folder>/<uuid>/list-<digest>.arrow       of, manifest, length, live, encrypted, and net if the format records it
      <folder>/<uuid>/manifest-<digest>.arrow   of, path, size, kind

    `of` is the position, in the cache file's own index, of the list or manifest that the row came from.
    """

    def __init__(self, folder: Path, table_uuid: str) -> None:
        self._folder = folder / table_uuid

    def find(
        self, kind: Kind, wanted: Sequence[tuple[str, int]]
    ) -> tuple[list[tuple[Segment, dict[str, int]]], list[int]]:
        """The segments that have the wanted (path, length), and the indexes of those not cached. A length of -1 matches any."""
        missing = {path: place for place, (path, _) in enumerate(wanted)}
        length_of = dict(wanted)
        hits: list[tuple[Segment, dict[str, int]]] = []
        for segment in self._segments(kind):
            mine = {
                name: missing.pop(name)
                for name, length in zip(segment.names, segment.lengths, strict=True)
                if name in missing and length_of[name] in (-1, length)
            }
            if mine:
                hits.append((segment, mine))
        return hits, sorted(missing.values())

    def add(
        self, kind: Kind, names: Sequence[str], lengths: Sequence[int], counts: Sequence[int], rows: pa.Table
    ) -> None:
        """Cache what was read: the `rows` of all files in order, with the count of each. If writing fails, nothing is cached."""
        of = np.repeat(np.arange(len(names), dtype=np.int32), counts)
        index = {"version": _VERSION, "names": list(names), "lengths": list(lengths), "counts": list(counts)}
        self._write(kind, rows.add_column(0, "of", pa.array(of)), index)

    def crowded(self, kind: Kind) -> bool:
        """Whether there are so many cache files that `keep_only` should merge them."""
        return sum(1 for _ in self._folder.glob(f"{kind}-*.arrow")) >= _MANY

    def keep_only(self, kind: Kind, names: set[str]) -> None:
        """Merge the cache files into one that has only `names`; expired entries go away."""
        segments = list(self._segments(kind))
        seen: set[str] = set()
        kept: list[tuple[str, int, int]] = []
        tables = []
        for segment in segments:
            mine = [place for place, name in enumerate(segment.names) if name in names and name not in seen]
            seen.update(segment.names[place] for place in mine)
            tables.append(segment.rows({segment.names[place]: place for place in mine}).drop_columns("of"))
            kept += [
                (segment.names[place], segment.lengths[place], int(segment.counts[place])) for place in mine
            ]
        if kept:
            paths, lengths, counts = zip(*kept, strict=True)
            self.add(kind, paths, lengths, counts, pa.concat_tables(tables).unify_dictionaries())
        for segment in segments:
            segment.path.unlink(missing_ok=True)

    def _write(self, kind: Kind, table: pa.Table, index: Mapping[str, Any]) -> None:
        sink = pa.BufferOutputStream()
        schema = table.schema.with_metadata({_INDEX: json.dumps(index).encode()})
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, schema, options=options) as writer:
            writer.write_table(table.combine_chunks().replace_schema_metadata(schema.metadata))
        content = sink.getvalue()
        name = f"{kind}-{_digest(content)}.arrow"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=self._folder, suffix=".part")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(part).replace(self._folder / name)
        except OSError:
            return  # without a writable cache the next run is slower, nothing else

    def _segments(self, kind: Kind) -> Iterator[Segment]:
        for path in sorted(self._folder.glob(f"{kind}-*.arrow"), key=_age):
            segment = _opened(path)
            if segment is not None:
                yield segment


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another process has just merged the files


def _digest(content: Any) -> str:
    return hashlib.blake2b(memoryview(content), digest_size=12).hexdigest()


def _opened(path: Path) -> Segment | None:
    """Reads a cache file. None, and the file is deleted, if its content does not match the digest in its name."""
    try:
        with pa.memory_map(str(path)) as source:
            if _digest(source.read_buffer()) != path.stem.partition("-")[2]:
                path.unlink(missing_ok=True)
                return None
            index = json.loads(pa.ipc.open_file(source).schema.metadata[_INDEX])
    except (OSError, pa.ArrowException):
        return None
    if index["version"] != _VERSION:
        return None
    return Segment(
        path, tuple(index["names"]), tuple(index["lengths"]), np.array(index["counts"], dtype=np.int64)
    )


def bound(folder: Path, limit: int) -> None:
    """Delete the caches of the least recently used tables until the rest is below the limit (bytes)."""
    tables = []
    for each in folder.iterdir() if folder.is_dir() else ():
        files = [path.stat() for path in each.glob("*") if path.is_file()]
        tables.append(
            (max((stat.st_mtime for stat in files), default=0.0), sum(s.st_size for s in files), each)
        )
    total = sum(size for _, size, _ in tables)
    for _, size, each in sorted(tables, key=lambda table: table[0]):
        if total <= limit:
            return
        shutil.rmtree(each, ignore_errors=True)
        total -= size
