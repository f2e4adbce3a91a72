"""Reads position-delete files: rows deleted by position, in one file for many data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.deletes.delete_files import batches, opened
from lakewarden.rewrite.deletes.deleted_rows import RowBits
from lakewarden.rewrite.pages.copyable import trusted
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.sources import BATCH_ROWS
from lakewarden.rewrite.read.store import DamagedSource, Store

_PATH, _POSITION = "file_path", "pos"
# Parquet's type for a text.
_TEXT = "BYTE_ARRAY"

# The deleted rows of each requested data file, by its normalised path.
Wanted = Mapping[str, Sequence[RowBits]]


def mark_positions(file: DeleteFile, wanted: Wanted, store: Store) -> None:
    """Mark the rows that the file deletes in the requested data files."""
    if file.referenced and file.referenced not in wanted:
        return
    # Paths repeat for thousands of rows: as a dictionary, each path is examined once per batch.
    with opened(file, store, dictionaries=[_PATH]) as parquet:
        _check(parquet.schema_arrow)
        columns = [_PATH, _POSITION]
        groups = [number for number in range(parquet.num_row_groups) if _may_name(parquet, number, wanted)]
        for number in groups:
            for batch in batches(parquet, number, columns, BATCH_ROWS, store):
                paths, positions = batch.column(_PATH), batch.column(_POSITION)
                if paths.null_count or positions.null_count:
                    raise DamagedSource(file.path, "a position-delete file with nulls")
                _mark(paths, positions.to_numpy(), wanted)


def _check(schema: pa.Schema) -> None:
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
