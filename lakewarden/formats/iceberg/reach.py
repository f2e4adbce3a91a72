"""What an Iceberg table needs: a set over all of some snapshots, never a walk along ancestry.

Snapshots lead to manifest lists, lists to manifests, manifests to data files, delete files and deletion vectors. Besides,
the table needs its metadata files, its version hint and its statistics. One file that cannot be read stops everything and
is named: what is not known to be unneeded is needed.

Paths travel as hashes of their normal form (lakewarden/paths.py), eight bytes each, so that tables of millions of files fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lakewarden.errors import LakewardenError
from lakewarden.formats.iceberg.reach_cache import Kind, ReachCache
from lakewarden.model import Snapshot, TableView
from lakewarden.paths import hashes
from lakewarden.safety.reached import Reached, contains

# What became unneeded: its path as the metadata spells it, what it is, its size (null where no metadata tells).
UNREACHED = pa.schema([("path", pa.string()), ("kind", pa.string()), ("size", pa.int64())])

_KINDS = ("data", "position-deletes", "equality-deletes")
# Decoded files are remembered in portions: what is read survives an interruption, and memory stays bounded.
_PORTION = 100_000


class MetadataReader(Protocol):
    """Decodes metadata files in bulk: what a list or a manifest names, as it is read."""

    def lists(
        self, paths: Sequence[str], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Of each list its manifests (manifest, length, live, encrypted), or None and the reason."""

    def manifests(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Of each (path, length, live count) its live files (path, size, kind), or None and the reason."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Which manifests each list names. `lists` and `manifests` are parallel: one pair per entry."""

    lists: Any
    manifests: Any
    paths: pa.Array
    lengths: Any
    live: Any
    numbers: Any

    def of(self, lists: Collection[int]) -> Any:
        """Numbers of the manifests that these lists name, each once."""
        chosen = np.isin(self.lists, np.fromiter(lists, dtype=np.int32, count=len(lists)))
        return np.unique(self.manifests[chosen])


@dataclass(frozen=True, slots=True)
class Reach:
    """Asks one table's metadata, through the cache."""

    view: TableView
    reader: MetadataReader
    io: Mapping[str, str]
    cache: ReachCache

    def reached(self, snapshot_ids: Collection[int] | None = None) -> Reached:
        """Every file that these snapshots need (all, when not said), and the table's own metadata."""
        view = self.view
        chosen = [s for s in view.snapshots if snapshot_ids is None or s.id in snapshot_ids]
        listed = self._listed([_list_of(s) for s in chosen])
        # Statistics that the metadata names are needed, also those of a snapshot that another tool dropped.
        named = [path for _, path in view.statistics] if snapshot_ids is None else []
        numbers = [hashes([*own_metadata(view, chosen), *named]), listed.numbers]
        numbers.extend(hashes(table["path"]) for table in self._named(listed, np.arange(len(listed.paths))))
        if snapshot_ids is None:
            self._tidy(listed)
        return Reached(
            view.ref,
            view.uuid,
            view.metadata_location,
            tuple(each.id for each in chosen),
            np.unique(np.concatenate(numbers)),
        )

    def _tidy(self, listed: Listed) -> None:
        """Now and then what is remembered is made one file, without what has expired since."""
        if self.cache.crowded("list"):
            self.cache.keep_only("list", {_list_of(each) for each in self.view.snapshots})
        if self.cache.crowded("manifest"):
            self.cache.keep_only("manifest", set(listed.paths.to_pylist()))

    def named_paths(self, numbers: Any) -> Iterator[pa.Array]:
        """The lists, manifests and files whose hashes are among these sorted numbers."""
        listed = self._listed([_list_of(each) for each in self.view.snapshots])
        named = [pa.array([_list_of(each) for each in self.view.snapshots], pa.string()), listed.paths]
        for paths in named:
            yield paths.filter(pa.array(contains(numbers, hashes(paths))))
        for table in self._named(listed, np.arange(len(listed.paths))):
            found = contains(numbers, hashes(table["path"]))
            yield table["path"].combine_chunks().filter(pa.array(found))

    def unreached(self, removed: Collection[int]) -> pa.Table:
        """What is reachable now and would not be without these snapshots. The difference of two sets, nothing listed.

        A file that only a removed snapshot needs is named by a manifest that only removed snapshots name. So only those
        manifests give candidates, and only where there are some must what stays be known to the last file.
        """
        stay = [s for s in self.view.snapshots if s.id not in removed]
        go = [s for s in self.view.snapshots if s.id in removed]
        listed = self._listed([_list_of(s) for s in (*stay, *go)])
        kept = listed.of(range(len(stay)))
        gone = np.setdiff1d(listed.of(range(len(stay), len(stay) + len(go))), kept)
        files = self._unreached_files(listed, gone, kept)
        return pa.concat_tables([files, _manifests(listed, gone), self._unreached_metadata(stay, go)])

    def _unreached_files(self, listed: Listed, gone: Any, kept: Any) -> pa.Table:
        candidates = list(self._named(listed, gone))
        if not sum(each.num_rows for each in candidates):
            return UNREACHED.empty_table()
        table = pa.concat_tables(candidates)
        numbers, first = np.unique(hashes(table["path"]), return_index=True)
        for stays in self._named(listed, kept):
            needed = contains(numbers, hashes(stays["path"]))
            if needed.any():
                still = contains(np.unique(hashes(stays["path"].filter(pa.array(needed)))), numbers)
                numbers, first = numbers[~still], first[~still]
        return _files(table.take(pa.array(np.sort(first))))

    def _unreached_metadata(self, stay: Sequence[Snapshot], go: Sequence[Snapshot]) -> pa.Table:
        """Lists and statistics of the snapshots that go, unless one that stays has the same."""
        needed = np.unique(hashes(own_metadata(self.view, stay)))
        ids = {each.id for each in go}
        rows = [(_list_of(each), "manifest-list") for each in go]
        rows += [(path, "statistics") for snapshot_id, path in self.view.statistics if snapshot_id in ids]
        paths = pa.array([path for path, _ in rows], pa.string())
        kinds = pa.array([kind for _, kind in rows], pa.string())
        found = pa.Table.from_arrays([paths, kinds, pa.nulls(len(rows), pa.int64())], schema=UNREACHED)
        return found.filter(pa.array(~contains(needed, hashes(paths)))) if rows else found

    def _listed(self, lists: Sequence[str]) -> Listed:
        found = self._remembered("list", [(path, -1) for path in lists], ())
        tables = [table for table in found if table.num_rows]
        if not tables:
            nothing = np.empty(0, dtype=np.int32)
            return Listed(
                nothing, nothing, pa.array([], pa.string()), nothing, nothing, np.empty(0, np.uint64)
            )
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        encoded = table["manifest"].combine_chunks()
        table = table.drop_columns("manifest")
        used, first = np.unique(encoded.indices.to_numpy(), return_index=True)
        if table["encrypted"].take(pa.array(first)).to_numpy().any():
            raise LakewardenError(
                reason=f"read the manifests of {self.view.ref}: they are encrypted, and what they name cannot be known",
                hint="encrypted tables are compacted, but not expired, swept or reaped by this release",
            )
        return _as_listed(table, encoded, used, first)

    def _named(self, listed: Listed, manifests: Any) -> Iterator[pa.Table]:
        """The live files of these manifests, in portions. Those without any are not opened."""
        wanted = [each for each in manifests.tolist() if listed.live[each] != 0]
        paths = listed.paths.take(pa.array(wanted, pa.int64())).to_pylist()
        lengths = [(path, int(listed.lengths[each])) for path, each in zip(paths, wanted, strict=True)]
        return self._remembered("manifest", lengths, [int(listed.live[each]) for each in wanted])

    def _remembered(
        self, kind: Kind, wanted: Sequence[tuple[str, int]], live: Sequence[int]
    ) -> Iterator[pa.Table]:
        found, missing = self.cache.find(kind, wanted)
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
            read = self.reader.lists([path for _, path, _ in wanted], self.io)
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


def own_metadata(view: TableView, snapshots: Iterable[Snapshot]) -> list[str]:
    """Metadata files the table names itself: current and earlier ones, the version hint, these snapshots' lists and statistics."""
    kept = list(snapshots)
    ids = {each.id for each in kept}
    folder = view.metadata_location.rpartition("/")[0]
    return [
        view.metadata_location,
        *view.metadata_log,
        f"{folder}/version-hint.text",
        *(_list_of(each) for each in kept),
        *(path for snapshot_id, path in view.statistics if snapshot_id in ids),
    ]


def _list_of(snapshot: Snapshot) -> str:
    if not snapshot.manifest_list:
        raise LakewardenError(
            reason=f"read snapshot {snapshot.id}: it names its manifests in the table's metadata, as the first format version could",
            hint="rewrite the table's manifests once (`rewrite_manifests`), then expire that snapshot with Iceberg's own procedure",
        )
    return snapshot.manifest_list


def _as_listed(table: pa.Table, encoded: Any, used: Any, first: Any) -> Listed:
    """Two spellings of one manifest are one manifest: numbered by the hash of the normal form."""
    paths = encoded.dictionary.take(pa.array(used))
    numbers, place, inverse = np.unique(hashes(paths), return_index=True, return_inverse=True)
    lengths, live = (table[name].to_numpy()[first][place] for name in ("length", "live"))
    number_of = np.zeros(len(encoded.dictionary), dtype=np.int32)
    number_of[used] = inverse
    return Listed(
        table["of"].to_numpy(),
        number_of[encoded.indices.to_numpy()],
        paths.take(pa.array(place)),
        lengths,
        live,
        numbers,
    )


def _files(table: pa.Table) -> pa.Table:
    kinds = pa.array(_KINDS).take(table["kind"].combine_chunks().cast(pa.int32()))
    return pa.Table.from_arrays([table["path"], kinds, table["size"]], schema=UNREACHED)


def _manifests(listed: Listed, chosen: Any) -> pa.Table:
    paths = listed.paths.take(pa.array(chosen, pa.int64()))
    kinds = pa.array(["manifest"] * len(chosen), pa.string())
    sizes = pa.array(listed.lengths[chosen] if len(chosen) else [], pa.int64())
    return pa.Table.from_arrays([paths, kinds, sizes], schema=UNREACHED)


def _unreadable(view: TableView, kind: Kind, path: str, trouble: str) -> LakewardenError:
    what = "manifest list" if kind == "list" else "manifest"
    return LakewardenError(
        reason=f"read the {what} {path} of {view.ref}: {trouble}",
        hint=f"nothing was changed; `lakewarden fsck {view.ref}` tells what else is wrong and how to repair it",
    )
