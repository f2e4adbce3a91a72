"""A cache of the content of manifest lists and manifests, by path. They never change, so each is read only once.

Each table (by uuid) has a folder of Arrow files, each named by a digest of its content. A damaged file does not match its
name and is deleted. The whole folder may be deleted at any time; the next run then reads the metadata again.

    <folder>/<uuid>/list-<digest>.arrow       of, manifest, length, live, encrypted, and net if the format records it
    <folder>/<uuid>/manifest-<digest>.arrow   of, path, size, kind

`of` is the position, in the cache file's own index, of the list or manifest that the row came from.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

Kind = Literal["list", "manifest"]

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
    """The cache of one table. A damaged file, a full disk or a missing folder makes it slower, never wrong."""

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
