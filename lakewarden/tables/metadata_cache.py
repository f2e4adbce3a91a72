"""Metadata of a table that was read before, and that which was not: what lists and manifests name, each read once ever.

The same for every format: lists name manifests, manifests name files. A file that cannot be read stops everything and is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lakewarden.errors import LakewardenError
from lakewarden.model.location import hashes
from lakewarden.model.table import TableView
from lakewarden.tables.manifest_cache import Kind, ReachCache

# What became unneeded: its path as the metadata spells it, what it is, its size (null where no metadata tells).
UNREACHED = pa.schema([("path", pa.string()), ("kind", pa.string()), ("size", pa.int64())])

# Decoded files are remembered in portions: what is read survives an interruption, and memory stays bounded.
_PORTION = 100_000


class MetadataReader(Protocol):
    """Decodes metadata files in bulk: what a list or a manifest names, as it is read."""

    def lists(
        self, paths: Sequence[str], io: Mapping[str, str], lengths: Mapping[str, int]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Of each list its manifests (manifest, length, live, encrypted), or None and the reason.

        One that has another length than is told was cut short, and is not read.
        """

    def manifests(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Of each (path, length, live count) its live files (path, size, kind), or None and the reason."""

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        """Which of these files are not on the store. Complete, or raises."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Which manifests each list names: those of a list stand together, from its start to the next one's.

    `same` is by place the first list of that path: two snapshots may have one list.
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
        """Numbers of the manifests that these lists name, each once."""
        places = {int(self.same[each]) for each in lists}
        parts = [self.manifests[self.starts[each] : self.starts[each + 1]] for each in places]
        return np.unique(np.concatenate(parts)) if parts else self.manifests[:0]


@dataclass(frozen=True, slots=True)
class Remembered:
    """One table's lists and manifests, through the cache.

    A file that is remembered is not read again, but it must still be on the store: readers of the table need it.
    """

    view: TableView
    reader: MetadataReader
    io: Mapping[str, str] = field(repr=False)
    cache: ReachCache
    _there: set[str] = field(default_factory=set)

    def tidy(self, lists: Collection[str], manifests: Collection[str]) -> None:
        """Now and then what is remembered is made one file, without what has expired since."""
        if self.cache.crowded("list"):
            self.cache.keep_only("list", set(lists))
        if self.cache.crowded("manifest"):
            self.cache.keep_only("manifest", set(manifests))

    def listed(self, lists: Sequence[str], lengths: Mapping[str, int] | None = None) -> Listed:
        """Which manifests these lists name; in the answer a list is its place in `lists`. Lengths where they are told."""
        once = {path: place for place, path in enumerate(dict.fromkeys(lists))}
        same = np.array([once[path] for path in lists], dtype=np.int64)
        found = self.rows("list", [(path, (lengths or {}).get(path, -1)) for path in once], ())
        tables = [table for table in found if table.num_rows]
        if not tables:
            nothing = np.empty(0, dtype=np.int32)
            starts = np.zeros(len(once) + 1, dtype=np.int64)
            return Listed(
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
                reason=f"read the manifests of {self.view.ref}: they are encrypted, and what they name cannot be known",
                hint="encrypted tables are compacted, but not expired, swept or purged by this release",
            )
        return _as_listed(table, encoded, used, first, same, len(once))

    def named(self, listed: Listed, manifests: Any) -> Iterator[pa.Table]:
        """The live files of these manifests, in portions. Those without any are not opened."""
        wanted = [each for each in manifests.tolist() if listed.live[each] != 0]
        paths = listed.paths.take(pa.array(wanted, pa.int64())).to_pylist()
        lengths = [(path, int(listed.lengths[each])) for path, each in zip(paths, wanted, strict=True)]
        return self.rows("manifest", lengths, [int(listed.live[each]) for each in wanted])

    def check_there(self, listed: Listed) -> None:
        """Every listed manifest that has live files is on the store; else LakewardenError names the first that is not."""
        chosen = pa.array(np.flatnonzero(listed.live != 0), pa.int64())
        self._check_there("manifest", listed.paths.take(chosen).to_pylist())

    def _check_there(self, kind: Kind, paths: Sequence[str]) -> None:
        asked = [path for path in paths if path not in self._there]
        gone = self.reader.absent(asked, self.io) if asked else []
        if gone:
            raise _unreadable(self.view, kind, gone[0], "it is not there")
        self._there.update(asked)

    def rows(self, kind: Kind, wanted: Sequence[tuple[str, int]], live: Sequence[int]) -> Iterator[pa.Table]:
        """What each of the wanted (path, length) names, in portions; the column `of` is its place in `wanted`."""
        found, missing = self.cache.find(kind, wanted)
        self._check_there(kind, [path for _, numbers in found for path in numbers])
        for segment, numbers in found:
            try:
                rows = segment.rows(numbers)
            except FileNotFoundError:  # another process has just made several into one
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
        ):  # every list names nearly the same manifests: half a million names are 1,500 different ones
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


def _as_listed(table: pa.Table, encoded: Any, used: Any, first: Any, same: Any, lists: int) -> Listed:
    """Two spellings of one manifest are one manifest: numbered by the hash of the normal form."""
    paths = encoded.dictionary.take(pa.array(used))
    numbers, place, inverse = np.unique(hashes(paths), return_index=True, return_inverse=True)
    told = ("length", "live", "net" if "net" in table.column_names else "live")
    lengths, live, net = (table[name].to_numpy()[first][place] for name in told)
    number_of = np.zeros(len(encoded.dictionary), dtype=np.int32)
    number_of[used] = inverse
    of = table["of"].to_numpy()
    order = np.argsort(of, kind="stable")
    return Listed(
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
        hint=f"nothing was changed; `lakewarden fsck {view.ref}` tells what else is wrong and how to repair it",
    )
