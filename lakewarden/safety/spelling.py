"""Two names of one place inside one table: told apart for sure, or refused with both names.

A file that the metadata names under one spelling and that a store lists under another looks like two files: one that is
needed, and one that nothing names. Whether two spellings are one place is known of a disk of this machine (device and inode),
and where the operator says so. Else a table on two stores is refused, and so is a file to be deleted whose path ends like
that of a needed file in another place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakewarden.aliases import Aliases, Disk
from lakewarden.errors import Refused
from lakewarden.location import (
    Location,
    all_inside,
    may_be_in,
    normals,
    one_of_each_store,
    parent,
    parents,
    real,
    same,
    shortest,
    tails,
    without_common_end,
)
from lakewarden.model import TableView
from lakewarden.safety.ownership import roots
from lakewarden.safety.reached import contains

if TYPE_CHECKING:
    import pyarrow as pa

# A file is compared by its name and its folder's; one that lies right in a folder of the table by its name alone.
_NAME, _NAME_AND_FOLDER = 1, 2


class Spellings:
    """The names that the metadata of one state of a table uses, to hold files that are to be deleted against."""

    def __init__(
        self, action: str, view: TableView, named: Callable[[], Iterable[pa.Array]], aliases: Aliases
    ) -> None:
        """`named` reads the paths that the metadata has, from the beginning each time it is called."""
        self._action, self._view, self._read, self._aliases = action, view, named, aliases
        self._disk = Disk()
        self._roots = [_Root(each, aliases) for each in shortest(roots(view).values())]
        self._names = [name for root in self._roots for name in root.names]
        self._strangers = _strangers(_Paths.of(roots(view).values()), view.location, aliases)
        for paths in self._named():
            outside = paths.where(~paths.may_be_in(self._names))
            self._strangers |= _strangers(outside, view.location, aliases)
            # What lies in none of the folders is elsewhere for each of them; and of several, each is elsewhere for the others.
            for root in self._roots:
                root.add(outside if len(self._roots) == 1 else paths)

    def check(self, candidates: pa.Array | pa.ChunkedArray) -> None:
        """Refused where one of these files, or one of the table's places, may have two names."""
        left = _Paths.of(candidates.to_pylist())
        self._check_stores(left)
        self._check_folders(left)
        for root in self._roots:
            mine = all_inside(left.written, [root.path]).to_numpy(zero_copy_only=False)
            self._check_ends(left.where(mine), root.elsewhere, root.path, root.is_elsewhere)
            left = left.where(~mine)
        if len(left):
            self._check_ends(left, self._inside, None, self._is_inside)

    def _named(self) -> Iterator[_Paths]:
        return (_Paths(each, normals(each)) for each in self._read())

    @cached_property
    def _inside(self) -> _Elsewhere:
        """For a file that lies in none of the table's folders, those that do are elsewhere."""
        found = _Elsewhere()
        for paths in self._named():
            found.add(paths.where(self._is_inside(paths)))
        return found

    def _is_inside(self, paths: _Paths) -> Any:
        return paths.may_be_in(self._names)

    def _check_stores(self, candidates: _Paths) -> None:
        home = self._view.location
        for path in self._strangers | _strangers(candidates, home, self._aliases):
            raise self._refused(
                f"it is at {home} and has {path} on another store; whether both stores are one cannot be told",
                f"{_store(home)}/FOLDER = {_store(path)}/FOLDER",
                f"{_store(home)} != {_store(path)}",
            )

    def _check_folders(self, candidates: _Paths) -> None:
        """By device and inode: the table's own folders, those that its metadata names, those of the files to be deleted."""
        asked = _Paths.of(parents(candidates.written))
        for root in self._roots:
            own = self._disk.identity(root.path)
            others = [each.path for each in self._roots if each is not root]
            others += [*root.elsewhere.folders, *asked.where(~asked.may_be_in(root.names)).texts()]
            for other in others if own is not None else ():
                around = self._disk.around(other)
                if own in around:
                    raise self._one_folder(root.path, other, around[own])
        self._check_same_folder(asked.texts())

    def _check_same_folder(self, asked: Iterable[str]) -> None:
        named: dict[tuple[int, int], list[str]] = {}
        for each in dict.fromkeys(path for root in self._roots for path in root.elsewhere.folders):
            identity = self._disk.identity(each)
            if identity is not None:
                named.setdefault(identity, []).append(each)
        for folder in asked if named else ():
            identity = self._disk.identity(folder)
            for other in named.get(identity, ()) if identity is not None else ():
                known = (Location.of(each) for each in self._aliases.spellings(other))
                if not any(Location.of(folder).may_be(each) for each in known):
                    raise self._one_folder(folder, other, other)

    def _one_folder(self, path: str, other: str, shown: str) -> Refused:
        identity = self._disk.identity(path) or ("unknown", "unknown")
        return self._refused(
            f"{path} and {other} are one folder under two names, or one lies in the other"
            f" (device {identity[0]}, inode {identity[1]} of this machine)",
            *self._lines(*((real(other), other) if same(path, shown) else (path, shown))),
        )

    def _check_ends(
        self,
        candidates: _Paths,
        elsewhere: _Elsewhere,
        root: str | None,
        is_elsewhere: Callable[[_Paths], Any],
    ) -> None:
        if not len(candidates) or not elsewhere.files:
            return
        right_in = _booleans(root is not None and same(parent(each), root) for each in candidates.texts())
        for parts, chosen in ((_NAME, right_in), (_NAME_AND_FOLDER, ~right_in)):
            mine = candidates.where(chosen)
            found = mine.where(contains(elsewhere.ends(parts), mine.ends(parts)))
            if len(found):
                candidate = found.texts()[0]
                other = self._named_like(found, parts, is_elsewhere)
                raise self._refused(
                    f"{candidate} is to be deleted, and {other}, which its metadata names, ends in the same way;"
                    " whether both are one file cannot be told",
                    *self._lines(candidate, other),
                )

    def _named_like(self, candidates: _Paths, parts: int, is_elsewhere: Callable[[_Paths], Any]) -> str:
        """The file that the first of these is like."""
        wanted = candidates.ends(parts)[:1]
        for paths in self._named():
            elsewhere = paths.where(is_elsewhere(paths))
            found = elsewhere.where(contains(wanted, elsewhere.ends(parts)))
            if len(found):
                return found.texts()[0]
        raise AssertionError("what was read of the metadata before is in it")

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


@dataclass(frozen=True, slots=True)
class _Paths:
    """Very many paths, as they are written and in normal form."""

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

    def ends(self, parts: int) -> Any:
        return tails(self.plain, parts)


class _Elsewhere:
    """Files that the metadata names outside of some folder: how they end, and their folders."""

    def __init__(self) -> None:
        self._ends: dict[int, list[Any]] = {_NAME: [], _NAME_AND_FOLDER: []}
        self._sorted: dict[int, Any] = {}
        self.folders: dict[str, None] = {}
        self.files = 0

    def add(self, paths: _Paths) -> None:
        self.files += len(paths)
        for parts, found in self._ends.items():
            found.append(paths.ends(parts))
        self._sorted.clear()

    def ends(self, parts: int) -> Any:
        """Sorted numbers."""
        import numpy as np

        if parts not in self._sorted:
            self._sorted[parts] = np.unique(np.concatenate(self._ends[parts]))
        return self._sorted[parts]


class _Root:
    """A folder of the table, all names of it that the operator knows, and what the metadata names elsewhere."""

    def __init__(self, path: str, aliases: Aliases) -> None:
        self.path = path
        self.names = aliases.covering(path)
        self._apart = aliases.apart_from(path)
        self.elsewhere = _Elsewhere()

    def add(self, paths: _Paths) -> None:
        outside = paths.where(~paths.may_be_in(self.names))
        if len(outside):  # nearly never
            self.elsewhere.folders.update(dict.fromkeys(parents(outside.written)))
            self.elsewhere.add(outside.where(self.is_elsewhere(outside)))

    def is_elsewhere(self, paths: _Paths) -> Any:
        """For each path whether it is outside of the folder, and the operator does not tell the two places apart."""
        return ~paths.may_be_in([*self.names, *self._apart])


def _strangers(paths: _Paths, home: str, aliases: Aliases) -> dict[str, None]:
    """Of each store that may not be the one of the table's location one file, unless the operator knows of it."""
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
    found = asked.written.take(one_of_each_store(asked.plain)).to_pylist()
    return {each: None for each in found if not Location.of(each).may_share_store(place)}


def _store(path: str) -> str:
    return Location.of(path).store


def _booleans(values: Iterable[bool]) -> Any:
    import numpy as np

    return np.array(list(values), dtype=bool)
