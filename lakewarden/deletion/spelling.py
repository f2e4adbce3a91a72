"""Detects two names of one place, in one table or in two: either they are surely different, or deletion is
refused with both names.

If the metadata names a file under one spelling and a store lists it under another, it looks like two files: a
needed one, and one that nothing names. Two spellings are known to be one place only on this machine's disk (by
device and inode) and where the operator says so. Otherwise a table on two stores is refused, and so is a file
whose path ends like that of a needed file in another place. Another table may also need the files under another
path: those files stay, and the rest is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakewarden.config.aliases import Aliases, Disk
from lakewarden.errors import Refused
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
    without_common_end,
    without_partitions,
)
from lakewarden.model.table import TableView
from lakewarden.tables.places import roots
from lakewarden.tables.reachability import Files, FilesByFolder, Reached, contains

if TYPE_CHECKING:
    import pyarrow as pa

# Any odd 64-bit number works: it mixes two hashes.
_ODD = 0x9E3779B97F4A7C15


class Spellings:
    """The names that the metadata of one state of a table uses, to compare with the files to be deleted."""

    def __init__(
        self,
        action: str,
        view: TableView,
        named: Callable[[], Iterable[pa.Array]],
        aliases: Aliases,
        listed: Iterable[str] = (),
    ) -> None:
        """`named` reads the paths in the metadata, from the beginning at each call.

        `listed` are folders inside the table whose files `named` leaves out because they are under their own
        names.
        """
        self._action, self._view, self._read, self._aliases = action, view, named, aliases
        self._disk = Disk()
        self._roots = [_Root(each, aliases) for each in shortest(roots(view).values())]
        self._names = [name for root in self._roots for name in root.names]
        self._folders = {each: None for each in listed if is_local(each)}  # inside the table
        # If another table's files go through a link that is a folder of this table, every proof knows them under both names.
        self._linked = aliases.and_links(root.path for root in self._roots)
        self._linked_roots = [_Root(root.path, self._linked) for root in self._roots]
        self._strangers = _strangers(_Paths.of(roots(view).values()), view.location, aliases)
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

    def check(self, candidates: pa.Array | pa.ChunkedArray) -> None:
        """Refuses if one of these files, or one of the table's places, may have two names."""
        left = _Paths.of(candidates.to_pylist())
        self._check_stores(left)
        self._check_folders(left)
        for root, mine in _by_root(left, self._roots):
            files = root.elsewhere if root else self._inside
            for candidate, other in self._alike(files, mine, root):
                raise self._one_file(candidate, other)

    def doubtful(self, candidates: pa.Array | pa.ChunkedArray, others: Iterable[Reached]) -> dict[str, str]:
        """The files that another table may need under another path, or that a link may need, each with the
        reason.

        `others` are the readings of all other tables. This is not a refusal: the writers of other tables chose
        these paths, and one path must not stop the deletion of all other files.
        """
        files, tables = _Paths.of(candidates.to_pylist()), list(others)
        doubts = self._linked_to(files)
        return {**self._called_like(files, tables), **self._in_one_folder(files, tables)} | doubts

    def _named(self) -> Iterator[_Paths]:
        return (_Paths(each, normals(each)) for each in self._read())

    @cached_property
    def _inside(self) -> Files:
        """The files inside the table's folders. For a file in none of the folders, they are elsewhere."""
        found = FilesByFolder()
        for paths in self._named():
            inside = paths.where(paths.may_be_in(self._names))
            found.add(inside.written, inside.plain)
        return found.files()

    def _check_stores(self, candidates: _Paths) -> None:
        home = self._view.location
        for path in self._strangers | _strangers(candidates, home, self._aliases):
            raise self._refused(
                f"its location is {home}, but it names {path} on another store; Lakewarden cannot know whether both are the same store",
                f"{_store(home)}/FOLDER = {_store(path)}/FOLDER",
                f"{_store(home)} != {_store(path)}",
            )

    def _called_like(self, candidates: _Paths, others: Iterable[Reached]) -> dict[str, str]:
        """Files with the same name as a file that another table names outside its location."""
        import numpy as np

        tables = [each for each in others if len(each.outside.names)]  # almost always empty
        if not tables:
            return {}
        every = np.unique(np.concatenate([each.outside.names for each in tables]))
        left = candidates.where(contains(every, candidates.names()))
        names, doubts = left.names(), dict[str, str]()
        for table in tables if len(left) else ():
            mine = left.where(contains(table.outside.names, names))
            for root, those in _by_root(mine, self._linked_roots) if len(mine) else ():
                for candidate, other in self._alike(table.outside, those, root):
                    reason = f"{table.table} names {other}, which may be the same file"
                    doubts.setdefault(candidate, self._settled_by(reason, *self._lines(candidate, other)))
        return doubts

    def _in_one_folder(self, candidates: _Paths, others: Iterable[Reached]) -> dict[str, str]:
        """Files in a folder of this machine that another table uses under another path. Checked are files that
        the other table names outside its own folders, and files behind a link in its folders; for files outside
        this table also the other table's folders.
        """
        folders, places = numbered_parents(candidates.written)
        if not any(is_local(each) for each in folders):
            return {}
        named, linked, own = _Identities(), _Identities(), _Identities()
        for table in others:
            named.add(table.outside.folders, table)
            linked.add(table.linked, table)
            own.add(table.roots, table)
        why: dict[int, str] = {}
        for number, folder in enumerate(folders):
            around = self._disk.around(folder)
            itself = {key: shown for key, shown in around.items() if key == self._disk.identity(folder)}
            users = [*named.of(itself), *linked.of(around)]
            if self._leads_out(folder):
                users += own.of(around)
            for shown, other, table in users:
                if not self._is_spelled(folder, other):
                    reason = f"{folder} and {other}, which {table.table} uses, are one folder or one lies in the other"
                    lines = self._lines(real(shown), other if same(real(shown), shown) else shown)
                    why[number] = self._settled_by(reason, *lines)
        return {
            candidates.written[row].as_py(): why[place]
            for row, place in enumerate(places.tolist())
            if place in why
        }

    def _linked_to(self, candidates: _Paths) -> dict[str, str]:
        """Files that a link in the table's folders points to: a reader of the link needs the file."""
        links = self._links if len(candidates) else {}
        if not links:
            return {}
        # A candidate that is itself a link is deleted as a link: the file that it points to stays.
        own = {each: join(real(parent(each)), name_of(each)) for each in candidates.texts() if is_local(each)}
        return {
            each: f"{links[place]}, a link in the table's folders, leads to it; remove the link if nobody reads it"
            for each, place in own.items()
            if place in links
        }

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

    def _check_folders(self, candidates: _Paths) -> None:
        """Compare by device and inode: the table's own folders, the folders its metadata names, the folders of
        the files to delete.
        """
        asked = _Paths.of(parents(candidates.written))
        for root in self._roots:
            own = self._disk.identity(root.path)
            others = [each.path for each in self._roots if each is not root]
            others += [*root.elsewhere.folders, *asked.where(~asked.may_be_in(root.names)).texts()]
            for other in others if own is not None else ():
                around = self._disk.around(other)
                if own in around:
                    raise self._one_folder(root.path, other, around[own])
        self._check_one_of(asked.texts())

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

    def _check_one_of(self, asked: Iterable[str]) -> None:
        """Refuses if a folder with files to delete is one that the metadata names under another spelling."""
        for folder in asked:
            identity = self._disk.identity(folder)
            for other in self._used.get(identity, ()) if identity is not None else ():
                known = (Location.of(each) for each in self._aliases.spellings(other))
                if not any(Location.of(folder).may_be(each) for each in known):
                    raise self._one_folder(folder, other, other)

    def _one_folder(self, path: str, other: str, shown: str) -> Refused:
        """`shown` is the part of the other folder's path that is the first folder."""
        identity = self._disk.identity(path) or ("unknown", "unknown")
        return self._refused(
            f"{path} and {other} are one folder under two names, or one lies in the other"
            f" (device {identity[0]}, inode {identity[1]} of this machine)",
            *self._lines(*((real(other), other) if same(path, shown) else (path, shown))),
        )

    def _alike(self, files: Files, candidates: _Paths, root: _Root | None) -> Iterator[tuple[str, str]]:
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

    def _one_file(self, candidate: str, other: str) -> Refused:
        return self._refused(
            f"{candidate} would be deleted, but its path ends like {other}, which the table needs;"
            " Lakewarden cannot know whether both are the same file",
            *self._lines(candidate, other),
        )

    def _settled_by(self, reason: str, if_one: str, if_two: str) -> str:
        return f"{reason}; add `{if_one}` or `{if_two}` to aliases in [paths] of lakewarden.toml"

    def _lines(self, one: str, other: str) -> tuple[str, str]:
        first, second = without_common_end(one, other)
        return f"{first} = {second}", f"{first} != {second}"

    def _refused(self, reason: str, if_one: str, if_two: str) -> Refused:
        return Refused(
            action=self._action,
            target=self._view.ref,
            reason=reason,
            hint=f"nothing was changed; add to aliases in [paths] of lakewarden.toml: `{if_one}` if both are one place,"
            f" `{if_two}` if they are not; then run again",
        )


class _Identities:
    """Folders that other tables use, by device and inode."""

    def __init__(self) -> None:
        self._disk = Disk(strict=False)
        self._found: dict[tuple[int, int], list[tuple[str, Reached]]] = {}

    def add(self, folders: Iterable[str], table: Reached) -> None:
        for each in folders:
            identity = self._disk.identity(each)
            if identity is not None:
                self._found.setdefault(identity, []).append((each, table))

    def of(self, around: Mapping[tuple[int, int], str]) -> Iterator[tuple[str, str, Reached]]:
        """For each of these folders that another table uses: its name here, its name there, and the other table."""
        for identity, shown in around.items():
            for other, table in self._found.get(identity, ()):
                yield shown, other, table


@dataclass(frozen=True, slots=True)
class _Paths:
    """A very large set of paths, as written and in normal form."""

    written: pa.Array
    plain: pa.Array

    @classmethod
    def of(cls, texts: Iterable[str]) -> _Paths:
        import pyarrow as pa

        written = pa.array(list(texts), pa.string())
        return cls(written, normals(written))

    def __len__(self) -> int:
        return len(self.written)

    def texts(self) -> list[str]:
        return list(self.written.to_pylist())

    def where(self, chosen: Any) -> _Paths:
        import pyarrow as pa

        if chosen.all():
            return self
        mask = pa.array(chosen, pa.bool_())
        return _Paths(self.written.filter(mask), self.plain.filter(mask))

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

    def add(self, paths: _Paths) -> None:
        outside = paths.where(~paths.may_be_in(self.names))
        if len(outside):  # almost never
            self._elsewhere.add(outside.written, outside.plain)

    @cached_property
    def elsewhere(self) -> Files:
        return self._elsewhere.files()

    def is_elsewhere(self, folders: _Paths) -> Any:
        """For each folder, whether it is outside this one and the operator has not declared the two places to be different."""
        return ~folders.may_be_in([*self.names, *self._apart])


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """Files in folders that may be a second name of the candidates' place."""

    files: Files
    folders: _Paths

    @classmethod
    def of(cls, files: Files, root: _Root | None) -> _Elsewhere | None:
        """None if there are no such files."""
        folders = _Paths.of(files.folders)
        if root is not None and len(files.names):
            chosen = root.is_elsewhere(folders)
            if not chosen.all():
                files = Files(
                    files.folders, *(each[chosen[files.places]] for each in (files.names, files.places))
                )
        return cls(files, folders) if len(files.names) else None

    def alike(self, candidates: _Paths, root: _Root | None) -> Iterator[tuple[str, list[str]]]:
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


def _by_root(candidates: _Paths, roots_: Iterable[_Root]) -> Iterator[tuple[_Root | None, _Paths]]:
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


def _strangers(paths: _Paths, home: str, aliases: Aliases) -> dict[str, None]:
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


def _store(path: str) -> str:
    return Location.of(path).store


def _booleans(values: Iterable[bool]) -> Any:
    import numpy as np

    return np.array(list(values), dtype=bool)
