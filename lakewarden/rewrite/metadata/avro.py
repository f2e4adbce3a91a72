"""Avro files as containers: whether one is whole, and the same one without its compression.

polars decodes Avro by column, several times as fast as anything row by row, but knows no zstd, with which Paimon writes. So
the blocks are unpacked here and the container is written anew around them, which costs a tenth of the decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa

MAGIC = b"Obj\x01"
SYNC = 16
_CODEC = b"avro.codec"
_ZSTD = b"zstandard"


def check_whole(content: bytes, length: int) -> None:
    """A file cut short at the end of a block decodes as a shorter one without a word."""
    if length >= 0 and len(content) != length:
        raise ValueError(f"it has {len(content)} bytes, its list says {length}")
    if not content.startswith(MAGIC):
        raise ValueError("it is not an Avro file")
    if content.find(content[-SYNC:]) >= len(content) - SYNC and not is_header(content):
        raise ValueError("its end is missing")


def is_header(content: bytes) -> bool:
    """A list that names nothing is a header alone: a map of bytes, then the marker that ends every block."""
    try:
        _, place = _header(content)
    except IndexError:
        return False
    return place + SYNC == len(content)


def decode(content: bytes, columns: Sequence[str] | None, rows: int | None = None) -> pa.Table:
    """Straight to Arrow: polars' own operations cost more than the decoding of so few rows."""
    import polars

    wanted = None if columns is None else list(columns)
    try:
        return polars.read_avro(BytesIO(content), columns=wanted, n_rows=rows).to_arrow()
    except (
        polars.exceptions.PanicException
    ) as error:  # no Exception: it would pass everyone who names broken files
        raise ValueError(f"it cannot be decoded: {error}") from error


def shape(content: bytes) -> tuple[bytes, bytes]:
    """What two files must have in common to be joined: schema and compression."""
    meta, _ = _header(content)
    return meta.get(b"avro.schema", b""), meta.get(_CODEC, b"null")


def joined(contents: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """One file with the records of several of one shape, in order, and how many each had.

    To decode a file costs more than its records do where they are few: reading the schema, building columns, converting them.
    Sixteen joined take half the time.
    """
    _, place = _header(contents[0])
    sync = contents[0][place : place + SYNC]
    parts, counts = [contents[0][: place + SYNC]], []
    for content in contents:
        _, place = _header(content)
        records = 0
        for count, block in _blocks(content, place + SYNC, content[place : place + SYNC]):
            parts += [_written(count), _written(len(block)), block, sync]
            records += count
        counts.append(records)
    return b"".join(parts), counts


def unpacked(content: bytes) -> bytes:
    """The same records in blocks that are not compressed, where they are with zstd."""
    meta, place = _header(content)
    if meta.get(_CODEC) != _ZSTD:
        return content
    meta[_CODEC] = b"null"
    sync = content[place : place + SYNC]
    parts = [MAGIC, _written(len(meta))]
    for key, value in meta.items():
        parts += [_written(len(key)), key, _written(len(value)), value]
    parts += [_written(0), sync]
    for count, block in _blocks(content, place + SYNC, sync):
        plain = pa.input_stream(BytesIO(block), compression="zstd").read()
        parts += [_written(count), _written(len(plain)), plain, sync]
    return b"".join(parts)


def one(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _header(content: bytes) -> tuple[dict[bytes, bytes], int]:
    """What the file says of itself, and where the marker begins that ends this and every block."""
    place = len(MAGIC)
    meta: dict[bytes, bytes] = {}
    count, place = _number(content, place)
    while count:
        if count < 0:
            count = -count
            _, place = _number(content, place)
        for _ in range(count):
            key, place = _bytes(content, place)
            meta[key], place = _bytes(content, place)
        count, place = _number(content, place)
    return meta, place


def _blocks(content: bytes, place: int, sync: bytes) -> Iterator[tuple[int, bytes]]:
    while place < len(content):
        count, place = _number(content, place)
        block, place = _bytes(content, place)
        if content[place : place + SYNC] != sync:
            raise ValueError("its blocks do not end where they should")
        yield count, block
        place += SYNC


def _bytes(content: bytes, place: int) -> tuple[bytes, int]:
    length, place = _number(content, place)
    if length < 0 or place + length > len(content):
        raise IndexError("past the end")
    return content[place : place + length], place + length


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Avro's variable-length integer, and where it ends."""
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place


def _written(number: int) -> bytes:
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
