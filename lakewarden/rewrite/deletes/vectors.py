"""Reads deletion vectors: one data file's deleted positions as a Roaring bitmap, in a Puffin file or in
Paimon's own format.

The bitmap is read container by container, and each becomes a page of bits. As a list of positions, a vector
would take eight bytes for every deleted row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.deletes.deleted_rows import RowBits
from lakewarden.rewrite.read.store import DamagedSource, MissingSource, Store

_MAGIC = b"\xd1\xd3\x39\x64"
# Paimon's own kind: a 32-bit bitmap. Its other kind is Iceberg's.
_PAIMON_MAGIC = (1581511376).to_bytes(4)
_PAGE_ROWS = 1 << 16
# From the Roaring format: cookies of the two layouts, the maximum number of values stored as an array, and the
# number of containers from which the layout with runs also lists their offsets.
_PLAIN, _WITH_RUNS = 12346, 12347
_LARGEST_ARRAY = 4096
_OFFSETS_FROM = 4

Page = npt.NDArray[np.uint8]


class Damaged(ValueError):
    """The bytes are no valid deletion vector."""


def mark_vector(file: DeleteFile, files: Sequence[RowBits], store: Store) -> None:
    """Delete the rows whose positions the vector holds."""
    for start, page in _read(file, store):
        for bits in files:
            bits.add_page(start, page)


def check_vector(file: DeleteFile, store: Store) -> None:
    """Read the vector to its end; raises DamagedSource if it is invalid."""
    for _ in _read(file, store):
        pass


def _read(file: DeleteFile, store: Store) -> Iterator[tuple[int, Page]]:
    """Pages of bits, each with the position of its first row. The checksum is verified before the first page."""
    try:
        rows = 0
        for start, count, page in _pages(_checked(_blob(file, store))):
            rows += count
            yield start, page
        if rows != file.records >= 0:
            raise Damaged(f"it holds {rows} positions, the table says {file.records}")
    except Damaged as damage:
        raise DamagedSource(
            file.path, f"damaged deletion vector at {file.content_offset}: {damage}"
        ) from damage


def _blob(file: DeleteFile, store: Store) -> bytes:
    store.throttle.read(file.content_size, requests=2)
    with store.open(file.path) as handle:
        try:
            blob = bytes(handle.read_at(file.content_size, file.content_offset))
        except OSError as error:
            raise MissingSource(file.path, str(error)) from error
    # For one kind, Paimon's stated size includes length and checksum; for the other it does not, so they are requested too.
    return blob[: int.from_bytes(blob[:4]) + 8] if file.format == "paimon" else blob


def _checked(blob: bytes) -> tuple[bytes, memoryview]:
    """Magic and bitmap of the blob, which is: length, magic, bitmap, checksum of magic and bitmap."""
    if len(blob) < 12 or int.from_bytes(blob[:4]) != len(blob) - 8:
        raise Damaged(f"its length does not fit its {len(blob)} bytes")
    body = memoryview(blob)[4:-4]
    if body[:4] not in (_MAGIC, _PAIMON_MAGIC):
        raise Damaged(f"it begins with {bytes(body[:4]).hex()}")
    if zlib.crc32(body) != int.from_bytes(blob[-4:]):
        raise Damaged("its checksum differs")
    return bytes(body[:4]), body[4:]


class _Cursor:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def read(self, kind: str, count: int) -> npt.NDArray[Any]:
        size = np.dtype(kind).itemsize * count
        if size > len(self._data) - self._at:
            raise Damaged(f"it ends at byte {len(self._data)} and should not")
        self._at += size
        return np.frombuffer(self._data, kind, count, self._at - size)

    def number(self, kind: str) -> int:
        return int(self.read(kind, 1)[0])

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)


def _pages(vector: tuple[bytes, memoryview]) -> Iterator[tuple[int, int, Page]]:
    magic, bitmap = vector
    if magic == _MAGIC:
        yield from pages(bitmap)
        return
    for key, count, page in _containers(_Cursor(bitmap)):
        yield key << 16, count, page


def pages(bitmap: memoryview) -> Iterator[tuple[int, int, Page]]:
    """Every container of a 64-bit bitmap: position of its first bit, number of set bits, and the bits."""
    cursor = _Cursor(bitmap)
    for _ in range(cursor.number("<u8")):
        high = cursor.number("<u4")
        for key, count, page in _containers(cursor):
            yield (high << 32) | (key << 16), count, page
    if not cursor.at_end:
        raise Damaged("bytes follow its last bitmap")


def _containers(cursor: _Cursor) -> Iterator[tuple[int, int, Page]]:
    cookie = cursor.number("<u4")
    if cookie == _PLAIN:
        number = cursor.number("<u4")
        if number > _PAGE_ROWS:
            raise Damaged(f"a bitmap of {number} containers")
        runs = np.zeros(number, np.bool_)
    elif cookie & 0xFFFF == _WITH_RUNS:
        number = (cookie >> 16) + 1
        flags = cursor.read("u1", (number + 7) // 8)
        runs = np.unpackbits(flags, bitorder="little")[:number].astype(np.bool_)
    else:
        raise Damaged(f"a bitmap begins with {cookie}")
    heads = cursor.read("<u2", 2 * number).reshape(number, 2).tolist()
    if cookie == _PLAIN or number >= _OFFSETS_FROM:
        cursor.read("<u4", number)
    for (key, less_one), is_run in zip(heads, runs.tolist(), strict=True):
        page = _page(cursor, less_one + 1, is_run)
        if np.bitwise_count(page).sum() != less_one + 1:
            raise Damaged(f"container {key} does not hold {less_one + 1} positions")
        yield key, less_one + 1, page


def _page(cursor: _Cursor, count: int, is_run: bool) -> Page:
    if is_run:
        return _from_runs(cursor.read("<u2", 2 * cursor.number("<u2")).reshape(-1, 2))
    if count > _LARGEST_ARRAY:
        return cursor.read("u1", _PAGE_ROWS // 8)
    flags = np.zeros(_PAGE_ROWS, np.bool_)
    flags[cursor.read("<u2", count)] = True
    return np.packbits(flags, bitorder="little")


def _from_runs(runs: npt.NDArray[np.uint16]) -> Page:
    """A page from runs, each given as first and length minus one: count up where a run begins and down after its end."""
    starts = runs[:, 0].astype(np.int64)
    ends = np.minimum(starts + runs[:, 1] + 1, _PAGE_ROWS)
    steps = np.bincount(starts, minlength=_PAGE_ROWS + 1) - np.bincount(ends, minlength=_PAGE_ROWS + 1)
    return np.packbits(np.cumsum(steps[:-1]) > 0, bitorder="little")
