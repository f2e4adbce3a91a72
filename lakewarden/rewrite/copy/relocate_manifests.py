"""Rewrites the paths in Iceberg's manifests and manifest lists and changes nothing else.

The records are walked, not decoded: every byte that is not a path, a length, or a path among the bounds of a
delete file is copied as it is. So fields from newer writers that this code does not know are kept.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa

from lakewarden.rewrite.metadata import avro

# Maps an old path to the new one; None for a path outside the table.
Rehome = Callable[[str], str | None]
Walk = Callable[["_Record", int], int]
Path = tuple[str, ...]

_CODECS = {b"null", b"deflate", b"zstandard", b"snappy"}
# The column of a position delete file that holds the path of a data file.
_PATH_COLUMN = 2147483546
_REMOVED = 2


class Outside(Exception):
    """A needed file lies outside the table's folder, so it has no place in the colder tier."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def rehomed_manifest(content: bytes, rehome: Rehome, sizes: Mapping[str, int]) -> bytes:
    """The manifest with its data and delete files under new paths; `sizes` are those of rewritten files, by old
    path.

    `rehome` returns None for a path outside the table. For a file that the snapshot removed the old path stays:
    no scan opens it.
    """
    entry = _Entry(rehome, sizes)
    hooks: dict[Path, Any] = {
        ("status",): entry.status,
        ("data_file", "file_path"): entry.path,
        ("data_file", "referenced_data_file"): entry.referenced,
        ("data_file", "file_size_in_bytes"): entry.size,
        ("data_file", "lower_bounds", "key"): entry.column,
        ("data_file", "lower_bounds", "value"): entry.lower,
        ("data_file", "upper_bounds", "key"): entry.column,
        ("data_file", "upper_bounds", "value"): entry.upper,
    }
    return _rewritten(content, hooks)


class _Entry:
    """The entry that is being walked. Fields come in the format's order: status, path, sizes, bounds, reference."""

    def __init__(self, rehome: Rehome, sizes: Mapping[str, int]) -> None:
        self._rehome, self._sizes = rehome, sizes
        self._status = self._column = 0
        self._path = self._moved = ""

    def status(self, number: int) -> int:
        self._status = number
        return number

    def path(self, old: bytes) -> bytes:
        self._path = old.decode()
        self._moved = self._to(self._path)
        return self._moved.encode()

    def size(self, old: int) -> int:
        return self._sizes.get(self._path, old)

    def referenced(self, old: bytes) -> bytes:
        return self._to(old.decode()).encode()

    def column(self, number: int) -> int:
        self._column = number
        return number

    def lower(self, old: bytes) -> bytes:
        return old if self._column != _PATH_COLUMN else self._bound(old, "/")

    def upper(self, old: bytes) -> bytes:
        # "0" is the character after the slash, so it sorts above every path in the folder.
        return old if self._column != _PATH_COLUMN else self._bound(old, "0")

    def _to(self, path: str) -> str:
        new_path = self._rehome(path)
        if new_path is None:
            if self._status == _REMOVED:
                return path
            raise Outside(path)
        return new_path

    def _bound(self, old: bytes, after: str) -> bytes:
        """The lower or upper bound of a delete file's paths. A truncated bound says nothing about the copy: use
        the whole folder.
        """
        new_path = self._rehome(old.decode(errors="replace"))
        if new_path is not None:
            return new_path.encode()
        tail = self._path
        while tail and not self._moved.endswith(tail):
            tail = tail[1:]
        folder = self._moved[: len(self._moved) - len(tail)].rpartition("/")[0]
        return (folder + after).encode()


def rehomed_list(content: bytes, rehome: Rehome, lengths: Mapping[str, int]) -> bytes:
    """The list with its manifests under new paths and with new lengths, by old path."""
    seen = {"path": ""}

    def path(old: bytes) -> bytes:
        seen["path"] = old.decode()
        new_path = rehome(seen["path"])
        if new_path is None:
            raise Outside(seen["path"])
        return new_path.encode()

    hooks: dict[Path, Any] = {
        ("manifest_path",): path,
        ("manifest_length",): lambda old: lengths[seen["path"]],
    }
    return _rewritten(content, hooks)


def same_records(one: bytes, other: bytes) -> bool:
    """Whether two files hold the same records, even with different compression."""
    return _plain(one) == _plain(other)


def _plain(content: bytes) -> tuple[dict[bytes, bytes], list[tuple[int, bytes]]]:
    meta, place = avro._header(content)
    codec, sync = meta.pop(b"avro.codec", b"null"), content[place : place + avro.SYNC]
    blocks = avro._blocks(content, place + avro.SYNC, sync)
    return meta, [(count, _unpacked(block, codec)) for count, block in blocks]


def _rewritten(content: bytes, hooks: Mapping[Path, Any]) -> bytes:
    meta, place = avro._header(content)
    codec = meta.get(b"avro.codec", b"null")
    if codec not in _CODECS:
        raise ValueError(f"it is compressed with {codec.decode(errors='replace')}, which is not known here")
    schema = json.loads(meta[b"avro.schema"])
    walk = _compiled(schema, (), hooks, {})
    sync = content[place : place + avro.SYNC]
    # Written as deflate, which every reader knows.
    meta[b"avro.codec"] = b"deflate"
    parts = [avro.MAGIC, avro._written(len(meta))]
    for name, value in meta.items():
        parts += [avro._written(len(name)), name, avro._written(len(value)), value]
    parts += [avro._written(0), sync]
    for count, block in avro._blocks(content, place + avro.SYNC, sync):
        record = _Record(_unpacked(block, codec))
        position = 0
        for _ in range(count):
            position = walk(record, position)
        packed = _deflated(record.finish(position))
        parts += [avro._written(count), avro._written(len(packed)), packed, sync]
    return b"".join(parts)


def _unpacked(block: bytes, codec: bytes) -> bytes:
    match codec:
        case b"deflate":
            return zlib.decompress(block, -zlib.MAX_WBITS)
        case b"zstandard":
            return bytes(pa.input_stream(BytesIO(block), compression="zstd").read())
        case b"snappy":
            # Four bytes of checksum follow. The uncompressed size is at the beginning.
            length = shift = place = 0
            while True:
                byte = block[place]
                length |= (byte & 0x7F) << shift
                place, shift = place + 1, shift + 7
                if byte < 0x80:
                    break
            return bytes(pa.decompress(block[:-4], length, "snappy", asbytes=True))
        case _:
            return block


def _deflated(block: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(block) + packer.flush()


class _Record:
    """A block's bytes and the new block so far: the bytes between two replacements are copied in one piece."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._parts: list[bytes] = []
        self._copied = 0

    def replace(self, start: int, end: int, new: bytes) -> None:
        self._parts += [self.content[self._copied : start], new]
        self._copied = end

    def finish(self, end: int) -> bytes:
        if end != len(self.content):
            raise ValueError("its records do not end where its block does")
        return b"".join((*self._parts, self.content[self._copied : end]))


def _compiled(schema: Any, path: Path, hooks: Mapping[Path, Any], named: dict[str, Any]) -> Walk:
    """A function that walks one value of this type. Paths consist of field names; list items and union branches add none."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(schema, list):
        return _union([_compiled(each, path, hooks, named) for each in schema])
    if isinstance(kind, dict | list):
        return _compiled(kind, path, hooks, named)
    if kind in named:
        return _compiled(named[kind], path, hooks, named)
    match kind:
        case "record":
            named[schema.get("name", "")] = schema
            fields = [
                _compiled(each["type"], (*path, each["name"]), hooks, named) for each in schema["fields"]
            ]
            return _sequence(fields)
        case "array":
            return _repeated(_compiled(schema["items"], path, hooks, named))
        case "map":
            return _repeated(_sequence([_text(None), _compiled(schema["values"], path, hooks, named)]))
        case "string" | "bytes":
            return _text(hooks.get(path))
        case "int" | "long" | "enum":
            return _number(hooks.get(path))
        case "fixed":
            return _fixed(schema["size"])
        case "null" | "boolean" | "float" | "double":
            return _fixed({"null": 0, "boolean": 1, "float": 4, "double": 8}[kind])
        case _:
            raise ValueError(f"it has the type {kind}, which is not known here")


def _sequence(walks: list[Walk]) -> Walk:
    def walk(record: _Record, place: int) -> int:
        for walk in walks:
            place = walk(record, place)
        return place

    return walk


def _union(branches: list[Walk]) -> Walk:
    def walk(record: _Record, place: int) -> int:
        branch, place = avro._number(record.content, place)
        return branches[branch](record, place)

    return walk


def _repeated(item: Walk) -> Walk:
    def walk(record: _Record, place: int) -> int:
        count, after = avro._number(record.content, place)
        while count:
            if count < 0:
                # The block states its length in bytes, which may change: write it without the length.
                _, end = avro._number(record.content, after)
                record.replace(place, end, avro._written(-count))
                count, after = -count, end
            for _ in range(count):
                after = item(record, after)
            place = after
            count, after = avro._number(record.content, place)
        return after

    return walk


def _text(hook: Any) -> Walk:
    def walk(record: _Record, place: int) -> int:
        old, end = avro._bytes(record.content, place)
        if hook is not None:
            new = hook(old)
            if new != old:
                record.replace(place, end, avro._written(len(new)) + new)
        return end

    return walk


def _number(hook: Any) -> Walk:
    def walk(record: _Record, place: int) -> int:
        old, end = avro._number(record.content, place)
        if hook is not None:
            new = hook(old)
            if new != old:
                record.replace(place, end, avro._written(new))
        return end

    return walk


def _fixed(size: int) -> Walk:
    return lambda record, place: place + size
