"""Access to files of this machine. Plain system calls are several times as fast as a library that also supports
object stores.
"""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import Unreachable
from lakewarden.model.location import local_path
from lakewarden.storage.interface import LISTING, LOOKED, Stat, Stats, modified_at

BATCH = 16_384

# A file is also missing if its folder is gone, or is now a file.
_GONE = (FileNotFoundError, NotADirectoryError)


class LocalFiles:
    """Any path without a scheme, or with `file:`."""

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        rows = _Rows()
        try:
            for path, entry in _walk(folder if folder.endswith("/") else f"{folder}/"):
                rows.add(path, entry)
                if len(rows.paths) >= BATCH:
                    yield rows.batch()
                    rows = _Rows()
        except OSError as error:
            raise Unreachable(what=folder, reason=_reason(error)) from error
        if rows.paths:
            yield rows.batch()

    def stat(self, paths: Sequence[str]) -> Stats:
        return [_stat(path) for path in paths]

    def look(self, paths: Sequence[str]) -> pa.Table:
        """The result of `stat` as columns: takes a tenth of its time for very many files."""
        sizes: list[int | None] = []
        changed: list[int | None] = []
        for path in paths:
            try:
                info = os.stat(_plain(path))
            except _GONE:
                info = None
            except OSError as error:
                raise Unreachable(what=path, reason=_reason(error)) from error
            exists = info is not None and not modes.S_ISDIR(info.st_mode)
            sizes.append(info.st_size if info and exists else None)
            changed.append(info.st_mtime_ns if info and exists else None)
        nanos = pa.array(changed, pa.int64())
        modified = pc.divide(nanos, 1000).cast(LOOKED.field("modified").type)
        return pa.Table.from_arrays(
            [pa.array(sizes, pa.int64()), modified, nanos.cast(pa.string())], schema=LOOKED
        )

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        failed = {}
        for path in paths:
            if reason := _unlink(_plain(path)):
                failed[path] = reason
        return failed

    def read(self, path: str, start: int, length: int | None) -> bytes:
        try:
            with Path(_plain(path)).open("rb") as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except _GONE:
            raise FileNotFoundError(path) from None
        except OSError as error:
            raise Unreachable(what=path, reason=_reason(error)) from error

    def write(self, path: str, content: bytes) -> None:
        name = Path(_plain(path))
        beside = name.with_name(f"{name.name}.part")
        try:
            name.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(content)
            beside.replace(name)
        except OSError as error:
            raise Unreachable(what=path, reason=_reason(error)) from error

    def remove_empty_folders(self, folders: Iterable[str], root: str) -> int:
        # Compare real paths: a symlink inside the root may lead out of it.
        top = os.path.realpath(_plain(root))
        real = {os.path.realpath(_plain(folder)) for folder in folders}
        # The deepest first, so that each folder is checked after the folders inside it.
        return sum(_remove_upwards(each, top) for each in sorted(real, key=len, reverse=True))


def _plain(path: str) -> str:
    plain = local_path(path)
    assert plain is not None, f"{path} is not a local file"
    return plain


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


class _Rows:
    """Columns being built. Lists of plain numbers, because building rows first takes longer than the listing itself."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.sizes: list[int] = []
        self.changed: list[int] = []

    def add(self, path: str, entry: os.DirEntry[str]) -> None:
        try:
            status = entry.stat()
        except FileNotFoundError:
            return  # deleted since its folder was read
        self.paths.append(path)
        self.sizes.append(status.st_size)
        self.changed.append(status.st_mtime_ns)

    def batch(self) -> pa.RecordBatch:
        nanos = np.array(self.changed, dtype=np.int64)
        modified = pa.array(nanos // 1000).cast(LISTING.field("modified").type)
        columns = [_strings(self.paths), pa.array(self.sizes, pa.int64()), modified]
        return pa.RecordBatch.from_arrays([*columns, pa.array(nanos).cast(pa.string())], schema=LISTING)


def _strings(paths: Sequence[str]) -> pa.Array:
    try:
        return pa.array(paths, pa.string())
    except UnicodeEncodeError as error:
        name = str(error.object).encode("utf-8", "backslashreplace").decode()
        raise Unreachable(
            what=name, reason="its name is not UTF-8", hint="rename it: no table can name such a file"
        ) from None


def _walk(top: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Files with their spelling. Includes symlinks to files; does not follow symlinks to folders, which may
    lead out or in circles.
    """
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        try:
            entries = os.scandir(_plain(folder))
        except _GONE:
            continue  # never existed, or removed since its parent was read: it contains nothing
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{folder}{entry.name}/")
                elif entry.is_file():
                    yield f"{folder}{entry.name}", entry


def _stat(path: str) -> Stat | None:
    try:
        status = os.stat(_plain(path))
    except _GONE:
        return None
    except OSError as error:
        raise Unreachable(what=path, reason=_reason(error)) from error
    if modes.S_ISDIR(status.st_mode):
        return None  # a folder is not a file
    return Stat(status.st_size, modified_at(status.st_mtime_ns), str(status.st_mtime_ns))


def _unlink(plain: str) -> str | None:
    """Why the file still exists, if it does."""
    try:
        os.unlink(plain)
    except _GONE:
        pass
    except OSError as error:
        return _reason(error)
    _unlink_checksum(plain)
    return None


def _unlink_checksum(plain: str) -> None:
    """Delete the Hadoop checksum: Hadoop keeps `.NAME.crc` beside NAME, and both are deleted together."""
    folder, _, name = plain.rpartition("/")
    try:
        os.unlink(f"{folder}/.{name}.crc")
    except OSError:
        # Usually there is none. A checksum that cannot be removed is harmless, because its file is gone.
        return


def _remove_upwards(folder: str, top: str) -> int:
    removed = 0
    while folder.startswith(f"{top}/"):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass  # its parent may still be empty
        except OSError:
            break  # not empty, or no permission to remove it: a remaining empty folder costs nothing
        else:
            removed += 1
        folder = os.path.dirname(folder)
    return removed
