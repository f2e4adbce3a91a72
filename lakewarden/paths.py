"""Paths as they are compared: two spellings of one file must be equal, or a live file looks like an orphan.

The normal form is for comparing only, never for opening. In doubt it makes more paths equal, not fewer: taking two files
for one keeps a file too long, taking one for two deletes it.

    file:///lake/t/x   file:/lake/t/x   /lake//t/x     ->  /lake/t/x
    s3a://b/t/x        s3n://b/t/x      s3://b/t//x    ->  s3:/b/t/x
    wasbs://c@a.blob.core.windows.net/x                ->  abfss:/c@a.dfs.core.windows.net/x
    hdfs://node:8020/t hdfs:///t                       ->  hdfs:/t

Names are literal: a percent sign or a plus in one is part of it, as Iceberg takes it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded by who compares in bulk
    import pyarrow as pa

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):(/*)")
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}
# Azure's two addresses of one account.
_BLOB, _DFS = ".blob.core.", ".dfs.core."
# A name node's address is one of several for the same files.
_ANY_AUTHORITY = {"hdfs", "viewfs"}
_UNTIDY = r"//|/\.{1,2}(/|$)|./$|^[^/:]*[A-Z][^/:]*:/"


def normal(path: str) -> str:
    """The form in which paths are compared."""
    found = _SCHEME.match(path)
    if found is None:
        return _tidy(path)
    scheme, rest = found[1].lower(), path[found.end() :]
    if scheme == "file":
        return _tidy("/" + rest)
    if scheme in _ANY_AUTHORITY and len(found[2]) >= 2:
        rest = rest.partition("/")[2] if len(found[2]) == 2 else rest
    if _SAME.get(scheme) == "abfss" or scheme == "abfss":
        host, slash, key = rest.partition("/")
        rest = host.replace(_BLOB, _DFS) + slash + key
    return f"{_SAME.get(scheme, scheme)}:{_tidy('/' + rest)}"


def normals(paths: pa.Array | pa.ChunkedArray | Sequence[str]) -> pa.Array:
    """The same for very many: a regular expression over the whole column, the untidy few one by one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = paths if isinstance(paths, pa.Array | pa.ChunkedArray) else pa.array(paths, pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if (tidy := _tidy_local(column)) is not None:
        return tidy
    plain = pc.replace_substring_regex(column, r"^file:/*", "/")
    plain = pc.replace_substring_regex(plain, r"^s3[an]?://", "s3:/")
    odd = pc.match_substring_regex(plain, f"{_UNTIDY}|^[A-Za-z][A-Za-z0-9+.-]+://")
    if not pc.any(odd).as_py():
        return plain
    fixed = [normal(each) for each in pc.filter(column, odd).to_pylist()]
    return pc.replace_with_mask(plain, odd, pa.array(fixed, pa.string()))


def _tidy_local(column: Any) -> Any:
    """Of paths on a disk that only lack the scheme to be normal, those; None where one has more to it.

    Looking for a few letters takes a tenth of the time that regular expressions do, and this is nearly every column there is.
    """
    import polars as pl

    told: Any = pl.from_arrow(column)
    plain = told.str.strip_prefix("file:").str.strip_prefix("//")
    text = plain.str
    fits = text.starts_with("/") & ~text.contains("//", literal=True) & ~text.contains("/.", literal=True)
    return plain.to_arrow().cast(column.type) if (fits & ~text.ends_with("/")).all() else None


def inside(path: str, folder: str) -> bool:
    """Whether the path is the folder or lies below it; both in normal form."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def overlap(one: str, other: str) -> bool:
    """Whether one of two folders is the other or holds it; both in normal form."""
    return inside(one, other) or inside(other, one)


def spellings(folder: str) -> tuple[str, ...]:
    """How paths below a folder may begin, its own spelling first: writers of one table do not all agree."""
    own, plain = folder.rstrip("/") + "/", normal(folder).rstrip("/") + "/"
    found = [own]
    if plain.startswith("/"):
        found += [plain, f"file:{plain}", f"file://{plain}"]
    elif plain.startswith("s3:/"):
        found += [f"{scheme}://{plain.removeprefix('s3:/')}" for scheme in ("s3", "s3a", "s3n")]
    return tuple(dict.fromkeys(found))


def authority(path: str) -> str:
    """Where a path lives: the bucket, or the file system."""
    if path.startswith(("/", "file:")):
        return "/"
    plain = normal(path)
    scheme, colon, rest = plain.partition(":/")
    return f"{scheme}:/{rest.partition('/')[0]}" if colon else "/"


def hashes(paths: pa.Array | pa.ChunkedArray | Sequence[str]) -> Any:
    """A number for each path, equal for all spellings of one file: sets of millions fit in memory, 8 bytes each.

    Two files may share a number. Whoever asks whether a file is needed then hears yes, and it stays: the safe mistake.
    """
    import polars

    column: Any = polars.from_arrow(normals(paths))
    return column.hash(seed=0).to_numpy()


def shortest(paths: Iterable[str]) -> list[str]:
    """Of folders that lie inside one another, the outermost ones."""
    kept: list[str] = []
    for each in sorted(set(paths), key=lambda path: (len(normal(path)), path)):
        if not any(inside(normal(each), normal(outer)) for outer in kept):
            kept.append(each)
    return kept


def _tidy(path: str) -> str:
    if "//" in path or "/." in path:
        tidied = posixpath.normpath(path)
        return "/" + tidied.lstrip("/") if path.startswith("/") else tidied
    return path.rstrip("/") or "/" if len(path) > 1 else path
