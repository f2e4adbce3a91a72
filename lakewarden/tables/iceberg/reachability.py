"""The files that an Iceberg table needs: a set over a set of snapshots, never a walk along ancestry.

Snapshots name manifest lists, lists name manifests, and manifests name data files, delete files and deletion vectors. The
table also needs its metadata files, its version hint and its statistics. A file that cannot be read raises an error with
its path, because a file counts as needed unless the opposite is proven.

Paths are hashes of their normal form (lakewarden/model/location.py), 8 bytes each, so that millions of files fit in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakewarden.errors import LakewardenError
from lakewarden.model.location import hashes
from lakewarden.model.table import Snapshot, TableView
from lakewarden.tables.metadata_cache import UNREACHED, CachedMetadata, ListedManifests
from lakewarden.tables.reachability import ReachableFiles, ReachableFilesBuilder, contains

_KINDS = ("data", "position-deletes", "equality-deletes")


@dataclass(frozen=True, slots=True)
class IcebergReachability:
    """Computes reachability from one table's metadata, through the cache."""

    view: TableView
    known: CachedMetadata

    def reached(self, snapshot_ids: Collection[int] | None = None) -> ReachableFiles:
        """All files that these snapshots need (None: all snapshots), and the table's own metadata."""
        view = self.view
        chosen = [s for s in view.snapshots if snapshot_ids is None or s.id in snapshot_ids]
        listed = self._listed(chosen)
        # All statistics in the metadata are needed, even those of a snapshot that another tool has dropped.
        named = [path for _, path in view.statistics] if snapshot_ids is None else []
        needed = ReachableFilesBuilder(view)
        needed.add([*own_metadata(view, chosen), *named])
        needed.add_known(np.unique(listed.numbers), [listed.paths])
        for table in self.known.named(listed, np.arange(len(listed.paths))):
            needed.add(table["path"])
        if snapshot_ids is None:
            lists = [_list_of(snapshot) for snapshot in view.snapshots]
            self.known.tidy(lists, listed.paths.to_pylist())
        return needed.reached(tuple(each.id for each in chosen), hashes([version_hint(view)]))

    def named_paths(self, numbers: Any) -> Iterator[pa.Array]:
        """The paths of lists, manifests and files whose hashes are in these sorted numbers."""
        listed = self._listed(self.view.snapshots)
        named = [
            pa.array([_list_of(snapshot) for snapshot in self.view.snapshots], pa.string()),
            listed.paths,
        ]
        for paths in named:
            yield paths.filter(pa.array(contains(numbers, hashes(paths))))
        for table in self.known.named(listed, np.arange(len(listed.paths))):
            matching = contains(numbers, hashes(table["path"]))
            yield table["path"].combine_chunks().filter(pa.array(matching))

    def unreached(self, removed: Collection[int]) -> pa.Table:
        """Files that only the removed snapshots need: the difference of two reachable sets. The store is not listed.

        Such a file is named by a manifest that only removed snapshots name. So only these manifests give candidates, and
        the complete set of remaining files is computed only if there are candidates.
        """
        stay = [s for s in self.view.snapshots if s.id not in removed]
        go = [s for s in self.view.snapshots if s.id in removed]
        listed = self._listed([*stay, *go])
        kept = listed.of(range(len(stay)))
        gone = np.setdiff1d(listed.of(range(len(stay), len(stay) + len(go))), kept)
        files = self._unreached_files(listed, gone, kept)
        return pa.concat_tables([files, _manifests(listed, gone), self._unreached_metadata(stay, go)])

    def closure(self, snapshot_ids: Collection[int]) -> pa.Table:
        """All files that these snapshots need: their lists, manifests, data and delete files."""
        chosen = [snapshot for snapshot in self.view.snapshots if snapshot.id in snapshot_ids]
        lists = [_list_of(each) for each in chosen]
        listed = self._listed(chosen)
        every = np.arange(len(listed.paths))
        files = [_files(table) for table in self.known.named(listed, every)]
        table = pa.concat_tables([UNREACHED.empty_table(), *files])
        _, first = np.unique(hashes(table["path"]), return_index=True)
        own = pa.Table.from_arrays(
            [
                pa.array(dict.fromkeys(lists), pa.string()),
                pa.array(["manifest-list"] * len(set(lists)), pa.string()),
                pa.nulls(len(set(lists)), pa.int64()),
            ],
            schema=UNREACHED,
        )
        return pa.concat_tables([table.take(pa.array(np.sort(first))), _manifests(listed, every), own])

    def _listed(self, snapshots: Sequence[Snapshot]) -> ListedManifests:
        """The manifests of these snapshots. Raises if one of them is missing in the store."""
        listed = self.known.listed([_list_of(snapshot) for snapshot in snapshots])
        self.known.check_there(listed)
        return listed

    def _unreached_files(self, listed: ListedManifests, gone: Any, kept: Any) -> pa.Table:
        candidates = list(self.known.named(listed, gone))
        if not sum(candidate.num_rows for candidate in candidates):
            return UNREACHED.empty_table()
        table = pa.concat_tables(candidates)
        numbers, first = np.unique(hashes(table["path"]), return_index=True)
        for stays in self.known.named(listed, kept):
            needed = contains(numbers, hashes(stays["path"]))
            if needed.any():
                still = contains(np.unique(hashes(stays["path"].filter(pa.array(needed)))), numbers)
                numbers, first = numbers[~still], first[~still]
        return _files(table.take(pa.array(np.sort(first))))

    def _unreached_metadata(self, stay: Sequence[Snapshot], go: Sequence[Snapshot]) -> pa.Table:
        """Manifest lists and statistics of the removed snapshots, except those that a remaining snapshot uses too."""
        needed = np.unique(hashes(own_metadata(self.view, stay)))
        ids = {each.id for each in go}
        rows = [(_list_of(each), "manifest-list") for each in go]
        rows += [(path, "statistics") for snapshot_id, path in self.view.statistics if snapshot_id in ids]
        paths = pa.array([path for path, _ in rows], pa.string())
        kinds = pa.array([kind for _, kind in rows], pa.string())
        files = pa.Table.from_arrays([paths, kinds, pa.nulls(len(rows), pa.int64())], schema=UNREACHED)
        return files.filter(pa.array(~contains(needed, hashes(paths)))) if rows else files


def own_metadata(view: TableView, snapshots: Iterable[Snapshot]) -> list[str]:
    """The table's metadata files: current and earlier ones, the version hint, and the snapshots' lists and statistics."""
    kept = list(snapshots)
    ids = {each.id for each in kept}
    return [
        view.metadata_location,
        *view.metadata_log,
        version_hint(view),
        *(_list_of(each) for each in kept),
        *(path for snapshot_id, path in view.statistics if snapshot_id in ids),
    ]


def version_hint(view: TableView) -> str:
    """The path of the version hint, in which Hadoop catalogs name the current metadata file. Other catalogs have none."""
    return f"{view.metadata_location.rpartition('/')[0]}/version-hint.text"


def _list_of(snapshot: Snapshot) -> str:
    if not snapshot.manifest_list:
        raise LakewardenError(
            reason=f"read snapshot {snapshot.id}: it names its manifests in the table's metadata, as the first format version could",
            hint="rewrite the table's manifests once (`rewrite_manifests`), then expire that snapshot with Iceberg's own procedure",
        )
    return snapshot.manifest_list


def _files(table: pa.Table) -> pa.Table:
    kinds = pa.array(_KINDS).take(table["kind"].combine_chunks().cast(pa.int32()))
    return pa.Table.from_arrays([table["path"], kinds, table["size"]], schema=UNREACHED)


def _manifests(listed: ListedManifests, chosen: Any) -> pa.Table:
    paths = listed.paths.take(pa.array(chosen, pa.int64()))
    kinds = pa.array(["manifest"] * len(chosen), pa.string())
    sizes = pa.array(listed.lengths[chosen] if len(chosen) else [], pa.int64())
    return pa.Table.from_arrays([paths, kinds, sizes], schema=UNREACHED)
