"""What manifest lists and manifests name, remembered by their path: they never change, so each is read once ever.

A folder per table (by its uuid) of Arrow files, each named by a digest of its content. One that is damaged does not match
its name and is forgotten; the whole folder may be deleted at any time, the next run reads the metadata again.

    <folder>/<uuid>/list-<digest>.arrow       of, manifest, length, live, encrypted, and net where the format tells it
    <folder>/<uuid>/manifest-<digest>.arrow   of, path, size, kind

`of` is the place, in the file's own index, of the list or manifest that the row came from.
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
# More files than this are made one: each run adds at most one of a kind.
_MANY = 12


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the cache: what it remembers, and how many rows each of them has."""

    path: Path
    names: tuple[str, ...]
    lengths: tuple[int, ...]
    counts: Any

    def rows(self, wanted: Mapping[str, int]) -> pa.Table:
        """The rows of the wanted ones; `wanted` gives each its number, which goes into the column `of`."""
        numbers = np.array([wanted.get(name, -1) for name in self.names], dtype=np.int32)
        with pa.memory_map(str(self.path)) as source:
            table = pa.ipc.open_file(source).read_all()
        of = np.repeat(numbers, self.counts)
        table = table.set_column(0, "of", pa.array(of))
        return table if (numbers >= 0).all() else table.filter(pa.array(of >= 0))


class ReachCache:
    """Of one table. Damage, a full disk or a missing folder cost time, never truth."""

    def __init__(self, folder: Path, table_uuid: str) -> None:
        self._folder = folder / table_uuid

    def find(
        self, kind: Kind, wanted: Sequence[tuple[str, int]]
    ) -> tuple[list[tuple[Segment, dict[str, int]]], list[int]]:
        """Where the wanted (path, length) are remembered, and the places of those that are not. A length of -1 is not compared."""
        missing = {path: place for place, (path, _) in enumerate(wanted)}
        length_of = dict(wanted)
        found: list[tuple[Segment, dict[str, int]]] = []
        for segment in self._segments(kind):
            mine = {
                name: missing.pop(name)
                for name, length in zip(segment.names, segment.lengths, strict=True)
                if name in missing and length_of[name] in (-1, length)
            }
            if mine:
                found.append((segment, mine))
        return found, sorted(missing.values())

    def add(
        self, kind: Kind, names: Sequence[str], lengths: Sequence[int], counts: Sequence[int], rows: pa.Table
    ) -> None:
        """Remember what was read: `rows` of all of them in order, so many of each. Where that is impossible, nothing is."""
        of = np.repeat(np.arange(len(names), dtype=np.int32), counts)
        index = {"version": _VERSION, "names": list(names), "lengths": list(lengths), "counts": list(counts)}
        self._write(kind, rows.add_column(0, "of", pa.array(of)), index)

    def crowded(self, kind: Kind) -> bool:
        """Whether it is time for `keep_only`."""
        return sum(1 for _ in self._folder.glob(f"{kind}-*.arrow")) >= _MANY

    def keep_only(self, kind: Kind, names: set[str]) -> None:
        """One file instead of many, without what no snapshot leads to any more."""
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
            return  # a cache that cannot be written makes the next run slower, nothing else

    def _segments(self, kind: Kind) -> Iterator[Segment]:
        for path in sorted(self._folder.glob(f"{kind}-*.arrow"), key=_age):
            segment = _opened(path)
            if segment is not None:
                yield segment


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another process made many into one just now


def _digest(content: Any) -> str:
    return hashlib.blake2b(memoryview(content), digest_size=12).hexdigest()


def _opened(path: Path) -> Segment | None:
    """None for a file that is not what its name says: forgotten, as if it had never been there."""
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
    """Forget the tables that were not looked at for the longest time, until the rest is within the limit."""
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
