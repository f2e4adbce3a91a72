"""Access to HDFS and to every other store that pyarrow can open, one request at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from lakewarden.errors import Unreachable
from lakewarden.model.location import split_url
from lakewarden.storage.interface import LISTING, Stat, Stats, modified_at

CHUNK = 1000


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
