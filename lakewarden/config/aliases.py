"""Places with two names: what the operator says about them, and what a disk of this machine says."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lakewarden.errors import Unreachable
from lakewarden.model.location import Location, is_absolute, is_local, join, local_path, normal, real

_LINE = re.compile(r"^\s*(?P<one>\S.*?)\s+(?P<sign>=|!=)\s+(?P<other>\S.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Aliases:
    """What the operator says about pairs of places: that they are one, or that they are not. Either is about all below them."""

    same: tuple[tuple[Location, Location], ...] = ()
    apart: tuple[tuple[Location, Location], ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Aliases:
        """From lines such as `/mnt/a = /mnt/b` and `s3://old != s3://new`. ValueError where a line is neither."""
        said: dict[str, list[tuple[Location, Location]]] = {"=": [], "!=": []}
        for text in texts:
            found = _LINE.match(text)
            if found is None or not (is_absolute(found["one"]) and is_absolute(found["other"])):
                raise ValueError(text)
            pair = Location.of(found["one"]), Location.of(found["other"])
            if pair[0].may_overlap(pair[1]):
                raise ValueError(text)
            said[found["sign"]].append(pair)
        return cls(tuple(said["="]), tuple(said["!="]))

    def texts(self) -> list[str]:
        """As they are written in a configuration."""
        said = (("=", self.same), ("!=", self.apart))
        return [f"{_shown(one)} {sign} {_shown(other)}" for sign, pairs in said for one, other in pairs]

    def and_links(self, folders: Iterable[str]) -> Aliases:
        """And that each of these folders of this machine is the one it is a link to."""
        pairs = ((Location.of(each), Location.of(real(each))) for each in folders if is_local(each))
        return replace(self, same=(*self.same, *(each for each in pairs if not each[0].may_overlap(each[1]))))

    def spellings(self, path: str) -> tuple[str, ...]:
        """A path, as it is written, and every other name that the operator says it has."""
        found = {normal(path): path}
        fresh = [path] if self.same else []
        for _ in self.same:  # one may lead to the next
            more = {normal(each): each for known in fresh for each in self._respelled(known)}
            fresh = [each for plain, each in more.items() if plain not in found]
            found = {**more, **found}
        return (path, *(each for each in found.values() if each != path))

    def covering(self, folder: str) -> list[Location]:
        """All names of a folder, and those of what lies in it under a name of its own."""
        places = [Location.of(each) for each in self.spellings(folder)]
        inner = [other for one, other in _both(self.same) if any(one.may_be_inside(each) for each in places)]
        return list(dict.fromkeys([*places, *inner]))

    def apart_from(self, folder: str) -> list[Location]:
        """Places of which the operator says that they are not where this folder is."""
        place = Location.of(folder)
        return [other for one, other in _both(self.apart) if place.may_be_inside(one)]

    def _respelled(self, path: str) -> Iterator[str]:
        place = Location.of(path)
        for one, other in _both(self.same):
            below = place.may_be_below(one)
            if below is not None:
                yield join(str(other), below) if below else str(other)


# Nothing can be at such a path, or nothing is.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class Disk:
    """Which folders of this machine are one, by device and inode, whatever leads to them: links, or a mount that shows another.

    Each folder is asked about once. A folder that may not be looked at is an error. Where `strict` is False it counts as not
    there: for paths that other tables name, because one such path would stop every deletion in the lake.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._known: dict[str, tuple[int, int] | None] = {}

    def identity(self, path: str) -> tuple[int, int] | None:
        """None for what is not on this machine, or not there."""
        plain = local_path(path)
        if plain is None:
            return None
        if plain not in self._known:
            try:
                found = Path(plain).stat()
                self._known[plain] = found.st_dev, found.st_ino
            except (OSError, ValueError) as error:
                self._raise_unless_gone(plain, error)
                self._known[plain] = None
        return self._known[plain]

    def _raise_unless_gone(self, path: str, error: OSError | ValueError) -> None:
        """ValueError: no file can have such a name."""
        if self._strict and isinstance(error, OSError) and error.errno not in _NOT_THERE:
            reason, hint = (
                error.strerror or str(error),
                f"let the user that runs Lakewarden read it; see `ls -ld {path}`",
            )
            raise Unreachable(what=path, reason=reason, hint=hint) from error

    def around(self, path: str) -> dict[tuple[int, int], str]:
        """The folder and all it lies in, as it is written and without links: by identity, under which name."""
        plain = local_path(path)
        if plain is None:
            return {}
        named = (*_ancestors(Location.of(plain).path), *_ancestors(real(plain)))
        found = {self.identity(each): each for each in reversed(named)}
        return {key: each for key, each in found.items() if key is not None}

    def links(self, folder: str) -> list[str]:
        """Right in a folder, the files and folders that are links to others. None of what is not on this machine, or not there."""
        plain = local_path(folder)
        if plain is None:
            return []
        try:
            with os.scandir(plain) as entries:
                return [join(plain, each.name) for each in entries if each.is_symlink()]
        except (OSError, ValueError) as error:
            self._raise_unless_gone(plain, error)
            return []

    def lies_in(self, path: str, folder: str) -> bool:
        """Whether a path is a folder or lies in it."""
        found = self.identity(folder)
        return found is not None and found in self.around(path)

    def overlap(self, one: str, other: str) -> bool:
        """Whether one of two folders is the other or lies in it."""
        first, second = self.identity(one), self.identity(other)
        if first is None or second is None:
            return False
        return first in self.around(other) or second in self.around(one)


def _ancestors(path: str) -> list[str]:
    """A folder and all it lies in, the innermost first."""
    found = [path]
    while path not in ("", "/"):
        path = path.rpartition("/")[0] or "/"
        found.append(path)
    return found


def _both(pairs: Sequence[tuple[Location, Location]]) -> Iterator[tuple[Location, Location]]:
    """Each pair, and the other way round."""
    for one, other in pairs:
        yield one, other
        yield other, one


def _shown(place: Location) -> str:
    return str(place).rstrip("/") or "/"
