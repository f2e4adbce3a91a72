"""One metadata file of a table, read and decoded: complete, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from lakewarden.engine.kernels.avro import check_whole, is_header
from lakewarden.engine.kernels.manifests import LISTED, NAMED, iceberg_list, iceberg_manifest
from lakewarden.engine.kernels.paimon_manifests import ENTRIES, paimon_index, paimon_list, paimon_manifest
from lakewarden.engine.kernels.storage import MissingSource, Store, local_path

What = Literal["list", "manifest", "paimon-list", "paimon-manifest", "paimon-index"]

_DECODERS: Mapping[What, tuple[Callable[[bytes], pa.Table], pa.Schema]] = {
    "list": (iceberg_list, LISTED),
    "manifest": (iceberg_manifest, NAMED),
    "paimon-list": (paimon_list, LISTED),
    "paimon-manifest": (paimon_manifest, ENTRIES),
    "paimon-index": (paimon_index, ENTRIES),
}


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A list or a manifest to read. `length` and `live` are what the list says of a manifest; -1 where nothing does."""

    path: str
    what: What = "list"
    length: int = -1
    live: int = -1


@dataclass(frozen=True, slots=True)
class Named:
    """What one file names, or why that cannot be known."""

    path: str
    table: pa.Table | None
    trouble: str = ""


def read_metadata_file(file: MetadataFile, store: Store) -> Named:
    """Complete, or a trouble; never a part of what the file holds."""
    try:
        content = _content(file.path, store)
        check_whole(content, file.length)
        decode, schema = _DECODERS[file.what]
        table = schema.empty_table() if is_header(content) else decode(content)
    except MissingSource as error:
        return Named(file.path, None, error.reason)
    except (
        Exception
    ) as error:  # whatever a broken file makes the decoder say: the caller stops and names the file
        return Named(file.path, None, f"{type(error).__name__}: {error}".splitlines()[0])
    if file.live >= 0 and table.num_rows != file.live:
        return Named(file.path, None, f"it names {table.num_rows} files, its list says {file.live}")
    return Named(file.path, table)


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
