"""Opens the files that a kernel reads and writes, by the path in the table's metadata.

Local paths are literal after the scheme, as in Iceberg: `file:/a b%20c` is a file whose name holds a space and
a percent sign. Object stores use PyIceberg's FileIO, imported only when such a path occurs (the import takes
half a second).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from lakewarden.model.location import HADOOP, S3, is_local, local_path, split_url
from lakewarden.rate_limit import Throttle

GONE = "no such file"


class MissingSource(Exception):
    """A file that the table names is missing or cannot be read."""

    def __init__(self, path: str, reason: str | None = None) -> None:
        """Without a reason: the store answered that there is no such file. Otherwise it could not be read."""
        super().__init__(path, reason)
        self.path = path
        self.gone = reason is None
        self.reason = GONE if reason is None else reason

    def __str__(self) -> str:
        return f"read {self.path}: {self.reason}"


class DamagedSource(MissingSource):
    """A file that opens, but whose footer does not parse, or whose pages cannot be decoded or do not match
    their checksums.

    No other engine gets such a file: the result of a more lenient decoder would become the table's rows.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, " ".join(reason.split()))  # Arrow's messages have several lines


class Store:
    """Files by path, on the file system of each path. Reads and writes observe the store's rate limit."""

    def __init__(self, properties: Mapping[str, str], throttle: Throttle | None = None) -> None:
        self.throttle = throttle or Throttle(None)
        self._properties = dict(properties)
        self._local = fs.LocalFileSystem()
        self._io: Any = None

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for random access, or raise MissingSource."""
        where, name = self._locate(path)
        try:
            return where.open_input_file(name)
        except FileNotFoundError:
            raise MissingSource(path) from None
        except (
            OSError,
            pa.ArrowInvalid,
        ) as error:  # the latter for a name pyarrow cannot express, such as one with `//`
            raise MissingSource(path, str(error)) from error

    def create(self, path: str) -> pa.NativeFile:
        """A stream that replaces any file that an earlier attempt left under this name."""
        where, name = self._locate(path)
        if where is self._local:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
        return where.open_output_stream(name)

    def put(self, path: str, pieces: Iterable[Any]) -> None:
        """Write a file atomically: it is written under another name, and renamed when the disk has it."""
        where, name = self._locate(path)
        beside = f"{path}.part"
        with self.create(beside) as out:
            for piece in pieces:
                out.write(piece)
        written = self._locate(beside)[1]
        if where is self._local:
            with Path(written).open("rb") as file:
                os.fsync(file.fileno())
        where.move(written, name)

    def forget(self, path: str) -> None:
        """Drop the file from the system's cache, so that the next reader reads the disk. For a remote store: do nothing."""
        plain = local_path(path)
        if plain is None or not hasattr(os, "posix_fadvise"):
            return
        with suppress(FileNotFoundError), Path(plain).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def under(self, prefix: str) -> list[str]:
        """Files of one folder whose names begin with the prefix, in the prefix's own spelling."""
        head, _, start = prefix.rpartition("/")
        where, name = self._locate(head)
        try:
            infos = where.get_file_info(fs.FileSelector(name, allow_not_found=True))
        except pa.ArrowInvalid as error:
            raise OSError(str(error)) from error
        return [
            f"{head}/{info.base_name}" for info in infos if info.is_file and info.base_name.startswith(start)
        ]

    def remove(self, path: str) -> None:
        """Make sure that no file is left under this name."""
        scheme, bucket, key = split_url(path)
        if scheme in S3 and not is_local(path):
            # pyarrow would leave an empty object behind, named like the folder.
            from lakewarden.storage.s3_connection import connect

            connect(self._properties).delete_object(Bucket=bucket, Key=key)
            return
        where, name = self._locate(path)
        if where.get_file_info(name).type is not fs.FileType.NotFound:
            where.delete_file(name)

    def _locate(self, path: str) -> tuple[fs.FileSystem, str]:
        plain = local_path(path)
        if plain is not None:
            return self._local, plain
        scheme, bucket, key = split_url(path)
        where = self._object_io().fs_by_scheme(scheme, bucket)
        if scheme in HADOOP:
            return where, f"/{key}"
        # Azure paths say container@account; its file system takes only the container.
        return where, f"{bucket.partition('@')[0]}/{key}"

    def _object_io(self) -> Any:
        if self._io is None:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            self._io = PyArrowFileIO(_as_pyiceberg(self._properties))
        return self._io


def _as_pyiceberg(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate Iceberg's property for path-style addressing of buckets to PyIceberg's name."""
    path_style = properties.get("s3.path-style-access", "").lower()
    virtual = {"s3.force-virtual-addressing": str(path_style == "false")} if path_style else {}
    return {**virtual, **properties}
