"""Bin-packing by copying: pages that already have the output's form are copied without decoding.

The pages of a copied column, one source after the other, become one column chunk of the output; none of its values is
decoded. The other columns are decoded and encoded as usual, and both kinds are assembled in one file. Any doubt means
decoding: of one column if the footers show the doubt, otherwise of the whole task.

Measured on 1 M rows of telemetry (25 files of Iceberg's writer, 30 MB, 11 columns, zstd, classic encodings), CPU seconds:

    all columns decoded                                            0.41   (0.49 with the digest of every row)
    five copied, those without a dictionary: 3/4 of the bytes      0.24   (0.27 with the digest of the other columns)

Copying, checksums and reading back take 0.04 of that; the rest is for the decoded columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lakewarden.model.location import is_local
from lakewarden.rewrite.pages.assembly import Assembly, Encoded, arrow_file, encoded_chunks, octets
from lakewarden.rewrite.pages.chunks import CODECS, Doubtful, SourceChunk
from lakewarden.rewrite.pages.copyable import Layout, Piece, check_paths, codec, largest_chunk, strict, tiny
from lakewarden.rewrite.read.project import Leaf, Projection, leaves, repeats
from lakewarden.rewrite.read.sources import BATCH_ROWS, OpenSlice
from lakewarden.rewrite.read.store import DamagedSource, MissingSource
from lakewarden.rewrite.task import Reading, WrittenFile
from lakewarden.rewrite.write.encoding import Encodings, settle
from lakewarden.rewrite.write.output import held_limit, rows_per_group

# Copying less than this share of the bytes saves too little to use both methods.
_LEAST_SHARE = 1 / 8
# Between chunks in an object store, reading this many extra bytes is cheaper than another request.
_GAP = 1 << 20


def suits(reading: Reading) -> bool:
    """Whether copying is worth a closer check, judged from a sample of the footers."""
    task = reading.task
    if len(task.outputs) != 1 or codec(task.options) not in CODECS:
        return False
    if any(piece.deletes or not piece.whole for piece in task.slices):
        return False
    promising = [leaf for leaf in leaves(reading.schema) if _promises(leaf, reading)]
    return _share(reading, promising) > _LEAST_SHARE


def _promises(leaf: Leaf, reading: Reading) -> bool:
    chunks = None if leaf.id is None else reading.seen.get(leaf.id)
    if chunks is None or chunks.dictionary_bytes or leaf.path in reading.encodings.dictionary:
        return False
    if repeats(reading.schema.field(leaf.top)):
        return False
    return not tiny(chunks.compressed, chunks.values, chunks.chunks)


def concatenate(reading: Reading) -> tuple[WrittenFile, ...]:
    """Writes all rows into one file, in the order of the sources. After Doubtful no output is left: decode instead."""
    (path,) = reading.task.outputs
    check_paths(reading.sources)
    narrow = copy(reading)
    narrow.schema = strict(reading)
    # Decoded columns stand beside copied ones: each value has to be in its place.
    narrow.in_order = True
    layout, groups = _planned(narrow)
    with Assembly(narrow, path, layout.template) as file:
        for pieces, copied in groups:
            for taken, encoded in _encoded(layout, pieces, copied):
                _write_group(file, layout, taken, copied, encoded)
        written = (file.finish(),)
    reading.read, reading.written = narrow.read, narrow.written
    return written


# A row group's pieces, and the top-level columns that are copied for it.
_Group = tuple[list[Piece], frozenset[int]]


def _planned(reading: Reading) -> tuple[Layout, list[_Group]]:
    """The output's layout and its row groups. Raises Doubtful if no column can be copied."""
    layout = Layout.of(reading, reading.encodings)
    groups = _groups(layout)
    if groups and reading.encodings.open_questions:
        # A column that needs a dictionary must not be copied without one.
        layout = Layout.of(reading, _settled(reading))
        groups = _groups(layout)
    if not groups:
        raise Doubtful("no column has pages that can be copied")
    return layout, groups


def _settled(reading: Reading) -> Encodings:
    """The encodings, with open questions settled by the first rows."""
    questions = set(reading.encodings.open_questions)
    tops = [top for top, column in enumerate(reading.schema) if column.name in questions]
    held = _Held()
    for batch in _only(reading, tops, reading.sources, digest=False).batches():
        held.add(batch)
        if held.rows >= BATCH_ROWS:
            break
    return settle(reading.encodings, held.take())


def _groups(layout: Layout) -> list[_Group]:
    """Row groups of about equal rows, made of whole pieces: a piece goes to the group of its middle row. None
    if no group copies anything.
    """
    rows = rows_per_group(layout.reading)
    cut: dict[int, list[Piece]] = {}
    first = 0
    for piece in layout.pieces():
        cut.setdefault((first + piece.rows // 2) // rows, []).append(piece)
        first += piece.rows
    groups = [(pieces, layout.copied(pieces)) for pieces in cut.values()]
    return groups if any(copied for _, copied in groups) else []


def _write_group(
    file: Assembly, layout: Layout, pieces: list[Piece], copied: frozenset[int], encoded: Iterator[Encoded]
) -> None:
    """Write one row group, its chunks in the order of the schema."""
    fetched = _Fetched(layout, pieces, [leaf.index for leaf in layout.leaves if leaf.top in copied])
    for leaf, column in zip(layout.leaves, layout.columns, strict=True):
        if leaf.top in copied:
            file.copy(column, fetched.parts(leaf.index))
        else:
            file.place(column.path, next(encoded))
    file.end_group(sum(piece.rows for piece in pieces))


# --- columns that are decoded -------------------------------------------------------------------------------


@dataclass
class _Held:
    """Rows in memory."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    def take(self) -> pa.Table:
        table = pa.Table.from_batches(self.batches)
        self.batches, self.rows, self.bytes = [], 0, 0
        return table


def _only(reading: Reading, tops: Sequence[int], sources: Iterable[OpenSlice], *, digest: bool) -> Reading:
    """A reading of only some columns. Row lineage is always included, because batches end with it."""
    count = len(reading.schema)
    kept = sorted({*tops, *range(count - 2 if reading.task.row_lineage else count, count)})
    narrow = copy(reading)
    narrow.task = replace(reading.task, digest=digest)
    narrow.schema = pa.schema([reading.schema.field(top) for top in kept])
    share = _share(reading, leaves(narrow.schema))
    ways: dict[int, Projection] = {}
    for way in (source.way for source in reading.sources):
        if id(way) not in ways:
            ways[id(way)] = Projection(way.source, pa.schema([way.target.field(top) for top in kept]))
    narrow.sources = [
        # A file counts against the read rate by its size: here, by the part of it that is read.
        replace(s, way=ways[id(s.way)], slice=replace(s.slice, size=int(share * s.slice.size)))
        for s in sources
    ]
    return narrow


def _share(reading: Reading, columns: Iterable[Leaf]) -> float:
    """The approximate share of the files' bytes that these columns take."""
    seen = (reading.seen.get(leaf.id) for leaf in columns if leaf.id is not None)
    whole = sum(chunks.compressed for chunks in reading.seen.values())
    return sum(chunks.compressed for chunks in seen if chunks is not None) / max(1, whole)


def _encoded(
    layout: Layout, pieces: list[Piece], copied: frozenset[int]
) -> Iterator[tuple[list[Piece], Iterator[Encoded]]]:
    """The other columns as Arrow encodes them, for as many pieces at a time as fit in memory: nearly always all."""
    tops = [top for top in range(len(layout.reading.schema)) if top not in copied]
    if not tops:
        yield pieces, iter(())
        return
    sources = [piece.source for piece in pieces]
    reading = _only(layout.reading, tops, sources, digest=layout.reading.task.digest)
    budget = reading.task.memory_budget
    taken: list[Piece] = []
    held = _Held()
    for piece, source in list(zip(pieces, reading.sources, strict=True)):
        if taken and held.bytes * (1 + piece.rows / held.rows) > held_limit(budget):
            layout.reading.read = reading.read
            yield taken, _encode(layout, held.take())
            taken = []
        reading.sources = [source]
        for batch in reading.batches():
            held.add(batch)
            if held.bytes > budget:
                raise Doubtful(f"a row group of {piece.path} does not fit in memory")
        taken.append(piece)
    layout.reading.read = reading.read
    yield taken, _encode(layout, held.take())


def _encode(layout: Layout, rows: pa.Table) -> Iterator[Encoded]:
    """The chunks of these columns, from a file in memory as the task would write it."""
    paths = {leaf.path for leaf in leaves(rows.schema)}
    encodings = layout.encodings
    levels = encodings.levels
    here = replace(
        encodings,
        dictionary=tuple(path for path in encodings.dictionary if path in paths),
        special={path: name for path, name in encodings.special.items() if path in paths},
        levels=levels and {path: level for path, level in levels.items() if path in paths},
    )
    reading = layout.reading
    hand_over = reading.add_written if reading.task.digest else None
    # Each source has its own dictionaries; unless they are unified, the writer decodes all but the first.
    unified = rows.unify_dictionaries()
    file = arrow_file(rows.schema, settle(here, rows), reading.task, unified, hand_over)
    return encoded_chunks(file, unified)


# --- columns that are copied --------------------------------------------------------------------------------


class _Fetched:
    """Chunks of the sources, column after column. As many columns as fit in memory are fetched together: a file
    is opened once for them, and adjacent chunks come in one request.
    """

    def __init__(self, layout: Layout, pieces: list[Piece], wanted: list[int]) -> None:
        self._store = layout.reading.store
        self._throttle = layout.reading.throttle
        self._limit = largest_chunk(layout.reading.task.memory_budget)
        self._pieces = pieces
        self._wanted = wanted
        self._together: list[int] = []
        self._held: list[dict[int, memoryview]] = []

    def parts(self, number: int) -> Iterator[SourceChunk]:
        """The chunks of a column. Columns must be requested in the order in which they were given."""
        if number not in self._together:
            self._held = []
            self._together = self._from(number)
            if len(self._together) > 1:
                self._held = [self._fetch(piece, self._together) for piece in self._pieces]
        for place, piece in enumerate(self._pieces):
            # A single column that fills the memory is fetched chunk by chunk.
            chunks = self._held[place] if self._held else self._fetch(piece, [number])
            yield SourceChunk(piece.path, piece.rows, piece.chunk(number), chunks[number])

    def _from(self, number: int) -> list[int]:
        """This column, and the following ones that fit in memory together with it."""
        together: list[int] = []
        size = 0
        for each in self._wanted[self._wanted.index(number) :]:
            size += sum(piece.chunk(each).total_compressed_size for piece in self._pieces)
            if together and size > self._limit:
                break
            together.append(each)
        return together

    def _fetch(self, piece: Piece, numbers: list[int]) -> dict[int, memoryview]:
        chunks = ((piece.chunk(number), number) for number in numbers)
        spans = sorted(
            (chunk.data_page_offset, chunk.total_compressed_size, number) for chunk, number in chunks
        )
        kept = piece.source.handle
        try:
            with self._store.open(piece.path) if kept is None or kept.closed else kept as handle:
                return dict(
                    part
                    for near in _near(spans, 0 if is_local(piece.path) else _GAP)
                    for part in self._read(handle, near, piece.path)
                )
        except OSError as error:
            raise MissingSource(piece.path, str(error)) from error

    def _read(self, handle: pa.NativeFile, near: list[_Span], path: str) -> Iterator[tuple[int, memoryview]]:
        first, end = near[0][0], near[-1][0] + near[-1][1]
        self._throttle.read(end - first)
        handle.seek(first)
        data = octets(handle.read_buffer(end - first))
        if len(data) != end - first:
            raise DamagedSource(path, f"ends before byte {end}, where its footer says a column is")
        for start, size, number in near:
            yield number, data[start - first : start - first + size]


_Span = tuple[int, int, int]


def _near(spans: list[_Span], gap: int) -> Iterator[list[_Span]]:
    """Groups of spans in which each begins at most `gap` bytes after the previous one."""
    run: list[_Span] = []
    for span in spans:
        if run and span[0] - (run[-1][0] + run[-1][1]) > gap:
            yield run
            run = []
        run.append(span)
    if run:
        yield run
