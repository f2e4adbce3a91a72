"""A rewrite task, its result, and the reading part that all ways of writing share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakewarden.model.files import DeleteFile
from lakewarden.rate_limit import Pace, Throttle
from lakewarden.rewrite.deletes.delete_files import Target
from lakewarden.rewrite.digest import Digest, Entries, add_up, bind, digest, digest_in_place, hash_rows
from lakewarden.rewrite.order.sort_keys import Ordering
from lakewarden.rewrite.read.project import (
    LAST_UPDATED,
    ROW_ID,
    Unfit,
    defaulted_ids,
    field_id,
    ids_of,
    leaves,
    output_schema,
    projection,
)
from lakewarden.rewrite.read.sources import (
    BATCH_ROWS,
    OpenSlice,
    RowsDiffer,
    Slice,
    open_sources,
    read_batches,
)
from lakewarden.rewrite.read.store import Store
from lakewarden.rewrite.write.encoding import Encodings, WriteOptions, choose, survey

if TYPE_CHECKING:
    from lakewarden.rewrite.deletes.deletes import Eraser

_MIB = 1 << 20
# Row ids and sequence numbers are computed if a file states none; they are not part of a row's content.
NOT_CONTENT = frozenset({ROW_ID, LAST_UPDATED})


def stored_bytes(slices: Iterable[Slice]) -> int:
    """The size of the rows to read, as stored in their files."""
    return sum(piece.size * piece.wanted // max(1, piece.rows) for piece in slices)


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """All data that one task needs; sent to it by pickle."""

    outputs: tuple[str, ...]
    slices: tuple[Slice, ...]
    schema: bytes
    iceberg_schema_json: str
    options: WriteOptions
    io: Mapping[str, str] = field(default_factory=dict, repr=False)
    row_lineage: bool = False
    partition_ids: frozenset[int] = frozenset()
    memory_budget: int = 512 * _MIB
    deletes: tuple[DeleteFile, ...] = ()
    ordering: Ordering | None = None
    digest: bool = True
    copy_pages: bool = True
    pace: Pace | None = None
    encodings: Encodings | None = None  # chosen earlier, so that tasks of one group agree
    nan_in_bounds: bool = (
        False  # readers treat NaN as the largest number: a float column with NaN may state no bounds
    )

    @property
    def rows(self) -> int:
        return sum(piece.wanted for piece in self.slices)

    @property
    def stored_bytes(self) -> int:
        return stored_bytes(self.slices)


@dataclass(frozen=True, slots=True)
class SlicePart:
    """Where a slice's rows are in the output: from row `first` on, in order, without the erased positions."""

    slice: Slice
    first: int
    erased: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    path: str
    size: int
    rows: int
    split_offsets: tuple[int, ...]
    nan_counts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task. The peak is the process's, so in a reused worker it includes earlier tasks.

    `read` and `written` are digests of the rows read (without deleted ones) and written; None if none was
    requested. If pages were `copied`, with verified checksums, the digests cover only the other columns, as
    read from the sources and as passed to the encoder, and depend on order; they cover no rows if every column
    was copied. `parts` say where each source's rows went, if order was kept. `bytes_read` counts source bytes;
    `fetched` also counts delete files and bytes that were read twice.
    """

    files: tuple[WrittenFile, ...]
    bytes_read: int
    cpu_seconds: float
    peak_rss: int
    erased: int = 0
    read: Digest | None = None
    written: Digest | None = None
    parts: tuple[SlicePart, ...] = ()
    waited: float = 0.0
    fetched: int = 0
    copied: bool = False

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class Reading:
    """A task whose footers have been read: the sources, the schema rows are read into, and how they will be encoded."""

    def __init__(self, task: RewriteTask) -> None:
        self.task = task
        self.throttle = Throttle(task.pace)
        self.store = Store(task.io, self.throttle)
        self.target = output_schema(pa.ipc.read_schema(pa.py_buffer(task.schema)), task.row_lineage)
        # A missing column may have a value from its partition, as in files imported from Hive: then it is not null.
        self.defaults = defaulted_ids(task.iceberg_schema_json) | task.partition_ids
        self.sources = open_sources(task.slices, self.store, self.target, self.defaults, self.throttle)
        self.seen = survey((source.footer, source.way.leaves) for source in self.sources)
        self.encodings = task.encodings or choose(leaves(self.target), self.seen, task.options)
        self.schema = self._with_dictionaries()
        self.row_bytes = self._row_bytes()
        self.read = Digest()
        self.written = Digest()
        # Whether the digests depend on the order of rows, and on their lineage.
        self.in_order = False
        self.erased = 0

    def _with_dictionaries(self) -> pa.Schema:
        """The output's schema with carried strings as dictionaries; in Parquet this makes no difference."""
        return pa.schema(
            column.with_type(pa.dictionary(pa.int32(), column.type))
            if field_id(column) in self.encodings.carried
            else column
            for column in self.target
        )

    def _row_bytes(self) -> float:
        """The approximate memory of a decoded row, from the footers."""
        found = (
            (leaf.field.type, self.seen.get(leaf.id)) for leaf in leaves(self.schema) if leaf.id is not None
        )
        return 1 + sum(chunks.arrow_row_bytes(kind) for kind, chunks in found if chunks is not None)

    @property
    def bytes_read(self) -> int:
        return sum(source.bytes_read for source in self.sources)

    @property
    def decoded_bytes(self) -> float:
        return self.task.rows * self.row_bytes

    @cached_property
    def eraser(self) -> Eraser | None:
        """Which rows are deleted; None if no slice has deletes."""
        if not any(piece.deletes for piece in self.task.slices):
            return None
        targets = [Target(s.path, s.rows, s.data_sequence_number, s.deletes) for s in self.task.slices]
        from lakewarden.rewrite.deletes.deletes import Eraser  # loaded only for a rewrite with deletes

        # Half of the budget: the other half holds the rows themselves.
        budget = self.task.memory_budget // 2
        return Eraser(self.task.deletes, targets, self.target, self.store, budget, self.keys)

    def columns(self, ids: Collection[int]) -> pa.Schema:
        """The output's columns with these field ids; columns that the table dropped are not included."""
        return pa.schema([column for column in self.target if field_id(column) in ids])

    def keys(self, number: int, keys: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Only these columns of a source, plain, each batch with the position of its first row."""
        source, ids = self.sources[number], ids_of(keys)
        kept = [column for column in source.way.source if field_id(column) in ids]
        # From format version 3 on, a dropped column may have had a default, which the newest schema no longer states.
        dropped = ids - ids_of(self.target)
        unknown = self.defaults | (dropped if self.task.row_lineage else frozenset())
        try:
            way = projection(pa.schema(kept), keys, unknown)
        except Unfit as unfit:
            raise Unfit(unfit.reason, source.slice.path) from unfit
        for position, batch in read_batches(source, self.store, keys, BATCH_ROWS, self.throttle, ids):
            yield position, pa.RecordBatch.from_arrays(way.apply(batch, keys), schema=keys)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every row of every slice that is not deleted, in order, in the output's form."""
        row_bytes = self.row_bytes
        # Made before the first handle is in use: it may read keys through the same handle.
        eraser = self.eraser
        for number, source in enumerate(self.sources):
            rows = 0
            batch_rows = max(1, min(BATCH_ROWS, int(self.task.memory_budget / 8 / row_bytes)))
            for position, batch in read_batches(source, self.store, self.schema, batch_rows, self.throttle):
                rows += batch.num_rows
                # Footers say little about repeated strings; from the first file on, the rows themselves give the size.
                row_bytes = max(row_bytes, batch.nbytes / batch.num_rows)
                lineage = self._lineage(source, position, batch)
                output = self._output_batch(source, batch, lineage)
                kept = eraser.survivors(number, position, output) if eraser else None
                self._add_digest(source, batch, lineage, kept)
                if kept is not None:
                    output = output.filter(kept)
                    self.erased += batch.num_rows - output.num_rows
                yield output
            if rows != source.slice.wanted:
                raise RowsDiffer(source.slice.path, source.slice.wanted, rows)

    def _add_digest(
        self, source: OpenSlice, batch: pa.RecordBatch, lineage: pa.RecordBatch | None, kept: pa.Array | None
    ) -> None:
        """Hash the rows as the file has them, before projection; fields that the table no longer has do not
        count.

        A row's hash depends on field ids, not on the order of a struct's fields, and a field the file lacks
        adds nothing. So rows of a nested column that changed have the same hash before and after.
        """
        if not self.task.digest:
            return
        leave_out = NOT_CONTENT | source.way.dropped
        if self.in_order:
            self.read += self._in_place(batch, lineage, self.read.rows, leave_out)
            return
        hashes = hash_rows(batch, leave_out)
        bound = None if lineage is None else bind(hashes, lineage)
        if kept is not None:
            left = kept.to_numpy(zero_copy_only=False)
            hashes, bound = hashes[left], None if bound is None else bound[left]
        self.read += add_up(hashes, bound)

    def add_written(self, rows: pa.Table) -> None:
        """Hash the rows that are passed to the encoder."""
        known: Entries = {}
        for batch in rows.to_batches():
            lineage = self._lineage_of(batch) if self.task.row_lineage else None
            if self.in_order:
                self.written += self._in_place(batch, lineage, self.written.rows, NOT_CONTENT, known)
                continue
            if lineage is None:
                self.written += digest(batch, NOT_CONTENT)
                continue
            hashes = hash_rows(batch, NOT_CONTENT)
            self.written += add_up(hashes, bind(hashes, lineage))

    def _in_place(
        self,
        rows: pa.RecordBatch,
        lineage: pa.RecordBatch | None,
        place: int,
        leave_out: frozenset[int],
        known: Entries | None = None,
    ) -> Digest:
        """The digest of values in their places, including the row lineage."""
        values = digest_in_place(rows, place, leave_out, known)
        return values if lineage is None else values + replace(digest_in_place(lineage, place), rows=0)

    def _output_batch(
        self, source: OpenSlice, batch: pa.RecordBatch, lineage: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        try:
            columns = source.way.apply(batch, self.schema)
        except Unfit as unfit:
            raise Unfit(unfit.reason, source.slice.path) from unfit
        if lineage is not None:
            columns[-2:] = lineage.columns
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _lineage_of(self, output: pa.RecordBatch) -> pa.RecordBatch:
        """Row ids and sequence numbers: the last two columns of the output."""
        return output.select([output.num_columns - 2, output.num_columns - 1])

    def _lineage(self, source: OpenSlice, position: int, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The row ids and sequence numbers of these rows, from the file; None for a table without them."""
        if not self.task.row_lineage:
            return None
        stated = {field_id(field): column for field, column in zip(batch.schema, batch.columns, strict=True)}
        nothing = pa.nulls(batch.num_rows, pa.int64())
        columns = _lineage(
            stated.get(ROW_ID, nothing), stated.get(LAST_UPDATED, nothing), source.slice, position
        )
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(self.schema)[-2:]))

    def parts(self) -> tuple[SlicePart, ...]:
        """Where each slice's rows are in one output that keeps their order; complete after all batches have passed."""
        result, first = [], 0
        for number, piece in enumerate(self.task.slices):
            erased = self.eraser.erased(number) if self.eraser and piece.deletes else None
            if erased is not None:
                erased = erased[(erased >= piece.from_row) & (erased < piece.to_row)]
            result.append(SlicePart(piece, first, erased))
            first += piece.wanted - (0 if erased is None else len(erased))
        return tuple(result)


def _lineage(row_id: pa.Array, updated: pa.Array, piece: Slice, position: int) -> list[pa.Array]:
    """A row keeps the id and sequence number that its file states; if it states none, they are computed from the file's own."""
    if row_id.null_count and piece.first_row_id is not None:
        first = piece.first_row_id + position
        row_id = pc.coalesce(row_id, pa.arange(first, first + len(row_id)))
    if updated.null_count:
        updated = updated.fill_null(piece.data_sequence_number)
    return [row_id, updated]
