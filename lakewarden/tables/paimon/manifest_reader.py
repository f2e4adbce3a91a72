"""Decodes Paimon's manifest lists and manifests in bulk, with the full path of every file."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import LakewardenError
from lakewarden.model.table import TableView

# Cached rows of a manifest. Kinds: 0 added, 1 deleted, 2 index file, 3 file of deletion vectors.
NAMED = pa.schema([("path", pa.string()), ("size", pa.int64()), ("kind", pa.int8())])
ADDED, DELETED, INDEX, VECTORS = 0, 1, 2, 3
# The same with the row count of the file; null for an extra file of a data file, which has no own entry.
COUNTED = NAMED.append(pa.field("rows", pa.int64()))
_POSTPONED = -2
_TOGETHER = 64


What = Literal["paimon-list", "paimon-manifest", "paimon-index"]


class Decoder(Protocol):
    def decode(
        self, what: What, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Yields each decoded (path, length, entries) in order, or None and the reason. A count of -1 is not checked."""

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        """The paths that do not exist in the store."""


@dataclass(frozen=True, slots=True)
class PaimonReader:
    """A MetadataReader for one Paimon table. `folders` returns the library's folders for partitions (JSON of base64)."""

    view: TableView
    decoder: Decoder
    folders: Callable[[str], str]
    _known: dict[bytes, str] = field(default_factory=dict)

    def lists(
        self, paths: Sequence[str], io: Mapping[str, str], lengths: Mapping[str, int]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Yields for each list its manifests (manifest, length, live, encrypted); here `live` counts all entries.

        A list whose length differs from `lengths` is not read.
        """
        files = [(path, lengths.get(path, -1), -1) for path in paths]
        decoded = self.decoder.decode("paimon-list", files, io)
        while together := list(islice(decoded, _TOGETHER)):
            yield from _shared(together, self._with_folder)

    def manifests(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """Yields for each manifest or index manifest its files: path, size, kind."""
        for path, table, trouble in self.counted(wanted, io):
            yield path, None if table is None else table.select(NAMED.names), trouble

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        return self.decoder.absent(paths, io)

    def counted(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """The same, with the row count of each file."""
        for index, group in groupby(wanted, key=lambda each: is_index(each[0])):
            what: What = "paimon-index" if index else "paimon-manifest"
            decoded = self.decoder.decode(what, list(group), io)
            while together := list(islice(decoded, _TOGETHER)):
                yield from self._named_together(together, index)

    def named_whole(self, manifests: Sequence[tuple[str, int]], io: Mapping[str, str]) -> Iterator[str]:
        """The files that these manifests (path, length) name by their full path, not relative to the table."""
        for index, group in groupby(manifests, key=lambda each: is_index(each[0])):
            what: What = "paimon-index" if index else "paimon-manifest"
            files = [(path, length, -1) for path, length in group]
            for path, entries, trouble in self.decoder.decode(what, files, io):
                if entries is None:
                    raise LakewardenError(
                        reason=f"read {path}: {trouble}", hint="check it with `lakewarden fsck`"
                    )
                yield from pc.drop_null(entries["external"]).to_pylist()

    def _named_together(
        self, decoded: Sequence[tuple[str, pa.Table | None, str]], index: bool
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        tables = [table for _, table, _ in decoded if table is not None]
        entries = pa.concat_tables(tables).combine_chunks() if tables else None
        if entries is None or pc.sum(pc.list_value_length(entries["extra"])).as_py():
            for path, table, trouble in decoded:  # with extra files, there are more rows than entries
                yield path, None if table is None else self._named(table, index), trouble
            return
        yield from _shared(decoded, lambda entries: self._named(entries, index))

    def _with_folder(self, table: pa.Table) -> pa.Table:
        folder = f"{self.view.handle.metadata.location}/manifest/"
        paths = pc.binary_join_element_wise(folder, table["manifest"].combine_chunks(), "")
        return table.set_column(0, "manifest", paths)

    def _named(self, entries: pa.Table, index: bool) -> pa.Table:
        if not entries.num_rows:
            return COUNTED.empty_table()
        folders = self._index_folders(entries) if index else self._bucket_folders(entries)
        inside = pc.binary_join_element_wise(folders, entries["name"].combine_chunks(), "")
        paths = _where_it_really_is(pc.coalesce(entries["external"].combine_chunks(), inside))
        added = entries["added"].combine_chunks()
        here = pc.if_else(entries["vectors"].combine_chunks(), VECTORS, INDEX) if index else ADDED
        kinds = pc.if_else(added, here, DELETED).cast(pa.int8())
        columns = [paths, entries["size"].combine_chunks(), kinds, entries["rows"].combine_chunks()]
        named = pa.Table.from_arrays(columns, schema=COUNTED)
        extra = self._extra(entries, paths, kinds)
        return pa.concat_tables([named, extra]) if extra.num_rows else named

    def _extra(self, entries: pa.Table, paths: pa.Array, kinds: pa.Array) -> pa.Table:
        """Rows for the extra files of data files, such as bloom filters: they lie next to the data file."""
        extra = entries["extra"].combine_chunks()
        of = pc.list_parent_indices(extra)
        if not len(of):
            return COUNTED.empty_table()
        folder = pc.replace_substring_regex(paths.take(of), r"[^/]*$", "")
        whole = pc.binary_join_element_wise(folder, pc.list_flatten(extra), "")
        unknown = pa.nulls(len(of), pa.int64())
        return pa.Table.from_arrays([whole, unknown, kinds.take(of), unknown], schema=COUNTED)

    def _index_folders(self, entries: pa.Table) -> pa.Array:
        if self.view.handle.index_beside_data:
            return self._bucket_folders(entries)
        return pa.array([f"{self.view.handle.metadata.location}/index/"] * entries.num_rows, pa.string())

    def _bucket_folders(self, entries: pa.Table) -> pa.Array:
        partitions = entries["partition"].combine_chunks().dictionary_encode()
        own = [self._folder(each) for each in self._told(partitions.dictionary.to_pylist())]
        folders = pa.array(own, pa.string()).take(partitions.indices)
        buckets = entries["bucket"].combine_chunks().dictionary_encode()
        names = ["postpone" if each == _POSTPONED else str(each) for each in buckets.dictionary.to_pylist()]
        within = pa.array([f"bucket-{name}/" for name in names], pa.string()).take(buckets.indices)
        return pc.binary_join_element_wise(folders, within, "")

    def _told(self, partitions: Sequence[bytes]) -> list[str]:
        unknown = [partition for partition in partitions if partition not in self._known]
        if unknown:
            encoded = json.dumps([base64.b64encode(each).decode() for each in unknown])
            self._known.update(zip(unknown, json.loads(self.folders(encoded)), strict=True))
        return [self._known[partition] for partition in partitions]

    def _folder(self, relative: str) -> str:
        return f"{self.view.handle.metadata.location}/{relative}"


def _shared(
    decoded: Sequence[tuple[str, pa.Table | None, str]], change: Callable[[pa.Table], pa.Table]
) -> Iterator[tuple[str, pa.Table | None, str]]:
    """Applies one change to the rows of all manifests in one call: an Arrow call per manifest would be slower."""
    tables = [table for _, table, _ in decoded if table is not None]
    changed, start = change(pa.concat_tables(tables).combine_chunks()) if tables else None, 0
    for path, table, trouble in decoded:
        if table is None or changed is None:
            yield path, None, trouble
            continue
        yield path, changed.slice(start, table.num_rows), trouble
        start += table.num_rows


# A changelog that was compacted before its commit is one file for several buckets: an entry names a part by offset and length.
_PART = r"bucket-[^/]+/(compacted-changelog-[^/$]+)\$(\d+)-(\d+)-\d+-\d+(\.[^/]*)$"


def is_shared(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether the entries name parts of a file: then no entry has the size of the whole file."""
    return pc.match_substring_regex(paths, r"/compacted-changelog-[^/]*$")


def _where_it_really_is(paths: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring(paths, "compacted-changelog-")).as_py():
        return paths
    return pc.replace_substring_regex(paths, _PART, r"bucket-\2/\1$\2-\3\4")


def is_index(path: str) -> bool:
    return path.rpartition("/")[2].startswith("index-manifest-")
