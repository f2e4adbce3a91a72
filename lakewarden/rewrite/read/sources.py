"""The source files of a rewrite: reads each footer once, then rows in batches, each with its position in the file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewarden.model.location import is_local
from lakewarden.rate_limit import Throttle
from lakewarden.rewrite.read.footer import NO_SENSE, Parse, has_delta, read_footer, trouble, whole_footer
from lakewarden.rewrite.read.project import Projection, Unfit, field_id, projection
from lakewarden.rewrite.read.store import DamagedSource, Store
from lakewarden.rewrite.write.footer_fixups import has_int96, read_as_bytes

# Rows decoded at a time. Larger batches decode no faster; smaller ones (8192) cost 10 % more.
BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [from_row, to_row) of a source file. `deletes` are indices into the task's list of delete files."""

    path: str
    size: int
    rows: int
    from_row: int
    to_row: int
    data_sequence_number: int
    first_row_id: int | None
    deletes: tuple[int, ...] = ()

    @property
    def wanted(self) -> int:
        return self.to_row - self.from_row

    @property
    def whole(self) -> bool:
        return self.from_row == 0 and self.to_row == self.rows


class RowsDiffer(Exception):
    """Two row counts that must be equal differ: the source does not match the table, or rows were lost."""

    def __init__(self, path: str, expected: int, found: int) -> None:
        super().__init__(path, expected, found)
        self.path, self.expected, self.found = path, expected, found

    def __str__(self) -> str:
        return f"rewrite {self.path}: expected {self.expected} rows, found {self.found}"


@dataclass(frozen=True, slots=True)
class OpenSlice:
    """A slice whose footer has been read."""

    slice: Slice
    footer: pq.FileMetaData
    way: Projection
    handle: pa.NativeFile | None

    def row_groups(self) -> Iterator[tuple[int, int, int]]:
        """The row groups that overlap the slice, as (position of the first row, row count, row group number)."""
        first = 0
        for number in range(self.footer.num_row_groups):
            rows = self.footer.row_group(number).num_rows
            if rows and first < self.slice.to_row and first + rows > self.slice.from_row:
                yield first, rows, number
            first += rows

    def group_bytes(self, number: int, rows: int, columns: Sequence[str] | None) -> int:
        """The size of a row group in the file; if only some columns are read, the size of these."""
        if columns is None:
            return self.slice.size * rows // max(1, self.slice.rows)
        return sum(column_sizes(self.footer, number, columns))

    @property
    def bytes_read(self) -> int:
        rows = sum(rows for _, rows, _ in self.row_groups())
        return self.slice.size * rows // max(1, self.slice.rows)


def column_sizes(footer: pq.FileMetaData, number: int, columns: Collection[str]) -> list[int]:
    """The size of each of these columns of a row group in the file."""
    group = footer.row_group(number)
    chunks = [group.column(place) for place in range(group.num_columns)]
    return [chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns]


def open_sources(
    slices: tuple[Slice, ...],
    store: Store,
    target: pa.Schema,
    defaults: frozenset[int],
    throttle: Throttle,
) -> list[OpenSlice]:
    """Every footer, and the projection from each file's schema to the target's. `defaults` are ids whose
    absence is not null.
    """
    ways: list[Projection] = []
    sources = []
    parse = read_as_bytes if has_int96(target) else whole_footer
    for piece in slices:
        # The file's size and footer: with thousands of small files this is most of the requests, and few of the bytes.
        throttle.read(0, requests=2)
        sources.append(_open(piece, store, target, defaults, ways, parse))
    return sources


def _open(
    piece: Slice,
    store: Store,
    target: pa.Schema,
    defaults: frozenset[int],
    ways: list[Projection],
    parse: Parse,
) -> OpenSlice:
    """Read a footer. An object store's handle is kept, to avoid asking for its size again; a local handle is closed."""
    handle = store.open(piece.path)
    footer = read_footer(handle, piece.path, parse)
    if footer.num_rows != piece.rows:
        raise RowsDiffer(piece.path, piece.rows, footer.num_rows)
    try:
        way = _way(footer, target, defaults, ways)
    except Unfit as unfit:
        raise Unfit(unfit.reason, piece.path) from unfit
    except (pa.ArrowNotImplementedError, *NO_SENSE) as error:
        raise trouble(error, piece.path, "its schema makes no sense: ") from error
    if is_local(piece.path):
        handle.close()
        return OpenSlice(piece, footer, way, None)
    return OpenSlice(piece, footer, way, handle)


def _way(
    footer: pq.FileMetaData, target: pa.Schema, defaults: frozenset[int], ways: list[Projection]
) -> Projection:
    """The projection for this file; files of one schema share it."""
    source = footer.schema.to_arrow_schema().remove_metadata()
    for way in ways:
        if way.source.equals(source, check_metadata=True):
            return way
    way = projection(source, target, defaults)
    _check_columns(footer, way)
    ways.append(way)
    return way


def _check_columns(footer: pq.FileMetaData, way: Projection) -> None:
    if len(way.leaves) != footer.num_columns:
        raise Unfit(f"{footer.num_columns} Parquet columns decode to {len(way.leaves)}")
    paths = [footer.schema.column(leaf.index).path for leaf in way.leaves]
    for leaf, path in zip(way.leaves, paths, strict=True):
        if footer.schema.column(leaf.index).physical_type == "INT96":
            raise Unfit(f"column {leaf.path} is an INT96 timestamp")
        # If only some columns are read, they are named by path: each path must name exactly one column, the right one.
        if way.columns is not None and (path != leaf.path or paths.count(path) > 1):
            raise Unfit(f"column {path} would be read by another name")


def read_batches(
    source: OpenSlice,
    store: Store,
    schema: pa.Schema,
    batch_rows: int,
    throttle: Throttle,
    only: frozenset[int] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of the slice's rows as the file has them, each with the position of its first row in the file.

    `only` are the ids of the top-level columns to read, if not all are needed.
    """
    path = source.slice.path
    columns = source.way.columns if only is None else source.way.columns_of(only)
    carried = {field_id(column) for column in schema if pa.types.is_dictionary(column.type)}
    leaves = [leaf for leaf in source.way.leaves if leaf.id in carried]
    as_dictionary = [leaf.index for leaf in leaves if not has_delta(source.footer, leaf.index)]
    plain = [leaf.path for leaf in leaves if leaf.index not in as_dictionary]
    # Keys may be read before rows: a kept handle serves only the first reading.
    handle = source.handle if source.handle and not source.handle.closed else store.open(path)
    try:
        reader = pq.ParquetFile(
            handle,
            metadata=source.footer,
            read_dictionary=as_dictionary,
            # Merging ranges into few requests pays on an object store; on a local disk it only costs. Keys
            # alone are read while a task holds other data, so they must not be buffered by the row group.
            pre_buffer=only is None and not is_local(path),
            page_checksum_verification=True,
        )
        for first, rows, group in source.row_groups():
            position = first
            throttle.read(source.group_bytes(group, rows, None if only is None else columns))
            for batch in reader.iter_batches(batch_rows, [group], columns, use_threads=False):
                _check_dictionaries(batch, path)
                batch = _encoded(batch, plain)
                yield from _cut(batch, position, source.slice)
                position += batch.num_rows
    except (pa.ArrowNotImplementedError, *NO_SENSE) as error:
        # The file was opened and its footer read before: the error is in its pages.
        raise trouble(error, path) from error
    finally:
        handle.close()


def _encoded(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """The batch with these columns as dictionaries."""
    for place, name in enumerate(batch.schema.names):
        if name in names:
            batch = batch.set_column(place, name, batch.column(place).dictionary_encode())
    return batch


def _check_dictionaries(batch: pa.RecordBatch, path: str) -> None:
    """Check dictionary indices: Arrow does not compare them with the dictionary's size, which has no checksum
    in a page header.
    """
    for column, values in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            bounds, size = pc.min_max(values.indices), len(values.dictionary)
            least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
            if least is not None and not 0 <= least <= greatest < size:
                raise DamagedSource(path, f"column {column.name}: a value is not in its dictionary of {size}")


def _cut(batch: pa.RecordBatch, position: int, piece: Slice) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The part of a batch inside the slice, if any."""
    start = max(position, piece.from_row)
    end = min(position + batch.num_rows, piece.to_row)
    if start < end:
        yield start, batch.slice(start - position, end - start)
