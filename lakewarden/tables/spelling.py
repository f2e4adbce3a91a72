"""Compares the names of one place: which paths and folders may be the same although they are written differently.

Two spellings are known to be one place only on this machine's disk (by device and inode) and where the operator
says so. What is found here is refused or kept in lakewarden/deletion/spelling.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakewarden.config.aliases import Aliases, Disk
from lakewarden.model.location import (
    Location,
    all_inside,
    distinctive,
    is_local,
    join,
    may_be_in,
    name_of,
    normals,
    numbered_parents,
    one_of_each_store,
    parent,
    parents,
    real,
    same,
    shortest,
    tails,
    without_partitions,
)
from lakewarden.model.table import TableView
from lakewarden.tables.places import roots
from lakewarden.tables.reachability import FileIndex, FilesByFolder, ReachableFiles, contains

if TYPE_CHECKING:
    import pyarrow as pa

# Any odd 64-bit number works: it mixes two hashes.
_ODD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class OneFolder:
    """Two names of one folder, or of a folder inside the other. `shown` is the part of the other path that is the first
    folder.
    """

    path: str
    other: str
    shown: str


class NamedPaths:
    """The names that the metadata of one state of a table uses, to compare with other files."""

    def __init__(
        self,
        view: TableView,
        named: Callable[[], Iterable[pa.Array]],
        aliases: Aliases,
        listed: Iterable[str] = (),
    ) -> None:
        """`named` reads the paths in the metadata, from the beginning at each call.

        `listed` are folders inside the table whose files `named` leaves out because they are under their own
        names.
        """
        self._view, self._read, self._aliases = view, named, aliases
        self._disk = Disk()
        self._roots = [_Root(each, aliases) for each in shortest(roots(view).values())]
        self._names = [name for root in self._roots for name in root.names]
        self._folders = {each: None for each in listed if is_local(each)}  # inside the table
        # If another table's files go through a link that is a folder of this table, every proof knows them under both names.
        self._linked = aliases.and_links(root.path for root in self._roots)
        self._linked_roots = [_Root(root.path, self._linked) for root in self._roots]
        self._strangers = _strangers(PathSet.of(roots(view).values()), view.location, aliases)
        for paths in self._named():
            within = paths.may_be_in(self._names)
            outside = paths.where(~within)
            self._strangers |= _strangers(outside, view.location, aliases)
            if any(each.is_local for each in self._names):
                self._folders |= dict.fromkeys(filter(is_local, parents(paths.where(within).written)))
            # A file in none of the folders is elsewhere for each of them. With several folders, each is
            # elsewhere for the others.
            for root in self._roots:
                root.add(outside if len(self._roots) == 1 else paths)

    def on_other_stores(self, files: PathSet) -> Iterable[str]:
        """One file from each store that may differ from the store of the table's location."""
        return self._strangers | _strangers(files, self._view.location, self._aliases)

    def files_alike(self, files: PathSet) -> Iterator[tuple[str, str]]:
        """Pairs of one of these files and a file that the table needs elsewhere, which may be one file."""
        for root, mine in _by_root(files, self._roots):
            yield from self._alike(root.elsewhere if root else self._inside, mine, root)

    def _named(self) -> Iterator[PathSet]:
        return (PathSet(each, normals(each)) for each in self._read())

    @cached_property
    def _inside(self) -> FileIndex:
        """The files inside the table's folders. For a file in none of the folders, they are elsewhere."""
        found = FilesByFolder()
        for paths in self._named():
            inside = paths.where(paths.may_be_in(self._names))
            found.add(inside.written, inside.plain)
        return found.files()

    def called_like(
        self, files: PathSet, others: Iterable[ReachableFiles]
    ) -> Iterator[tuple[str, ReachableFiles, str]]:
        """Files with the same name as a file that another table names outside its location, with that table and that file."""
        import numpy as np

        tables = [each for each in others if len(each.outside.names)]  # almost always empty
        if not tables:
            return
        every = np.unique(np.concatenate([each.outside.names for each in tables]))
        left = files.where(contains(every, files.names()))
        names = left.names()
        for table in tables if len(left) else ():
            mine = left.where(contains(table.outside.names, names))
            for root, those in _by_root(mine, self._linked_roots) if len(mine) else ():
                for file, other in self._alike(table.outside, those, root):
                    yield file, table, other

    def in_one_folder(
        self, files: PathSet, others: Iterable[ReachableFiles]
    ) -> Iterator[tuple[list[str], ReachableFiles, OneFolder]]:
        """Files in a folder of this machine that another table uses under another path. Checked are files that
        the other table names outside its own folders, and files behind a link in its folders; for files outside
        this table also the other table's folders.
        """
        folders, places = numbered_parents(files.written)
        if not any(is_local(each) for each in folders):
            return
        named, linked, own = _Identities(), _Identities(), _Identities()
        for table in others:
            named.add(table.outside.folders, table)
            linked.add(table.linked, table)
            own.add(table.roots, table)
        for number, folder in enumerate(folders):
            around = self._disk.around(folder)
            itself = {key: shown for key, shown in around.items() if key == self._disk.identity(folder)}
            users = [*named.of(itself), *linked.of(around)]
            if self._leads_out(folder):
                users += own.of(around)
            apart = [each for each in users if not self._is_spelled(folder, each[1])]
            if apart:
                shown, other, table = apart[-1]
                mine = files.written.filter(_mask(places == number)).to_pylist()
                yield mine, table, OneFolder(folder, other, shown)

    def linked_to(self, files: PathSet) -> dict[str, str]:
        """Files that a link in the table's folders points to, each with the link: a reader of the link needs the file."""
        links = self._links if len(files) else {}
        if not links:
            return {}
        # A file that is itself a link is deleted as a link: the file that it points to stays.
        own = {each: join(real(parent(each)), name_of(each)) for each in files.texts() if is_local(each)}
        return {each: links[place] for each, place in own.items() if place in links}

    @cached_property
    def _links(self) -> dict[str, str]:
        """Links in the table's folders, by the file they point to."""
        return {real(each): each for folder in self._folders for each in self._disk.links(folder)}

    def _is_spelled(self, folder: str, other: str) -> bool:
        """Whether a folder equals or is inside another one by its name: then every proof knows its files by that name."""
        mine = [Location.of(each) for each in self._linked.spellings(folder)]
        theirs = [Location.of(each) for each in self._linked.spellings(other)]
        return any(one.may_be_inside(each) for one in mine for each in theirs)

    def _leads_out(self, folder: str) -> bool:
        """Whether a folder of this machine is not one of the table's, or is a link that leads out of the table."""
        if not is_local(folder):
            return False
        around = self._disk.around(real(folder))
        return not any(self._disk.identity(each.path) in around for each in self._roots)

    def folders_alike(self, files: PathSet) -> Iterator[OneFolder]:
        """Compared by device and inode: the table's own folders, the folders its metadata names, the folders of
        these files.
        """
        asked = PathSet.of(parents(files.written))
        for root in self._roots:
            own = self._disk.identity(root.path)
            others = [each.path for each in self._roots if each is not root]
            others += [*root.elsewhere.folders, *asked.where(~asked.may_be_in(root.names)).texts()]
            for other in others if own is not None else ():
                around = self._disk.around(other)
                if own in around:
                    yield OneFolder(root.path, other, around[own])
        for folder in asked.texts():  # one that the metadata names under another spelling
            identity = self._disk.identity(folder)
            for other in self._used.get(identity, ()) if identity is not None else ():
                known = (Location.of(each) for each in self._aliases.spellings(other))
                if not any(Location.of(folder).may_be(each) for each in known):
                    yield OneFolder(folder, other, other)

    def identity(self, folder: str) -> tuple[object, object]:
        """Device and inode of a folder of this machine."""
        return self._disk.identity(folder) or ("unknown", "unknown")

    @cached_property
    def _used(self) -> dict[tuple[int, int], list[str]]:
        """Folders that the metadata names, by device and inode. A link inside the table, such as `day=1` to
        `day=01`, gives the files behind it a second name there.
        """
        elsewhere = [path for root in self._roots for path in root.elsewhere.folders]
        folders: dict[tuple[int, int], list[str]] = {}
        for each in dict.fromkeys([*elsewhere, *self._folders]):
            identity = self._disk.identity(each)
            if identity is not None:
                folders.setdefault(identity, []).append(each)
        return folders

    def _alike(self, files: FileIndex, candidates: PathSet, root: _Root | None) -> Iterator[tuple[str, str]]:
        """Pairs of a candidate and a needed file with the same name. `root` is the table folder that holds all candidates."""
        known = _Elsewhere.of(files, root)
        for candidate, folders in known.alike(candidates, root) if known else ():
            for folder in folders:
                if not self._apart(parent(candidate), folder, in_table=root is not None):
                    yield candidate, join(folder, name_of(candidate))

    def _apart(self, folder: str, other: str, *, in_table: bool) -> bool:
        """Whether these two folders are known to be different, so that equal file names mean nothing."""
        if any(Location.of(other).may_be_inside(each) for each in self._aliases.apart_from(folder)):
            return True
        # Partitions of one place: paths are enough to tell their files apart.
        names = () if in_table else self._aliases.spellings(folder)
        return any(without_partitions(each) == without_partitions(other) for each in names)


class _Identities:
    """Folders that other tables use, by device and inode."""

    def __init__(self) -> None:
        self._disk = Disk(strict=False)
        self._found: dict[tuple[int, int], list[tuple[str, ReachableFiles]]] = {}

    def add(self, folders: Iterable[str], table: ReachableFiles) -> None:
        for each in folders:
            identity = self._disk.identity(each)
            if identity is not None:
                self._found.setdefault(identity, []).append((each, table))

    def of(self, around: Mapping[tuple[int, int], str]) -> Iterator[tuple[str, str, ReachableFiles]]:
        """For each of these folders that another table uses: its name here, its name there, and the other table."""
        for identity, shown in around.items():
            for other, table in self._found.get(identity, ()):
                yield shown, other, table


@dataclass(frozen=True, slots=True)
class PathSet:
    """A very large set of paths, as written and in normal form."""

    written: pa.Array
    plain: pa.Array

    @classmethod
    def of(cls, texts: Iterable[str]) -> PathSet:
        import pyarrow as pa

        written = pa.array(list(texts), pa.string())
        return cls(written, normals(written))

    def __len__(self) -> int:
        return len(self.written)

    def texts(self) -> list[str]:
        return list(self.written.to_pylist())

    def where(self, chosen: Any) -> PathSet:
        if chosen.all():
            return self
        return PathSet(self.written.filter(_mask(chosen)), self.plain.filter(_mask(chosen)))

    def may_be_in(self, folders: Iterable[Location]) -> Any:
        return may_be_in(self.plain, folders)

    def names(self) -> Any:
        """Hashes of the file names."""
        return tails(self.plain, 1)

    def names_of_folders(self) -> Any:
        import polars as pl

        column: Any = pl.from_arrow(self.plain)
        return tails(column.str.replace("/[^/]*$", "").to_arrow(), 1)

    def known_by_name(self, root: str | None) -> Any:
        """For each file of a folder of the table (or of no folder), whether its name alone identifies it."""
        # The folder of a file directly in a root may have another name under the root's other name.
        right_in = _booleans(root is not None and same(parent(each), root) for each in self.texts())
        return right_in | distinctive(self.plain)


class _Root:
    """A folder of the table, all its names that the operator knows, and the files that the metadata names elsewhere."""

    def __init__(self, path: str, aliases: Aliases) -> None:
        self.path = path
        self.names = aliases.covering(path)
        self._apart = aliases.apart_from(path)
        self._elsewhere = FilesByFolder()

    def add(self, paths: PathSet) -> None:
        outside = paths.where(~paths.may_be_in(self.names))
        if len(outside):  # almost never
            self._elsewhere.add(outside.written, outside.plain)

    @cached_property
    def elsewhere(self) -> FileIndex:
        return self._elsewhere.files()

    def is_elsewhere(self, folders: PathSet) -> Any:
        """For each folder, whether it is outside this one and the operator has not declared the two places to be different."""
        return ~folders.may_be_in([*self.names, *self._apart])


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """Files in folders that may be a second name of the candidates' place."""

    files: FileIndex
    folders: PathSet

    @classmethod
    def of(cls, files: FileIndex, root: _Root | None) -> _Elsewhere | None:
        """None if there are no such files."""
        folders = PathSet.of(files.folders)
        if root is not None and len(files.names):
            chosen = root.is_elsewhere(folders)
            if not chosen.all():
                files = FileIndex(
                    files.folders, *(each[chosen[files.places]] for each in (files.names, files.places))
                )
        return cls(files, folders) if len(files.names) else None

    def alike(self, candidates: PathSet, root: _Root | None) -> Iterator[tuple[str, list[str]]]:
        """Candidates with the same name as some of the files, and the folders of those files."""
        import numpy as np

        names, by_name = candidates.names(), candidates.known_by_name(root.path if root else None)
        is_named = contains(self.files.names, names)
        if (is_named & ~by_name).any():
            ends = np.unique(_and(self.files.names, self.folders.names()[self.files.places]))
            is_named &= by_name | contains(ends, _and(names, candidates.names_of_folders()))
        for place in np.flatnonzero(is_named).tolist():
            candidate = candidates.written[place].as_py()
            first, last = (
                np.searchsorted(self.files.names, names[place], side) for side in ("left", "right")
            )
            folders = [self.files.folders[each] for each in np.unique(self.files.places[first:last])]
            own = name_of(parent(candidate))
            yield candidate, [each for each in folders if by_name[place] or name_of(each) == own]


def _by_root(candidates: PathSet, roots_: Iterable[_Root]) -> Iterator[tuple[_Root | None, PathSet]]:
    """Group files by the table folder that surely contains them. The last group is in none."""
    for root in roots_:
        mine = all_inside(candidates.written, [root.path]).to_numpy(zero_copy_only=False)
        if mine.any():
            yield root, candidates.where(mine)
        candidates = candidates.where(~mine)
    if len(candidates):
        yield None, candidates


def _and(names: Any, folders: Any) -> Any:
    """One number from the hashes of a file's name and its folder."""
    import numpy as np

    return names * np.uint64(_ODD) ^ folders


def _strangers(paths: PathSet, home: str, aliases: Aliases) -> dict[str, None]:
    """One file from each store that may differ from the store of the table's location, unless the operator has declared it."""
    place = Location.of(home)
    known = [
        *aliases.apart_from(home),
        *(
            each
            for pair in aliases.same
            for each in pair
            if any(other.may_share_store(place) for other in pair)
        ),
    ]
    asked = paths.where(~paths.may_be_in(known)) if known else paths
    examples = asked.written.take(one_of_each_store(asked.plain)).to_pylist()
    return {each: None for each in examples if not Location.of(each).may_share_store(place)}


def _booleans(values: Iterable[bool]) -> Any:
    import numpy as np

    return np.array(list(values), dtype=bool)


def _mask(chosen: Any) -> Any:
    import pyarrow as pa

    return pa.array(chosen, pa.bool_())
