"""Lists, stats, reads, writes and deletes files by path on the driver, on the store of each path. `ArrowFiles`
is for HDFS and every other store that pyarrow can open, one request at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import fs

from lakewarden.errors import Unreachable
from lakewarden.model.location import AZURE, GOOGLE, S3, is_local, split_url
from lakewarden.storage.interface import LISTING, LOOKED, FileStore, Stat, Stats, modified_at
from lakewarden.storage.local import LocalFiles

__all__ = ["LISTING", "Objects", "Stat"]

CHUNK = 1000


class Objects:
    """Files of all stores, reached with the properties of a table's FileIO. Connects to a store when its first path occurs."""

    def __init__(self, io: Mapping[str, str]) -> None:
        self._io = dict(io)
        self._local = LocalFiles()
        self._stores: dict[tuple[str, str], FileStore] = {("file", ""): self._local}

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Every file under the folder, at any depth, in the folder's own spelling. Complete, or raises; a
        missing folder is empty.
        """
        return self._store(folder).list(folder)

    def stat(self, paths: Sequence[str]) -> Stats:
        """The stat results in the order of the paths; None for a missing file. Any other failure raises."""
        stats: dict[str, Stat | None] = {}
        for own in _by_place(paths):
            stats.update(zip(own, self._store(own[0]).stat(own), strict=True))
        return [stats[path] for path in paths]

    def look(self, paths: Sequence[str]) -> pa.Table:
        """The same as columns: size, modified, stamp; null for a missing file. For very many files, where objects cost more."""
        if all(is_local(path) for path in paths):
            return self._local.look(paths)
        stats = self.stat(paths)
        return pa.table(
            {
                name: pa.array([None if stat is None else getattr(stat, name) for stat in stats], kind)
                for name, kind in zip(LOOKED.names, LOOKED.types, strict=True)
            }
        )

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        """Returns only failures: path to reason. A missing file is a success. On local disks, a file's Hadoop
        checksum is deleted too.
        """
        failed: dict[str, str] = {}
        for own in _by_place(paths):
            failed |= self._store(own[0]).delete(own)
        return failed

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """The requested bytes, fewer at the file's end, or FileNotFoundError."""
        return self._store(path).read(path, start, length)

    def write(self, path: str, content: bytes) -> None:
        """Write a small file atomically, replacing any existing one."""
        self._store(path).write(path, content)

    def remove_empty_folders(self, folders: Iterable[str], root: str) -> int:
        """Remove empty folders on local disks, and their empty parents, but never `root` or a folder outside it."""
        return self._store(root).remove_empty_folders(
            [folder for folder in folders if is_local(folder)], root
        )

    def _store(self, path: str) -> FileStore:
        place = _place(path)
        if place not in self._stores:
            self._stores[place] = self._connect(*place)
        return self._stores[place]

    # Each library is imported when its first path occurs: imports are slow, and most lakes need only one.

    def _connect(self, kind: str, bucket: str) -> FileStore:
        if kind == "s3":
            from lakewarden.storage.s3 import S3Files

            return S3Files(self._s3, bucket)
        if kind in ("google", "azure"):
            from lakewarden.storage import cloud

            return (cloud.google if kind == "google" else cloud.azure)(bucket, self._io)
        from pyiceberg.io.pyarrow import PyArrowFileIO

        return ArrowFiles(PyArrowFileIO(self._io).fs_by_scheme(kind, bucket), f"{kind}://{bucket}")

    @cached_property
    def _s3(self) -> Any:
        from lakewarden.storage.s3_client import connect

        return connect(self._io)


def _place(path: str) -> tuple[str, str]:
    """The kind of store and the bucket in it."""
    if is_local(path):
        return "file", ""
    scheme, bucket, _ = split_url(path)
    for kind, schemes in (("s3", S3), ("google", GOOGLE), ("azure", AZURE)):
        if scheme in schemes:
            return kind, bucket
    return scheme, bucket


def _by_place(paths: Sequence[str]) -> Iterable[list[str]]:
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in dict.fromkeys(paths):
        grouped[_place(path)].append(path)
    return grouped.values()


class ArrowFiles:
    """One file system. A path's name begins after its authority."""

    def __init__(self, where: Any, authority: str) -> None:
        self._where, self._authority = where, authority

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        top = folder.rstrip("/")
        name = _name(top)
        try:
            infos = self._where.get_file_info(fs.FileSelector(name, allow_not_found=True, recursive=True))
        except OSError as error:
            raise self._unreachable(error) from error
        files = [info for info in infos if info.is_file]
        for start in range(0, len(files), CHUNK):
            yield _batch(top, name, files[start : start + CHUNK])

    def stat(self, paths: Sequence[str]) -> Stats:
        try:
            infos = self._where.get_file_info([_name(path) for path in paths])
        except OSError as error:
            raise self._unreachable(error) from error
        return [_stat(info) if info.is_file else None for info in infos]

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        failed = {}
        for path in paths:
            try:
                self._where.delete_file(_name(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                if reason := self._still_there(path, error):
                    failed[path] = reason
        return failed

    def read(self, path: str, start: int, length: int | None) -> bytes:
        try:
            with self._where.open_input_file(_name(path)) as file:
                file.seek(min(start, file.size()))
                return bytes(file.read(length))
        except FileNotFoundError:
            raise FileNotFoundError(path) from None
        except OSError as error:
            raise self._unreachable(error) from error

    def write(self, path: str, content: bytes) -> None:
        try:
            with self._where.open_output_stream(_name(path)) as file:
                file.write(content)
        except OSError as error:
            raise self._unreachable(error) from error

    def remove_empty_folders(self, folders: Iterable[str], root: str) -> int:
        return 0

    def _still_there(self, path: str, error: OSError) -> str | None:
        """Check whether the file still exists: for a missing file, HDFS only says that it could not be deleted."""
        try:
            gone = self._where.get_file_info(_name(path)).type is fs.FileType.NotFound
        except OSError:
            return str(error)
        return None if gone else str(error)

    def _unreachable(self, error: OSError) -> Unreachable:
        return Unreachable(what=self._authority, reason=str(error))


def _name(path: str) -> str:
    return f"/{split_url(path)[2]}"


def _stat(info: Any) -> Stat:
    return Stat(info.size, modified_at(info.mtime_ns), str(info.mtime_ns))


def _batch(top: str, name: str, files: Sequence[Any]) -> pa.RecordBatch:
    stats = [_stat(file) for file in files]
    rows = {
        "path": [top + file.path[len(name.rstrip("/")) :] for file in files],
        "size": [stat.size for stat in stats],
        "modified": [stat.modified for stat in stats],
        "stamp": [stat.stamp for stat in stats],
    }
    return pa.RecordBatch.from_pydict(rows, schema=LISTING)
