"""Where a file or folder is. The only module that normalises or compares paths.

One place has many spellings. There are two questions about them, and each has a different safe mistake:

    Is this file needed?        In doubt yes. `normal`, `hashes` and the methods `may_…` treat spellings as equal that may be
                                one place: otherwise a needed file might be deleted.
    Is this place the table's?  In doubt no. Two `Location`s are equal only if they are certainly one place: otherwise
                                another owner's file might be deleted.

    text                                        Location                               normal
    file:///lake/t/x  file:/lake/t/x  /lake//t/x   file, "", /lake/t/x                    /lake/t/x
    s3a://b/t/x       s3n://b/t/x     s3://b/t/x   s3, b, /t/x                            s3:/b/t/x
    s3://b/t//x                                 s3, b, /t//x   another key in S3       s3:/b/t/x   as Hadoop's Path spells it
    hdfs:///t/x                                 hdfs, "", /t/x  the default authority  hdfs:/t/x
    hdfs://node:8020/t/x                        hdfs, node, /t/x                       hdfs:/t/x   may be the default one
    wasbs://c@a.blob.core.windows.net/x         abfss, c@a.dfs.core.windows.net, /x    abfss:/c@a.dfs.core.windows.net/x

Both forms are for comparing, never for opening. Names are literal: a percent sign or a plus in one is part of it, as Iceberg
takes it. Kernels import this module in Spark's workers, so it loads nothing but the standard library at first.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded only by functions that compare in bulk
    import pyarrow as pa

S3 = ("s3", "s3a", "s3n")
GOOGLE = ("gs", "gcs")
AZURE = ("abfs", "abfss", "wasb", "wasbs")
HADOOP = ("hdfs", "viewfs")

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):(/*)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_SAME = {
    **dict.fromkeys(S3, "s3"),
    **dict.fromkeys(GOOGLE, "gs"),
    **dict.fromkeys(AZURE, "abfss"),
}
# Azure's two addresses of one account.
_BLOB, _DFS = ".blob.core.", ".dfs.core."
# The port of a name node that is not named.
_HDFS_PORT = ":8020"
_UNTIDY = r"//|/\.{1,2}(/|$)|./$|^[^/:]*[A-Z][^/:]*:/"
# A uuid, with or without dashes, makes a file name unique. Names this long are generated, too.
_GENERATED = r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
_LONG_NAME = 30
_PARTITIONS = re.compile(r"(/[^/=]+=[^/]*)+$")
_EMPTY_PARTS = re.compile(r"(/\.?)+(?=/|$)")


@dataclass(frozen=True, slots=True)
class Location:
    """One place. Equal to another only if both are certainly the same; the module explains the doubtful cases."""

    scheme: str
    authority: str
    path: str

    @classmethod
    def of(cls, text: str) -> Location:
        found = _SCHEME.match(text)
        if found is None:
            return cls("file", "", _one_slash(text))
        scheme, rest = found[1].lower(), text[found.end() :]
        if scheme == "file":
            return cls("file", "", _one_slash("/" + rest))
        if scheme in HADOOP:
            host, path = "", rest
            if len(found[2]) == 2:
                host, _, path = rest.partition("/")
            return cls(scheme, host.lower().removesuffix(_HDFS_PORT), _one_slash("/" + path))
        host, _, path = rest.partition("/")
        scheme = _SAME.get(scheme, scheme)
        if scheme == "abfss":
            host = host.replace(_BLOB, _DFS)
        # A store of objects has no folders: an empty part of a key is part of it.
        return cls(scheme, host, "/" + path.rstrip("/"))

    def __str__(self) -> str:
        return self.path if self.is_local else f"{self.scheme}://{self.authority}{self.path}"

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def store(self) -> str:
        """The store of the path: the bucket, the name node, or `/` for a disk of this machine."""
        return "/" if self.is_local else f"{self.scheme}://{self.authority}"

    @property
    def normal(self) -> str:
        """The text that every spelling that may be this place has in common."""
        tidied = _tidy(self.path)
        if self.is_local:
            return tidied
        if self.scheme in HADOOP or not self.authority:
            return f"{self.scheme}:{tidied}"
        return f"{self.scheme}:/{self.authority}{'' if tidied == '/' else tidied}"

    def below(self, folder: Location) -> str | None:
        """The rest of the path if this is surely the folder (then it is empty) or below it, else None."""
        if (self.scheme, self.authority) != (folder.scheme, folder.authority):
            return None
        rest = _rest(self.path, folder.path)
        # Two dots lead out of the folder again.
        return None if rest is None or ".." in rest.split("/") else rest

    def inside(self, folder: Location) -> bool:
        """Whether this is surely the folder or below it."""
        return self.below(folder) is not None

    def may_be(self, other: Location) -> bool:
        """Whether both may be the same place."""
        return self.normal == other.normal

    def may_be_below(self, folder: Location) -> str | None:
        """The rest of the path if this may be the folder (then it is empty) or lie below it, else None."""
        return _rest(self.normal, folder.normal)

    def may_be_inside(self, folder: Location) -> bool:
        """Whether this may be the folder or lie below it."""
        return self.may_be_below(folder) is not None

    def may_overlap(self, other: Location) -> bool:
        """Whether one of two folders may be the other or hold it."""
        return self.may_be_inside(other) or other.may_be_inside(self)

    def may_share_store(self, other: Location) -> bool:
        """Whether both are on one store, or on name nodes that may be one."""
        if self.scheme != other.scheme:
            return False
        return self.scheme in HADOOP or self.authority == other.authority


def normal(path: str) -> str:
    """The text that every spelling that may be the same place has in common: for sets and maps of needed files."""
    if path.startswith("/"):  # nearly every path there is
        return _tidy(path)
    return Location.of(path).normal


def same(one: str, other: str) -> bool:
    """Whether two spellings are surely one place."""
    return one == other or Location.of(one) == Location.of(other)


def inside(path: str, folder: str) -> bool:
    """Whether the path is surely the folder or lies below it."""
    return Location.of(path).inside(Location.of(folder))


def parent(path: str) -> str:
    """The folder of a file, in the file's own spelling."""
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2]


def join(folder: str, *names: str) -> str:
    """A path below a folder, in the folder's own spelling."""
    return "/".join([folder.rstrip("/"), *names])


def without_common_end(one: str, other: str) -> tuple[str, str]:
    """Two paths without the equal parts at their ends. Their stores stay, and neither contains the other."""
    left, right = Location.of(one), Location.of(other)
    while (
        left.path.count("/") > 1 and right.path.count("/") > 1 and name_of(left.path) == name_of(right.path)
    ):
        shorter = [replace(each, path=parent(each.path)) for each in (left, right)]
        if shorter[0].may_overlap(shorter[1]):
            break
        left, right = shorter
    return str(left), str(right)


def without_partitions(folder: str) -> str:
    """A folder in normal form, without the partition folders (`day=1`) at its end. Files of one Spark write have
    the same name in several of them."""
    return _PARTITIONS.sub("", normal(folder))


def scheme_of(path: str) -> str:
    """The scheme as written, in lower case; `file` if there is none."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else "file"


def is_absolute(path: str) -> bool:
    """Whether a path is complete, not relative."""
    return path.startswith("/") or ":/" in path


def local_path(path: str) -> str | None:
    """The name that opens a file of this machine, from any spelling; None for a path on another store."""
    if path.startswith("/"):
        return path
    if path.startswith("file:"):
        return "/" + path[5:].lstrip("/")
    return None if _URL.match(path) else path


def is_local(path: str) -> bool:
    return local_path(path) is not None


def real(path: str) -> str:
    """The name of a file of this machine without links."""
    plain = local_path(path)
    if plain is None:
        return path
    try:
        return os.path.realpath(plain)
    except ValueError:  # no file can have such a name
        return plain


def split_url(path: str) -> tuple[str, str, str]:
    """Scheme, bucket and key, for opening. Keys are literal: a `?`, `#` or `%` in a partition value is part of the name."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    return scheme, bucket, key


def normals(paths: pa.Array | pa.ChunkedArray | Sequence[str]) -> pa.Array:
    """`normal` for many paths: a regular expression over the whole column, and the few odd ones one by one."""
    return _in_bulk(paths, sure=False)


def _in_bulk(paths: pa.Array | pa.ChunkedArray | Sequence[str], *, sure: bool) -> pa.Array:
    """The normal form of each, or the text of its Location."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = paths if isinstance(paths, pa.Array | pa.ChunkedArray) else pa.array(paths, pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if (tidy := _tidy_local(column)) is not None:
        return tidy
    plain = pc.replace_substring_regex(column, r"^file:/*", "/")
    plain = pc.replace_substring_regex(plain, r"^s3[an]?://", "s3:/")
    if not sure and pc.any(pc.starts_with(plain, "hdfs:")).as_py():
        plain = pc.replace_substring_regex(plain, r"^hdfs://[^/]*/", "hdfs:/")
    odd = pc.match_substring_regex(plain, f"{_UNTIDY}|^[A-Za-z][A-Za-z0-9+.-]+://")
    if sure:
        plain = pc.replace_substring_regex(plain, "^s3:/", "s3://")
    if not pc.any(odd).as_py():
        return plain
    form = (lambda each: str(Location.of(each))) if sure else normal
    fixed = [form(each) for each in pc.filter(column, odd).to_pylist()]
    return pc.replace_with_mask(plain, odd, pa.array(fixed, pa.string()))


def _tidy_local(column: Any) -> Any:
    """The normal form of local paths that only differ by their scheme; None if any path needs more.

    This is true of nearly every column, and takes a tenth of the time of regular expressions.
    """
    import polars as pl

    told: Any = pl.from_arrow(column)
    plain = told.str.strip_prefix("file:").str.strip_prefix("//")
    text = plain.str
    fits = text.starts_with("/") & ~text.contains("//", literal=True) & ~text.contains("/.", literal=True)
    return plain.to_arrow().cast(column.type) if (fits & ~text.ends_with("/")).all() else None


def all_inside(paths: pa.Array | pa.ChunkedArray | Sequence[str], folders: Iterable[str]) -> Any:
    """For each path whether it surely lies below one of the folders: an array of booleans."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = _in_bulk(paths, sure=True)
    found: Any = pa.array([False] * len(plain), pa.bool_())
    for folder in folders:
        text = str(Location.of(folder))
        head = text if text.endswith("/") else f"{text}/"
        below = pc.and_(pc.starts_with(plain, head), pc.not_equal(plain, head))
        if pc.any(pc.match_substring(plain, "..")).as_py():
            rest = pc.utf8_slice_codeunits(plain, len(head))
            below = pc.and_(below, pc.invert(pc.match_substring_regex(rest, r"(^|/)\.\.(/|$)")))
        found = pc.or_(found, below)
    return found


def hashes(paths: pa.Array | pa.ChunkedArray | Sequence[str]) -> Any:
    """A number for each path, equal for all spellings that may be one file. Millions fit in memory, at 8 bytes each.

    Two files may share a number. Then a file that is not needed counts as needed and stays: the safe mistake.
    """
    return plain_hashes(normals(paths))


def plain_hashes(plain: pa.Array) -> Any:
    """`hashes` of paths that are already in normal form."""
    import polars as pl

    column: Any = pl.from_arrow(plain)
    return column.hash(seed=0).to_numpy()


def tails(plain: pa.Array, parts: int) -> Any:
    """A number for the last parts of each path, all of them in normal form."""
    import polars as pl

    column: Any = pl.from_arrow(plain)
    pattern = "([^/]+" + "/[^/]+" * (parts - 1) + ")$"
    return column.str.extract(pattern).fill_null(column).hash(seed=0).to_numpy()


def distinctive(plain: pa.Array) -> Any:
    """For each path, in normal form, whether its name alone identifies the file: an array of booleans.

    Names that table formats and engines generate have a uuid. `part-0.parquet` or `v1.metadata.json` may be in any folder.
    """
    import polars as pl

    column: Any = pl.from_arrow(plain)
    names = column.str.extract("([^/]+)$").fill_null(column)
    return (names.str.contains(_GENERATED) | (names.str.len_chars() > _LONG_NAME)).to_numpy()


def is_generated(path: str) -> bool:
    """Whether a file's name contains a uuid, so that no other file has this name."""
    return re.search(_GENERATED, name_of(path)) is not None


def may_be_in(plain: pa.Array, folders: Iterable[Location]) -> Any:
    """For each path, in normal form, whether it may be one of the folders or lie below it: an array of booleans."""
    import numpy as np
    import polars as pl

    column: Any = pl.from_arrow(plain)
    found = np.zeros(len(column), dtype=bool)
    for each in folders:
        found |= (column.str.starts_with(each.normal.rstrip("/") + "/") | (column == each.normal)).to_numpy()
    return found


def one_of_each_store(plain: pa.Array) -> Any:
    """The index of one path for each store, of paths in normal form."""
    import polars as pl

    column: Any = pl.from_arrow(plain)
    return column.str.extract("^([^/]+:/[^/]*)").fill_null("/").arg_unique().to_numpy()


def parents(paths: pa.Array) -> list[str]:
    """The folders of the files, each once, as written."""
    import polars as pl

    column: Any = pl.from_arrow(paths)
    return list(column.str.replace("/[^/]*$", "").unique(maintain_order=True).to_list())


def numbered_parents(paths: pa.Array | pa.ChunkedArray) -> tuple[list[str], Any]:
    """`parents`, and for each path the number of its folder among them."""
    import polars as pl

    column: Any = pl.from_arrow(paths)
    found = column.str.replace("/[^/]*$", "").to_arrow().dictionary_encode()
    return list(found.dictionary.to_pylist()), found.indices.to_numpy()


def elsewhere(path: str, folder: Location, other: str) -> str | None:
    """The same name below another folder, in that folder's spelling; None for a path that is not surely below the first."""
    below = Location.of(path).below(folder)
    return join(other, below) if below else None


def shortest(paths: Iterable[str]) -> list[str]:
    """The outermost of these folders."""
    kept: list[tuple[Location, str]] = []
    for each in sorted(set(paths), key=lambda path: (len(normal(path)), path)):
        place = Location.of(each)
        if not any(place.inside(outer) for outer, _ in kept):
            kept.append((place, each))
    return [each for _, each in kept]


def _rest(path: str, folder: str) -> str | None:
    if path == folder:
        return ""
    head = folder.rstrip("/") + "/"
    return path[len(head) :] if path.startswith(head) else None


def _one_slash(path: str) -> str:
    """As a file system reads it: empty parts and dots are dropped. `..` stays, as it may follow a link."""
    if "//" in path or "/." in path:
        path = _EMPTY_PARTS.sub("", path) or "/"
    return path.rstrip("/") or "/" if len(path) > 1 else path


def _tidy(path: str) -> str:
    if "//" in path or "/." in path:
        tidied = posixpath.normpath(path)
        return "/" + tidied.lstrip("/") if path.startswith("/") else tidied
    return path.rstrip("/") or "/" if len(path) > 1 else path
