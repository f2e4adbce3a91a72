"""Copies one file to another store, in pieces, and reads it back: the result describes the file that the store
really has.

Runs in Spark's workers. An equal copy that already exists stays as it is. So does any other file of that name:
a copy gets its name only when it is complete, so the file is not an interrupted copy, and a snapshot of the colder
tier may need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError

from lakewarden.rate_limit import Pace, Throttle
from lakewarden.rewrite.copy.relocate import Stray, rehomed, same_deletes
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
_TROUBLE = (MissingSource, Stray, OSError, ValueError, pa.ArrowException, BotoCoreError, ClientError)


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
