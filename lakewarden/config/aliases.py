"""Places with two names: the aliases that the operator configured, and links and mounts on this machine's
disk."""

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
    """Pairs of places that the operator declared to be the same, or different. A pair also applies to
    everything below both places."""

    same: tuple[tuple[Location, Location], ...] = ()
    apart: tuple[tuple[Location, Location], ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Aliases:
        """Parse lines such as `/mnt/a = /mnt/b` and `s3://old != s3://new`. ValueError if a line is neither."""
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
        """The pairs as written in a configuration."""
        said = (("=", self.same), ("!=", self.apart))
        return [f"{_shown(one)} {sign} {_shown(other)}" for sign, pairs in said for one, other in pairs]

    def and_links(self, folders: Iterable[str]) -> Aliases:
        """These aliases, plus each of these local folders that is a symbolic link, paired with its target."""
        pairs = ((Location.of(each), Location.of(real(each))) for each in folders if is_local(each))
        return replace(self, same=(*self.same, *(each for each in pairs if not each[0].may_overlap(each[1]))))

    def spellings(self, path: str) -> tuple[str, ...]:
        """The path as written, and every other name it has because of the aliases."""
        found = {normal(path): path}
        fresh = [path] if self.same else []
        for _ in self.same:  # an alias may lead to another alias
            more = {normal(each): each for known in fresh for each in self._respelled(known)}
            fresh = [each for plain, each in more.items() if plain not in found]
            found = {**more, **found}
        return (path, *(each for each in found.values() if each != path))

    def covering(self, folder: str) -> list[Location]:
        """All names of a folder, and the other names of places inside it."""
        places = [Location.of(each) for each in self.spellings(folder)]
        inner = [other for one, other in _both(self.same) if any(one.may_be_inside(each) for each in places)]
        return list(dict.fromkeys([*places, *inner]))

    def apart_from(self, folder: str) -> list[Location]:
        """Places that the operator declared to be different from this folder."""
        place = Location.of(folder)
        return [other for one, other in _both(self.apart) if place.may_be_inside(one)]

    def _respelled(self, path: str) -> Iterator[str]:
        place = Location.of(path)
        for one, other in _both(self.same):
            below = place.may_be_below(one)
            if below is not None:
                yield join(str(other), below) if below else str(other)


# Errors that mean: the path does not exist, or cannot exist.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class Disk:
    """Detects local folders that are the same, by device and inode: symbolic links, or a second mount of the
    same folder.

    Each folder is looked up once. A folder without read permission is an error. With `strict=False` it counts
    as absent: this is for paths named by other tables, because one such path would stop every deletion in the
    lake.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._known: dict[str, tuple[int, int] | None] = {}

    def identity(self, path: str) -> tuple[int, int] | None:
        """Device and inode; None if the path is not local or does not exist."""
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
        """Ignore errors that mean the path does not exist. ValueError: no file can have such a name."""
        if self._strict and isinstance(error, OSError) and error.errno not in _NOT_THERE:
            reason, hint = (
                error.strerror or str(error),
                f"give the user that runs Lakewarden read permission; see `ls -ld {path}`",
            )
            raise Unreachable(what=path, reason=reason, hint=hint) from error

    def around(self, path: str) -> dict[tuple[int, int], str]:
        """The folder and its parents, as written and with links resolved: identity to path."""
        plain = local_path(path)
        if plain is None:
            return {}
        named = (*_ancestors(Location.of(plain).path), *_ancestors(real(plain)))
        found = {self.identity(each): each for each in reversed(named)}
        return {key: each for key, each in found.items() if key is not None}

    def links(self, folder: str) -> list[str]:
        """Symbolic links directly in a folder. Empty if the folder is not local or does not exist."""
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
        """Whether a path is the folder or is inside it."""
        found = self.identity(folder)
        return found is not None and found in self.around(path)

    def overlap(self, one: str, other: str) -> bool:
        """Whether the two folders are the same, or one is inside the other."""
        first, second = self.identity(one), self.identity(other)
        if first is None or second is None:
            return False
        return first in self.around(other) or second in self.around(one)


def _ancestors(path: str) -> list[str]:
    """A folder and its parents, innermost first."""
    found = [path]
    while path not in ("", "/"):
        path = path.rpartition("/")[0] or "/"
        found.append(path)
    return found


def _both(pairs: Sequence[tuple[Location, Location]]) -> Iterator[tuple[Location, Location]]:
    """Each pair, in both directions."""
    for one, other in pairs:
        yield one, other
        yield other, one


def _shown(place: Location) -> str:
    return str(place).rstrip("/") or "/"
