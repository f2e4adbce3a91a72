"""What a rewrite is asked to do, what came of it, and the reading half that every way of writing shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.engine.kernels.encoding import Chunks, Encodings, WriteOptions, choose, survey
from lakewarden.engine.kernels.project import Unfit, defaulted_ids, field_id, leaves, output_schema
from lakewarden.engine.kernels.sources import (
    BATCH_ROWS,
    RowsDiffer,
    Slice,
    Source,
    open_sources,
    read_batches,
)
from lakewarden.engine.kernels.storage import Store

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """All that one task needs; travels to it by pickle."""

    outputs: tuple[str, ...]
    slices: tuple[Slice, ...]
    schema: bytes
    iceberg_schema_json: str
    options: WriteOptions
    io: Mapping[str, str] = field(default_factory=dict, repr=False)
    row_lineage: bool = False
    partition_ids: frozenset[int] = frozenset()
    memory_budget: int = 512 * _MIB

    @property
    def rows(self) -> int:
        return sum(piece.wanted for piece in self.slices)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    path: str
    size: int
    rows: int
    split_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What came out. The peak is the process's, so in a reused worker it includes earlier tasks."""

    files: tuple[WrittenFile, ...]
    bytes_read: int
    cpu_seconds: float
    peak_rss: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Reading:
    """A task whose footers have been read: the sources, the schema rows are read into, and how they will be encoded."""

    task: RewriteTask
    store: Store
    sources: list[Source]
    schema: pa.Schema
    encodings: Encodings
    row_bytes: float
    seen: Mapping[int, Chunks]

    @classmethod
    def open(cls, task: RewriteTask) -> Reading:
        store = Store(task.io)
        target = output_schema(pa.ipc.read_schema(pa.py_buffer(task.schema)), task.row_lineage)
        # A column a file lacks may be known from its partition alone, as in files imported from Hive: not null there.
        defaults = defaulted_ids(task.iceberg_schema_json) | task.partition_ids
        sources = open_sources(task.slices, store, target, defaults)
        seen = survey((source.footer, source.way.leaves) for source in sources)
        encodings = choose(leaves(target), seen, task.options)
        schema = _with_dictionaries(target, encodings)
        return cls(task, store, sources, schema, encodings, _row_bytes(schema, seen), seen)

    @property
    def bytes_read(self) -> int:
        return sum(source.bytes_read for source in self.sources)

    @property
    def decoded_bytes(self) -> float:
        return self.task.rows * self.row_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every row of every slice, in order, as the output has it."""
        row_bytes = self.row_bytes
        for source in self.sources:
            rows = 0
            batch_rows = max(1, min(BATCH_ROWS, int(self.task.memory_budget / 8 / row_bytes)))
            for position, batch in read_batches(source, self.store, self.schema, batch_rows):
                rows += batch.num_rows
                # Footers tell little of strings that repeat; the rows themselves do, from the first file on.
                row_bytes = max(row_bytes, batch.nbytes / batch.num_rows)
                yield self._output_batch(source, position, batch)
            if rows != source.slice.wanted:
                raise RowsDiffer(source.slice.path, source.slice.wanted, rows)

    def _output_batch(self, source: Source, position: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            columns = source.way.apply(batch, self.schema)
        except Unfit as unfit:
            raise Unfit(unfit.reason, source.slice.path) from unfit
        if self.task.row_lineage:
            columns[-2:] = _lineage(columns[-2], columns[-1], source.slice, position)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _lineage(row_id: pa.Array, updated: pa.Array, piece: Slice, position: int) -> list[pa.Array]:
    """A row keeps the id and sequence number its file states; where it states none, they follow from the file's own."""
    if row_id.null_count and piece.first_row_id is not None:
        first = piece.first_row_id + position
        row_id = pc.coalesce(row_id, pa.arange(first, first + len(row_id)))
    if updated.null_count:
        updated = updated.fill_null(piece.data_sequence_number)
    return [row_id, updated]


def _with_dictionaries(target: pa.Schema, encodings: Encodings) -> pa.Schema:
    """The output's schema with the carried strings as dictionaries; Parquet sees no difference."""
    return pa.schema(
        column.with_type(pa.dictionary(pa.int32(), column.type))
        if field_id(column) in encodings.carried
        else column
        for column in target
    )


def _row_bytes(schema: pa.Schema, seen: Mapping[int, Chunks]) -> float:
    """About how much memory a row takes once decoded, from the footers."""
    found = ((leaf.field.type, seen.get(leaf.id)) for leaf in leaves(schema) if leaf.id is not None)
    return 1 + sum(chunks.arrow_row_bytes(kind) for kind, chunks in found if chunks is not None)
