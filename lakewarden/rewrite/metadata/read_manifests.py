"""Reads and decodes a table's metadata files: each result is complete, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from lakewarden.model.location import local_path
from lakewarden.rewrite.metadata.avro import check_whole, is_header, joined, shape
from lakewarden.rewrite.metadata.manifests import (
    LISTED,
    NAMED,
    PAIMON_ENTRIES,
    PAIMON_LISTED,
    iceberg_list,
    iceberg_manifest,
    live_only,
    paimon_index,
    paimon_list,
    paimon_manifest,
)
from lakewarden.rewrite.read.store import MissingSource, Store

What = Literal["list", "manifest", "paimon-list", "paimon-manifest", "paimon-index"]

# Small files are decoded together, up to this many bytes at once.
_TOGETHER = 1 << 20


@dataclass(frozen=True, slots=True)
class _Decoder:
    """How to decode one kind of file. `decode` returns one row per record; `finish` turns a file's rows into
    the files it names.
    """

    decode: Callable[[bytes], pa.Table]
    schema: pa.Schema
    finish: Callable[[pa.Table], pa.Table] = lambda table: table


_DECODERS: Mapping[What, _Decoder] = {
    "list": _Decoder(iceberg_list, LISTED),
    "manifest": _Decoder(iceberg_manifest, NAMED, live_only),
    "paimon-list": _Decoder(paimon_list, PAIMON_LISTED),
    "paimon-manifest": _Decoder(paimon_manifest, PAIMON_ENTRIES),
    "paimon-index": _Decoder(paimon_index, PAIMON_ENTRIES),
}


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A list or a manifest to read. `length` and `live` are what the list states about a manifest; -1 if unknown."""

    path: str
    what: What = "list"
    length: int = -1
    live: int = -1


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files that one metadata file names, or the reason why that is unknown."""

    path: str
    table: pa.Table | None
    trouble: str = ""


def read_metadata_files(files: Sequence[MetadataFile], store: Store) -> list[NamedFiles]:
    """Read the files, results in the same order: each complete, or a trouble, never a part of a file."""
    results: dict[int, NamedFiles] = {}
    waiting: list[tuple[int, bytes]] = []
    for place, file in enumerate(files):
        try:
            content = _content(file.path, store)
            check_whole(content, file.length)
            if is_header(content):
                results[place] = _checked(file, _DECODERS[file.what].schema.empty_table())
                continue
            if waiting and not _fits(files, waiting, file, content):
                results |= _decoded(files, waiting)
                waiting = []
            waiting.append((place, content))
        except (
            Exception
        ) as error:  # a broken file can make a decoder raise anything: the caller stops and names the file
            results[place] = _broken(file, error)
    if waiting:
        results |= _decoded(files, waiting)
    return [results[place] for place in range(len(files))]


def _fits(
    files: Sequence[MetadataFile], waiting: Sequence[tuple[int, bytes]], file: MetadataFile, content: bytes
) -> bool:
    first, other = waiting[0]
    alike = files[first].what == file.what and shape(other) == shape(content)
    return alike and sum(len(each) for _, each in waiting) + len(content) <= _TOGETHER


def _decoded(files: Sequence[MetadataFile], waiting: Sequence[tuple[int, bytes]]) -> dict[int, NamedFiles]:
    """Decode all files together. If one of them prevents that, decode each alone to find out which."""
    decoder = _DECODERS[files[waiting[0][0]].what]
    try:
        content, counts = joined([each for _, each in waiting])
        table = decoder.decode(content)
        if table.num_rows != sum(counts):
            raise ValueError(f"{table.num_rows} records, its blocks say {sum(counts)}")
        results, start = {}, 0
        for (place, _), count in zip(waiting, counts, strict=True):
            results[place] = _checked(files[place], decoder.finish(table.slice(start, count)))
            start += count
        return results
    except Exception as error:
        if len(waiting) == 1:
            place = waiting[0][0]
            return {place: _broken(files[place], error)}
        return {key: result for each in waiting for key, result in _decoded(files, [each]).items()}


def _broken(file: MetadataFile, error: Exception) -> NamedFiles:
    if isinstance(error, MissingSource):
        return NamedFiles(file.path, None, error.reason)
    return NamedFiles(file.path, None, f"{type(error).__name__}: {error}".splitlines()[0])


def _checked(file: MetadataFile, table: pa.Table) -> NamedFiles:
    if file.live >= 0 and table.num_rows != file.live:
        return NamedFiles(file.path, None, f"it names {table.num_rows} live files, its list says {file.live}")
    return NamedFiles(file.path, table)


def _content(path: str, store: Store) -> bytes:
    plain = local_path(path)
    if plain is None:
        with store.open(path) as file:
            return bytes(file.read())
    try:
        return Path(plain).read_bytes()
    except FileNotFoundError:
        raise MissingSource(path) from None
    except OSError as error:
        raise MissingSource(path, str(error)) from error
