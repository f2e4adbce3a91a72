"""Rewrites delete files so that they name the copies of their data files. Works on a temporary file, one part
at a time.

    Parquet   the column of paths is replaced, row group by row group
    Puffin    the blobs stay as they are, at the same offsets; the footer after them names each blob's data file
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.model.location import Location, elsewhere
from lakewarden.rewrite.read.store import Store

# The table's folder and the copy's folder.
Move = tuple[str, str]

# The column of a position delete file that holds the path of a data file.
_PATH = "file_path"
_PUFFIN, _REFERENCED = b"PFA1", "referenced-data-file"
_FOOTER_PACKED = 1
_IN_MEMORY = 8 << 20
_ROWS = 64 << 10


class Stray(Exception):
    """A delete file cannot be relocated: one of its data files lies elsewhere, or the file has unexpected content."""


def moved(path: str, move: Move) -> str:
    """The path of the data file's copy, spelled as the copy's manifests spell it: readers compare texts."""
    live, copy = move
    if (place := elsewhere(path, Location.of(live), copy)) is None:
        raise Stray(f"it deletes rows of {path}, which lies outside the table")
    return place


@contextmanager
def rehomed(store: Store, path: str, move: Move) -> Iterator[IO[bytes]]:
    """The relocated file's content, to be read from the start."""
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
