"""One file copied to another store, in pieces, and read back: what is told of it is what the store has.

Runs in Spark's workers. A copy that is there already and equal is left alone; one that is cut short is written anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError

from lakewarden.engine.kernels.pace import Pace, Throttle
from lakewarden.engine.kernels.s3_copy import copy_within, on_s3, upload, within
from lakewarden.engine.kernels.storage import MissingSource, Store

PIECE = 8 << 20
# The column of a position delete file that has the path of a data file.
_PATH = "file_path"


@dataclass(frozen=True, slots=True)
class CopyTask:
    """`rehome` maps folders for files that name others inside: the longest that fits. Without it bytes stay as they are."""

    source: str
    target: str
    source_io: Mapping[str, str]
    target_io: Mapping[str, str]
    pace: Pace | None = None
    rehome: tuple[str, str] | None = None
    storage_class: str | None = None  # on S3


@dataclass(frozen=True, slots=True)
class Copied:
    source: str
    target: str
    bytes: int
    checksum: str
    written: bool
    trouble: str = ""


def copy(task: CopyTask) -> Copied:
    """What went wrong is told, not raised: the other files of the batch are not its concern."""
    throttle = Throttle(task.pace)
    source, target = Store(task.source_io, throttle), Store(task.target_io, throttle)
    try:
        if task.rehome is not None:
            return _rewrite(task, source, target)
        had = _there(target, task.target)
        if had is not None and had == _measured(source, task.source):
            return Copied(task.source, task.target, *had, written=False)
        if within(task.source, task.source_io, task.target, task.target_io):
            copy_within(task.source, task.target, task.target_io, task.storage_class)
            wanted = _measured(source, task.source)
        else:
            wanted = _streamed(source, target, task)
        # Read back: what was handed to a store is not yet what it has.
        found = _measured(target, task.target)
    except (MissingSource, OSError, pa.ArrowException, BotoCoreError, ClientError) as error:
        return Copied(task.source, task.target, 0, "", False, str(error))
    finally:
        throttle.settle()
    if found != wanted:
        return Copied(
            task.source, task.target, 0, "", True, "the copy differs from the file it was made from"
        )
    return Copied(task.source, task.target, *found, written=True)


def measure(task: CopyTask) -> Copied:
    """The copy as it is now."""
    store = Store(task.target_io, Throttle(task.pace))
    try:
        return Copied(task.source, task.target, *_measured(store, task.target), written=False)
    except (MissingSource, OSError, pa.ArrowException) as error:
        return Copied(task.source, task.target, 0, "", False, str(error))


def checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _rewrite(task: CopyTask, source: Store, target: Store) -> Copied:
    """A position delete file names data files: its rows are written anew, with where those are now."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    assert task.rehome is not None
    old, new = task.rehome
    with source.open(task.source) as file:
        table = pq.read_table(file)
    paths = table[_PATH]
    outside = pc.invert(pc.starts_with(paths, old))
    if pc.any(outside).as_py():
        stray = paths.filter(outside)[0].as_py()
        return Copied(
            task.source,
            task.target,
            0,
            "",
            False,
            f"it deletes rows of {stray}, which lies outside the table",
        )
    moved = pc.replace_substring(paths, old, new, max_replacements=1)
    table = table.set_column(table.schema.get_field_index(_PATH), table.schema.field(_PATH), moved)
    buffer = BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    content = buffer.getvalue()
    wanted = (len(content), checksum(content))
    if _there(target, task.target) == wanted:
        return Copied(task.source, task.target, *wanted, written=False)
    with target.create(task.target) as out:
        out.write(content)
    found = _measured(target, task.target)
    trouble = "" if found == wanted else "the copy differs from what was written"
    return Copied(task.source, task.target, *found, True, trouble)


def _streamed(source: Store, target: Store, task: CopyTask) -> tuple[int, str]:
    """Never more than a piece in memory, however large the file. The size and checksum of what was read."""
    size, found = 0, hashlib.blake2b(digest_size=16)

    def passing() -> Iterator[Any]:
        nonlocal size
        for piece in _pieces(source, task.source):
            size += len(piece)
            found.update(piece)
            yield piece
            target.throttle.wrote(len(piece))

    if task.storage_class and on_s3(task.target):
        upload(passing(), task.target, task.target_io, task.storage_class)
        return size, found.hexdigest()
    with target.create(task.target) as out:
        for piece in passing():
            out.write(piece)
    return size, found.hexdigest()


def _there(store: Store, path: str) -> tuple[int, str] | None:
    try:
        return _measured(store, path)
    except MissingSource as error:
        if error.gone:
            return None
        raise


def _measured(store: Store, path: str) -> tuple[int, str]:
    size, found = 0, hashlib.blake2b(digest_size=16)
    for piece in _pieces(store, path):
        size += len(piece)
        found.update(piece)
    return size, found.hexdigest()


def _pieces(store: Store, path: str) -> Iterator[Any]:
    with store.open(path) as file:
        while True:
            piece = file.read(PIECE)
            if not piece:
                return
            store.throttle.read(len(piece))
            yield piece
