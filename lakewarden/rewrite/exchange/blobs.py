"""The blobs of an exchange: in memory, or stored in a file that the receiver can open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TypeAlias

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob in a file."""

    path: str
    at: int
    size: int


Blob: TypeAlias = pa.Buffer | StoredBlob
Record = tuple[int, Blob]
# The number for a sending task's report about itself; no range has it. It goes to the first collecting task.
TELL = -1


def content(blob: Blob) -> pa.Buffer:
    if not isinstance(blob, StoredBlob):
        return blob
    with pa.OSFile(blob.path) as file:
        file.seek(blob.at)
        return file.read_buffer(blob.size)


def stored(records: Iterable[Record], folder: str) -> Iterator[Record]:
    """The same records, with all rows moved to a new file in this folder."""
    descriptor, path = tempfile.mkstemp(prefix="lakewarden-", dir=folder)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for number, blob in records:
            if number == TELL:
                yield number, blob
                continue
            data = content(blob)
            place = StoredBlob(path, file.tell(), data.size)
            _write(file, data)
            yield number, place


def _write(file: IO[bytes], data: pa.Buffer) -> None:
    """Write all bytes: the system may accept fewer than it is given at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


class BlobBuffer:
    """Blobs by range: in memory up to a limit, then in a temporary file without a name, which needs no clean-up."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._blobs: dict[int, list[Blob]] = {}
        self._spilled: dict[int, list[tuple[int, int]]] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> BlobBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, number: int, blob: Blob) -> None:
        in_memory = 0 if isinstance(blob, StoredBlob) else blob.size
        # After one blob was spilled all are, so that blobs of a range stay in the order they came.
        if self._file is None and self._size + in_memory <= self._limit:
            self._blobs.setdefault(number, []).append(blob)
            self._size += in_memory
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="lakewarden-")  # noqa: SIM115  closed by __exit__
        self._spilled.setdefault(number, []).append((self._file.tell(), blob.size))
        self._file.write(content(blob))

    def numbers(self) -> list[int]:
        return sorted({*self._blobs, *self._spilled})

    def size(self, number: int) -> int:
        known = sum(int(blob.size) for blob in self._blobs.get(number, ()))
        return known + sum(size for _, size in self._spilled.get(number, ()))

    def release(self, number: int) -> None:
        self._blobs.pop(number, None)

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The range's batches. May be read repeatedly."""
        for blob in self._blobs.get(number, ()):
            yield from pa.ipc.open_stream(content(blob)).read_all().to_batches()
        for at, size in self._spilled.get(number, ()):
            assert self._file is not None
            self._file.seek(at)
            yield from pa.ipc.open_stream(self._file.read(size)).read_all().to_batches()
