"""Refuses or keeps files whose place may have two names, in one table or in two.

If the metadata names a file under one spelling and a store lists it under another, it looks like two files: a
needed one, and one that nothing names. So a table on two stores is refused, and so is a file whose path ends like
that of a needed file in another place, unless the operator says that the places are different. Another table may
also need the files under another path: those files stay, and the rest is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lakewarden.config.aliases import Aliases
from lakewarden.errors import Refused
from lakewarden.model.location import Location, real, same, without_common_end
from lakewarden.model.table import TableView
from lakewarden.tables.reachability import ReachableFiles
from lakewarden.tables.spelling import NamedPaths, OneFolder, PathSet

if TYPE_CHECKING:
    import pyarrow as pa


class Spellings:
    """The decisions about the files to be deleted of one table. `named` and `listed`: see `NamedPaths`."""

    def __init__(
        self,
        action: str,
        view: TableView,
        named: Callable[[], Iterable[pa.Array]],
        aliases: Aliases,
        listed: Iterable[str] = (),
    ) -> None:
        self._action, self._view = action, view
        self._names = NamedPaths(view, named, aliases, listed)

    def check(self, candidates: pa.Array | pa.ChunkedArray) -> None:
        """Refuses if one of these files, or one of the table's places, may have two names."""
        files, home = PathSet.of(candidates.to_pylist()), self._view.location
        for path in self._names.on_other_stores(files):
            raise self._refused(
                f"its location is {home}, but it names {path} on another store; Lakewarden cannot know whether both are the same store",
                f"{_store(home)}/FOLDER = {_store(path)}/FOLDER",
                f"{_store(home)} != {_store(path)}",
            )
        for folder in self._names.folders_alike(files):
            raise self._one_folder(folder)
        for candidate, other in self._names.files_alike(files):
            raise self._refused(
                f"{candidate} would be deleted, but its path ends like {other}, which the table needs;"
                " Lakewarden cannot know whether both are the same file",
                *_lines(candidate, other),
            )

    def doubtful(
        self, candidates: pa.Array | pa.ChunkedArray, others: Iterable[ReachableFiles]
    ) -> dict[str, str]:
        """The files that another table may need under another path, or that a link may need, each with the
        reason.

        `others` are the readings of all other tables. This is not a refusal: the writers of other tables chose
        these paths, and one path must not stop the deletion of all other files.
        """
        files, tables = PathSet.of(candidates.to_pylist()), list(others)
        doubts = self._linked_to(files)
        return {**self._called_like(files, tables), **self._in_one_folder(files, tables)} | doubts

    def _linked_to(self, files: PathSet) -> dict[str, str]:
        return {
            file: f"{link}, a link in the table's folders, leads to it; remove the link if nobody reads it"
            for file, link in self._names.linked_to(files).items()
        }

    def _called_like(self, files: PathSet, others: Iterable[ReachableFiles]) -> dict[str, str]:
        doubts: dict[str, str] = {}
        for file, table, other in self._names.called_like(files, others):
            reason = f"{table.table} names {other}, which may be the same file"
            doubts.setdefault(file, _settled_by(reason, *_lines(file, other)))
        return doubts

    def _in_one_folder(self, files: PathSet, others: Iterable[ReachableFiles]) -> dict[str, str]:
        doubts: dict[str, str] = {}
        for mine, table, found in self._names.in_one_folder(files, others):
            folder, other, shown = found.path, found.other, found.shown
            reason = (
                f"{folder} and {other}, which {table.table} uses, are one folder or one lies in the other"
            )
            lines = _lines(real(shown), other if same(real(shown), shown) else shown)
            doubts |= dict.fromkeys(mine, _settled_by(reason, *lines))
        return doubts

    def _one_folder(self, found: OneFolder) -> Refused:
        path, other = found.path, found.other
        device, inode = self._names.identity(path)
        return self._refused(
            f"{path} and {other} are one folder under two names, or one lies in the other"
            f" (device {device}, inode {inode} of this machine)",
            *_lines(*((real(other), other) if same(path, found.shown) else (path, found.shown))),
        )

    def _refused(self, reason: str, if_one: str, if_two: str) -> Refused:
        return Refused(
            action=self._action,
            target=self._view.ref,
            reason=reason,
            hint=f"nothing was changed; add to aliases in [paths] of lakewarden.toml: `{if_one}` if both are one place,"
            f" `{if_two}` if they are not; then run again",
        )


def _settled_by(reason: str, if_one: str, if_two: str) -> str:
    return f"{reason}; add `{if_one}` or `{if_two}` to aliases in [paths] of lakewarden.toml"


def _lines(one: str, other: str) -> tuple[str, str]:
    """What the operator writes if both are one place, and if they are not."""
    first, second = without_common_end(one, other)
    return f"{first} = {second}", f"{first} != {second}"


def _store(path: str) -> str:
    return Location.of(path).store
