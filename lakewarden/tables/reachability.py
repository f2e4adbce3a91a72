"""The set of files that a table needs. It can be checked for millions of paths at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewarden.config.aliases import Disk
from lakewarden.model.location import (
    Location,
    hashes,
    inside,
    is_local,
    join,
    may_be_in,
    normals,
    numbered_parents,
    plain_hashes,
    real,
    tails,
)
from lakewarden.model.plain import Plain
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.places import roots

if TYPE_CHECKING:
    import pyarrow as pa

# Subfolders of a table that may be symlinks even if the table's own folder is not.
_PARTS = ("data", "metadata")


@dataclass(frozen=True, slots=True)
class FileIndex:
    """Files by name and folder, 12 bytes each: `names` are sorted hashes, `places` the number of each file's folder."""

    folders: tuple[str, ...] = ()
    names: Any = ()
    places: Any = ()


class FilesByFolder:
    """Collects `FileIndex`, in batches."""

    def __init__(self) -> None:
        self._folders: dict[str, int] = {}
        self._names: list[Any] = []
        self._places: list[Any] = []

    def add(self, written: pa.Array | pa.ChunkedArray, plain: pa.Array) -> None:
        """Add paths, as the metadata spells them and in normal form."""
        import numpy as np

        folders, places = numbered_parents(written)
        known = np.array(
            [self._folders.setdefault(folder, len(self._folders)) for folder in folders], np.int32
        )
        self._names.append(tails(plain, 1))
        self._places.append(known[places])

    def files(self) -> FileIndex:
        """All files that were added."""
        import numpy as np

        found = tuple(self._folders)
        if not self._names:
            return FileIndex(found)
        names, places = np.concatenate(self._names), np.concatenate(self._places)
        order = np.argsort(names, kind="stable")
        return FileIndex(found, names[order], places[order])


@dataclass(frozen=True, slots=True)
class ReachableFiles(Plain):
    """All files that these snapshots need, and the table's own metadata. Always complete; otherwise building it raises.

    `numbers` are the sorted hashes of all paths in normal form. If two hashes collide, a file that is not needed counts as
    needed; a needed file never counts as unneeded.
    """

    table: TableRef
    uuid: str
    metadata_location: str
    snapshot_ids: tuple[int, ...]
    numbers: Any
    hints: Any = None  # of those, hashes of files that may be missing
    roots: tuple[str, ...] = ()  # the table's own folders
    # Files that the table names outside of its location, nearly always none. They may belong to another table.
    outside: FileIndex = FileIndex()
    # Own folders that are symlinks: a file in them has a second path.
    linked: tuple[str, ...] = ()

    JSON_KEYS = "table uuid metadata=metadata_location snapshots=len(snapshot_ids) files=len(numbers)"

    def names(self, paths: pa.Array | pa.ChunkedArray | Sequence[str]) -> Any:
        """For each path: whether the table needs it (an array of booleans)."""
        return contains(self.numbers, hashes(paths))


class ReachableFilesBuilder:
    """Collects the paths that a table needs, in batches, and builds a `ReachableFiles` from them."""

    def __init__(self, view: TableView) -> None:
        self._view, self._numbers = view, [hashes([])]
        self._roots = tuple(dict.fromkeys(roots(view).values()))
        self._own = own_folders(view)
        self._outside = FilesByFolder()

    def add(self, paths: pa.Array | pa.ChunkedArray | Sequence[str]) -> None:
        plain = normals(paths)
        self._numbers.append(plain_hashes(plain))
        self._add_outside(paths, plain)

    def add_known(self, numbers: Any, outside: Iterable[pa.Array]) -> None:
        """Add files by their sorted hashes. `outside` has the paths of those outside of the table's location."""
        self._numbers.append(numbers)
        for paths in outside:
            plain = normals(paths)
            needed = contains(numbers, plain_hashes(plain))
            self._add_outside(_chosen(paths, needed), _chosen(plain, needed))

    def reached(self, snapshot_ids: tuple[int, ...], hints: Any = None) -> ReachableFiles:
        import numpy as np

        outside, linked, view = self._outside.files(), tuple(_leading_out(self._roots)), self._view
        self._numbers.append(hashes(_behind_links((*outside.folders, *linked))))
        numbers = np.unique(np.concatenate(self._numbers))
        return ReachableFiles(
            view.ref,
            view.uuid,
            view.metadata_location,
            snapshot_ids,
            numbers,
            hints,
            self._roots,
            outside,
            linked,
        )

    def _add_outside(self, paths: pa.Array | pa.ChunkedArray | Sequence[str], plain: pa.Array) -> None:
        import pyarrow as pa

        chosen = ~may_be_in(plain, self._own)
        if chosen.any():
            column: Any = (
                paths if isinstance(paths, pa.Array | pa.ChunkedArray) else pa.array(paths, pa.string())
            )
            self._outside.add(_chosen(column, chosen), _chosen(plain, chosen))


def own_folders(view: TableView) -> list[Location]:
    """The folders that certainly belong to this table. A folder that a table property names may be another table's."""
    return [Location.of(view.location)]


def _leading_out(own: Iterable[str]) -> list[str]:
    """Parts of a table's folders that are symlinks."""
    parts = [(root, join(root, part)) for root in own if is_local(root) for part in _PARTS]
    return [part for root, part in parts if not inside(real(part), real(root))]


def _behind_links(folders: Iterable[str]) -> list[str]:
    """The files that symlinks in these folders point to. Metadata that names the link needs the file."""
    disk = Disk(strict=False)
    return [real(each) for folder in folders for each in disk.links(folder)]


def _chosen(column: Any, chosen: Any) -> Any:
    import pyarrow as pa

    return column if chosen.all() else column.filter(pa.array(chosen, pa.bool_()))


def contains(sorted_numbers: Any, wanted: Any) -> Any:
    """For each of `wanted`: whether it is in the sorted numbers."""
    import numpy as np

    if not len(sorted_numbers):
        return np.zeros(len(wanted), dtype=bool)
    places = np.searchsorted(sorted_numbers, wanted)
    return sorted_numbers[np.minimum(places, len(sorted_numbers) - 1)] == wanted
