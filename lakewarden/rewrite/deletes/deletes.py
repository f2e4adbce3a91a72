"""Which rows of a task's source files are deleted: by position, by deletion vector, or by the values of a key.

All deletes are read before the first row, so a delete that cannot be applied here raises Unfit before anything
is written. The deleted rows of a file take one bit each; keys of equality deletes take a share of the budget,
however many there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.deletes.delete_files import Target, batches, opened
from lakewarden.rewrite.deletes.deleted_rows import RowBits
from lakewarden.rewrite.deletes.equality import EqualityFilter, FilterMethod, ReadKeys
from lakewarden.rewrite.deletes.vectors import mark_vector
from lakewarden.rewrite.pages.copyable import trusted
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.sources import BATCH_ROWS, RowsDiffer
from lakewarden.rewrite.read.store import DamagedSource, Store

# The file formats that each kind of delete file may have.
READABLE = {"position": ("parquet",), "vector": ("puffin", "paimon"), "equality": ("parquet",)}

# The deleted rows of each requested data file, by its normalised path.
Wanted = Mapping[str, Sequence[RowBits]]


class Eraser:
    """The deleted rows of some files."""

    def __init__(
        self,
        files: Sequence[DeleteFile],
        targets: Sequence[Target],
        schema: pa.Schema,
        store: Store,
        budget: int,
        read_keys: ReadKeys,
    ) -> None:
        """Read the deletes. `read_keys` is called only for equality deletes that do not fit, and may be called again."""
        self._targets = targets
        self._bits = [RowBits(target.rows) for target in targets]
        listed = _listed(targets)
        for place in listed:
            _check_readable(files[place])
        self._filters = _filters(files, listed, targets, schema)
        self._mark_positions(files, listed, store)
        for equality in self._filters:
            equality.prepare(store, budget // len(self._filters), read_keys, self._mark)

    @property
    def ways(self) -> tuple[FilterMethod, ...]:
        """How each set of equality columns was processed."""
        return tuple(equality.way for equality in self._filters)

    def survivors(self, target: int, position: int, batch: pa.RecordBatch) -> pa.Array | None:
        """Which rows of a batch stay; the first row is at `position` of the file. None if all stay.

        The batch has the output's columns, or at least those that equality deletes need. Columns are matched by
        field id.
        """
        end, rows = position + batch.num_rows, self._targets[target].rows
        if end > rows:
            raise RowsDiffer(self._targets[target].path, rows, end)
        for equality in self._filters:
            self._mark(target, equality.hits(target, batch) + position)
        return self._bits[target].survivors(position, batch.num_rows)

    def erased(self, target: int) -> npt.NDArray[np.int64]:
        """The deleted positions of one data file (`target`: its index), ascending. Complete after all its batches were read.

        Deletes by position are known for the whole file, even if only a slice of it is read.
        """
        return self._bits[target].positions()

    def _mark(self, target: int, positions: npt.NDArray[np.int64]) -> None:
        self._bits[target].add(positions)

    def _mark_positions(
        self, files: Sequence[DeleteFile], listed: Mapping[int, Sequence[int]], store: Store
    ) -> None:
        for place, targets in listed.items():
            file = files[place]
            if file.kind == "equality":
                continue
            rows_by_path = defaultdict(list)
            for target in targets:
                rows_by_path[self._targets[target].path].append(self._bits[target])
            if file.kind == "position":
                mark_positions(file, rows_by_path, store)
            else:
                mark_vector(file, _named(file, rows_by_path), store)


def _listed(targets: Sequence[Target]) -> dict[int, list[int]]:
    """For each delete file, by index, the targets that list it."""
    listed = defaultdict(list)
    for number, target in enumerate(targets):
        for place in target.deletes:
            listed[place].append(number)
    return dict(listed)


def _named(file: DeleteFile, listing: Mapping[str, list[RowBits]]) -> list[RowBits]:
    """The files whose rows a vector deletes. A vector that names none of the files that list it must raise an error."""
    named = file.referenced or next(iter(listing))
    if set(listing) != {named}:
        raise Unfit(f"a deletion vector of {named} is listed for {', '.join(listing)}", file.path)
    return listing[named]


def _check_readable(file: DeleteFile) -> None:
    if file.format not in READABLE.get(file.kind, ()):
        raise Unfit(f"a delete file of kind {file.kind} and format {file.format}", file.path)
    if file.kind == "equality" and not file.equality_ids:
        raise Unfit("an equality-delete file without equality columns", file.path)


def _filters(
    files: Sequence[DeleteFile],
    listed: Mapping[int, Sequence[int]],
    targets: Sequence[Target],
    schema: pa.Schema,
) -> list[EqualityFilter]:
    """A filter for each set of equality columns. A delete applies only to rows older than it."""
    by_ids: dict[tuple[int, ...], dict[DeleteFile, int]] = defaultdict(lambda: defaultdict(int))
    ages = np.array([target.sequence_number for target in targets])
    for place, numbers in listed.items():
        file = files[place]
        audience = _audience(np.array(numbers), ages, file.sequence_number)
        if file.kind == "equality" and audience:
            by_ids[tuple(sorted(file.equality_ids))][file] |= audience
    return [EqualityFilter(ids, grouped, targets, schema) for ids, grouped in by_ids.items()]


def _audience(numbers: npt.NDArray[np.int64], ages: npt.NDArray[np.int64], sequence_number: int) -> int:
    """The targets older than a delete, as bits."""
    flags = np.zeros(len(ages), np.bool_)
    flags[numbers] = ages[numbers] < sequence_number
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


_PATH, _POSITION = "file_path", "pos"
# Parquet's type for a text.
_TEXT = "BYTE_ARRAY"


def mark_positions(file: DeleteFile, wanted: Wanted, store: Store) -> None:
    """Mark the rows that the file deletes in the requested data files."""
    if file.referenced and file.referenced not in wanted:
        return
    # Paths repeat for thousands of rows: as a dictionary, each path is examined once per batch.
    with opened(file, store, dictionaries=[_PATH]) as parquet:
        _check_schema(parquet.schema_arrow)
        columns = [_PATH, _POSITION]
        groups = [number for number in range(parquet.num_row_groups) if _may_name(parquet, number, wanted)]
        for number in groups:
            for batch in batches(parquet, number, columns, BATCH_ROWS, store):
                paths, positions = batch.column(_PATH), batch.column(_POSITION)
                if paths.null_count or positions.null_count:
                    raise DamagedSource(file.path, "a position-delete file with nulls")
                _mark(paths, positions.to_numpy(), wanted)


def _check_schema(schema: pa.Schema) -> None:
    """Check the schema. Both column names are reserved, so a file with other columns is no known position-delete file."""
    types = {field.name: field.type for field in schema}
    path, position = types.get(_PATH, pa.null()), types.get(_POSITION, pa.null())
    text = path.value_type if pt.is_dictionary(path) else path
    if not (pt.is_string(text) or pt.is_large_string(text)) or not pt.is_int64(position):
        raise Unfit(f"a position-delete file whose {_PATH} is {path} and {_POSITION} is {position}")


def _may_name(parquet: pq.ParquetFile, number: int, wanted: Wanted) -> bool:
    """Whether a row group may name a requested file, by the bounds of its paths.

    Uses only bounds from writers known to be correct: skipping a group wrongly brings deleted rows back.
    """
    if not trusted(parquet.metadata.created_by):
        return True
    group = parquet.metadata.row_group(number)
    chunks = [group.column(i) for i in range(group.num_columns)]
    (paths,) = (chunk for chunk in chunks if chunk.path_in_schema == _PATH)
    if paths.physical_type != _TEXT:
        # Arrow would end the process if it were asked for the bounds of such a chunk.
        raise pa.ArrowInvalid(f"its footer says that paths are {paths.physical_type}")
    bounds = paths.statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return any(bounds.min <= path <= bounds.max for path in wanted)


def _mark(paths: pa.Array, positions: npt.NDArray[np.int64], wanted: Wanted) -> None:
    if not pt.is_dictionary(paths.type):
        paths = paths.dictionary_encode()
    codes = paths.indices.to_numpy()
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(paths.dictionary):
        raise pa.ArrowInvalid(f"a path is not in its dictionary of {len(paths.dictionary)}")
    used = np.flatnonzero(np.bincount(codes))
    names = paths.dictionary.take(pa.array(used)).to_pylist()
    targets = [(code, wanted[name]) for code, name in zip(used, names, strict=True) if name in wanted]
    if not targets:
        return
    # Writers sort by path, and sorting sorted data costs almost nothing.
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    for code, files in targets:
        start, end = np.searchsorted(codes, [code, code + 1])
        for bits in files:
            bits.add(positions[order[start:end]])
