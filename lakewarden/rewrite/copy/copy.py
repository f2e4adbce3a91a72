"""Copies one file to another store, in pieces, and reads it back: the result describes the file that the store
really has.

Runs in Spark's workers. An equal copy that already exists stays as it is. So does any other file of that
name: a copy gets its name only when it is complete, so the file is not an interrupted copy, and a snapshot
of the colder tier may need it.

Delete files name data files. Their copies are rewritten so that they name the copies.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import BotoCoreError, ClientError

from lakewarden.model.location import Location, elsewhere
from lakewarden.rate_limit import Pace, Throttle
from lakewarden.rewrite.copy.relocate_manifests import same_records
from lakewarden.rewrite.read.store import MissingSource, Store
from lakewarden.storage.s3_copy import copy_within, on_s3, upload, within

PIECE = 8 << 20
# Current processors compute it at 2 GB/s, twice as fast as any other real checksum of the standard library.
_CHECKSUM = hashlib.sha256
OTHER = "another file with this name exists and was not changed"
# A value for `known` that no file matches, so that nothing is written.
NEVER = (-1, "")
CHANGED = "it changed since it was copied"


class Stray(Exception):
    """A delete file cannot be relocated: one of its data files lies elsewhere, or the file has unexpected content."""


_TROUBLE = (MissingSource, Stray, OSError, ValueError, pa.ArrowException, BotoCoreError, ClientError)

# The table's folder and the copy's folder.
Move = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CopyTask:
    """`rehome` is set for files that name other files: the table's folder and the copy's. Without it the bytes
    stay as they are.

    `known` is what the copy was when it was made: a copy that has changed since is written again, if the result
    equals `known`.
    """

    source: str
    target: str
    source_io: Mapping[str, str]
    target_io: Mapping[str, str]
    pace: Pace | None = None
    rehome: tuple[str, str] | None = None
    storage_class: str | None = None  # S3 only
    known: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Copied:
    source: str
    target: str
    bytes: int
    checksum: str
    written: bool
    trouble: str = ""
    storage_class: str | None = None  # requested, S3 only


def copy(task: CopyTask) -> Copied:
    """Copy the file. Failures are returned, not raised, so that the other files of the batch are still copied."""
    throttle = Throttle(task.pace)
    source, target = Store(task.source_io, throttle), Store(task.target_io, throttle)
    try:
        with ExitStack() as closing:
            relocated = (
                closing.enter_context(rehomed(source, task.source, task.rehome)) if task.rehome else None
            )
            return _copied(task, source, target, relocated)
    except _TROUBLE as error:
        return Copied(task.source, task.target, 0, "", False, str(error))
    finally:
        throttle.settle()


def _copied(task: CopyTask, source: Store, target: Store, relocated: IO[bytes] | None) -> Copied:
    had = _there(target, task.target)
    if had is not None or task.known is not None:
        expected = _measured(source, task.source) if relocated is None else _measure(_parts(relocated))
        if had is not None and (had == expected or _same(task, target, relocated)):
            return Copied(task.source, task.target, *had, written=False)
        if expected != task.known:
            return Copied(task.source, task.target, 0, "", False, OTHER if task.known is None else CHANGED)
    if relocated is None and within(task.source, task.source_io, task.target, task.target_io):
        copy_within(task.source, task.target, task.target_io, task.storage_class)
        expected = _measured(source, task.source)
    else:
        pieces = _pieces(source, task.source) if relocated is None else _parts(relocated)
        expected = _streamed(pieces, target, task)
    # Read the copy back from the store, not from this machine's memory: the store may not have all that was sent.
    target.forget(task.target)
    actual = _measured(target, task.target)
    if actual != expected:
        return Copied(
            task.source, task.target, 0, "", True, "the copy differs from the file it was made from"
        )
    kind = task.storage_class if on_s3(task.target) else None
    return Copied(task.source, task.target, *actual, written=True, storage_class=kind)


def measure(task: CopyTask) -> Copied:
    """The current size and checksum of the copy."""
    throttle = Throttle(task.pace)
    store = Store(task.target_io, throttle)
    try:
        store.forget(task.target)
        return Copied(task.source, task.target, *_measured(store, task.target), written=False)
    except _TROUBLE as error:
        return Copied(task.source, task.target, 0, "", False, str(error))
    finally:
        throttle.settle()


def placed(source: str, target: str, content: bytes, io: Mapping[str, str]) -> Copied:
    """Store metadata that was rewritten from a file. An existing file with the same records in other bytes stays as it is."""
    store = Store(io)
    had = _content(store, target)
    if had is not None:
        same = had == content or same_records(had, content)
        measured = (len(had), checksum(had)) if same else (0, "")
        return Copied(source, target, *measured, False, "" if same else OTHER)
    if on_s3(target):
        upload(iter([content]), target, io, None)
    else:
        store.put(target, [content])
    store.forget(target)
    trouble = "" if _content(store, target) == content else "the copy differs from what was written"
    return Copied(source, target, len(content), checksum(content), True, trouble)


def checksum(content: bytes) -> str:
    return _CHECKSUM(content).hexdigest()


def _content(store: Store, path: str) -> bytes | None:
    try:
        with store.open(path) as file:
            return bytes(file.read())
    except MissingSource as error:
        if error.gone:
            return None
        raise


def _same(task: CopyTask, target: Store, relocated: IO[bytes] | None) -> bool:
    """Whether an existing copy deletes the same rows. That is enough if its record was lost."""
    if relocated is None or task.known is not None or not task.target.endswith(".parquet"):
        return False
    return same_deletes(target, task.target, relocated)


def _streamed(pieces: Iterator[Any], target: Store, task: CopyTask) -> tuple[int, str]:
    """Stream the pieces to the target, with at most two in memory, however large the file. Returns size and checksum."""
    size, checksum_state = 0, _CHECKSUM()

    def passing() -> Iterator[Any]:
        nonlocal size
        for piece in pieces:
            size += len(piece)
            checksum_state.update(piece)
            yield piece
            target.throttle.wrote(len(piece))

    if on_s3(task.target):
        # pyarrow would leave a partial file under the file's name if reading the source fails.
        upload(passing(), task.target, task.target_io, task.storage_class)
    else:
        target.put(task.target, passing())
    return size, checksum_state.hexdigest()


def _there(store: Store, path: str) -> tuple[int, str] | None:
    try:
        return _measured(store, path)
    except MissingSource as error:
        if error.gone:
            return None
        raise


def _measured(store: Store, path: str) -> tuple[int, str]:
    return _measure(_pieces(store, path))


def _measure(pieces: Iterator[Any]) -> tuple[int, str]:
    size, checksum_state = 0, _CHECKSUM()
    for piece in pieces:
        size += len(piece)
        checksum_state.update(piece)
    return size, checksum_state.hexdigest()


def _pieces(store: Store, path: str) -> Iterator[Any]:
    with store.open(path) as file:
        while piece := file.read(PIECE):
            store.throttle.read(len(piece))
            yield piece


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(PIECE):
        yield piece


# The column of a position delete file that holds the path of a data file.
_PATH = "file_path"
_PUFFIN, _REFERENCED = b"PFA1", "referenced-data-file"
_FOOTER_PACKED = 1
_IN_MEMORY = 8 << 20
_ROWS = 64 << 10


def moved(path: str, move: Move) -> str:
    """The path of the data file's copy, spelled as the copy's manifests spell it: readers compare texts."""
    live, copy = move
    if (place := elsewhere(path, Location.of(live), copy)) is None:
        raise Stray(f"it deletes rows of {path}, which lies outside the table")
    return place


@contextmanager
def rehomed(store: Store, path: str, move: Move) -> Iterator[IO[bytes]]:
    """The relocated file's content, to be read from the start.

    It works on a temporary file, part by part:

      Parquet   the column of paths is replaced, row group by row group
      Puffin    the blobs stay as they are, at the same offsets; the footer after them names each blob's data file
    """
    with tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="lakewarden-") as relocated:
        with store.open(path) as file:
            store.throttle.read(file.size())
            if path.endswith(".puffin"):
                _puffin(file, relocated, move)
            else:
                _parquet(file, relocated, move)
        relocated.seek(0)
        yield relocated


def same_deletes(store: Store, path: str, made: IO[bytes]) -> bool:
    """Whether an existing Parquet file has the same rows: another version of the writer may write them as other bytes."""
    made.seek(0)
    with store.open(path) as file:
        existing, expected = pq.ParquetFile(file, page_checksum_verification=True), pq.ParquetFile(made)
        if (
            existing.metadata.num_rows != expected.metadata.num_rows
            or existing.schema_arrow.names != expected.schema_arrow.names
        ):
            return False
        pairs = zip(existing.iter_batches(_ROWS), expected.iter_batches(_ROWS), strict=True)
        return all(one.equals(other) for one, other in pairs)


def _parquet(file: pa.NativeFile, target: Any, move: Move) -> None:
    if _PATH not in pq.ParquetFile(file).schema_arrow.names:
        raise Stray("it is not a position delete file: it has no column file_path")
    # A delete that is read wrongly would be written again with a correct checksum.
    source = pq.ParquetFile(file, read_dictionary=[_PATH], page_checksum_verification=True)
    schema = source.schema_arrow
    place = schema.get_field_index(_PATH)
    field = schema.field(place).with_type(pa.string())
    schema = schema.set(place, field)
    with pq.ParquetWriter(
        target, schema, compression="zstd", store_schema=False, write_page_checksum=True
    ) as writer:
        writer.add_key_value_metadata(_own_words(source))
        for number in range(source.num_row_groups):
            group = source.read_row_group(number)
            paths = pa.chunked_array(
                [_moved_column(chunk, move) for chunk in group.column(place).chunks], pa.string()
            )
            writer.write_table(group.set_column(place, field, paths), row_group_size=max(1, group.num_rows))


def _own_words(source: pq.ParquetFile) -> dict[bytes, bytes]:
    """The key-value metadata of the writer, for example that this is a position delete file."""
    metadata = source.metadata.metadata or {}
    return {key: value for key, value in metadata.items() if key != b"ARROW:schema"}


def _moved_column(column: pa.DictionaryArray, move: Move) -> pa.Array:
    """Relocate each distinct path once, however many rows have it."""
    names = [None if each is None else moved(each, move) for each in column.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(column.indices, pa.array(names, pa.string())).cast(pa.string())


def _puffin(file: pa.NativeFile, target: Any, move: Move) -> None:
    size = file.size()
    file.seek(max(0, size - 12))
    tail = file.read(12)
    length, flags = int.from_bytes(tail[:4], "little"), int.from_bytes(tail[4:8], "little")
    start = size - 12 - length - len(_PUFFIN)
    if tail[8:] != _PUFFIN or start < len(_PUFFIN):
        raise Stray("it is not a Puffin file, or its end is missing")
    file.seek(start + len(_PUFFIN))
    payload = file.read(length)
    if flags & _FOOTER_PACKED:
        payload = pa.input_stream(pa.BufferReader(payload), compression="lz4").read()
    footer = json.loads(payload)
    for blob in footer["blobs"]:
        if _REFERENCED in blob.get("properties", {}):
            blob["properties"][_REFERENCED] = moved(blob["properties"][_REFERENCED], move)
    file.seek(0)
    left = start
    while left:
        piece = file.read(min(left, _IN_MEMORY))
        if not piece:
            raise Stray("it became shorter while it was read")
        target.write(piece)
        left -= len(piece)
    encoded = json.dumps(footer, separators=(",", ":")).encode()
    # The flags of a footer that is not compressed.
    target.write(_PUFFIN + encoded + len(encoded).to_bytes(4, "little") + bytes(4) + _PUFFIN)
