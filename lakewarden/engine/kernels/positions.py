"""Rows deleted by position-delete files, each of which may name many data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from lakewarden.engine.kernels.delete_files import DeleteFile, charge, opened
from lakewarden.engine.kernels.project import Unfit
from lakewarden.engine.kernels.rowbits import RowBits
from lakewarden.engine.kernels.sources import BATCH_ROWS
from lakewarden.engine.kernels.storage import MissingSource, Store

_PATH, _POSITION = "file_path", "pos"

# The rows of each data file that is asked about, by its path in the one spelling.
Wanted = Mapping[str, Sequence[RowBits]]


def mark_positions(file: DeleteFile, wanted: Wanted, store: Store) -> None:
    """Delete the rows the file names in the wanted data files."""
    if file.referenced and file.referenced not in wanted:
        return
    # Paths repeat for thousands of rows: as a dictionary, each is looked at once a batch.
    with opened(file, store, dictionaries=[_PATH]) as parquet:
        _check(parquet.schema_arrow)
        columns = [_PATH, _POSITION]
        groups = [number for number in range(parquet.num_row_groups) if _may_name(parquet, number, wanted)]
        for number in groups:
            charge(parquet, number, columns, store)
            for batch in parquet.iter_batches(BATCH_ROWS, [number], columns, use_threads=False):
                paths, positions = batch.column(_PATH), batch.column(_POSITION)
                if paths.null_count or positions.null_count:
                    raise MissingSource(file.path, "a position-delete file with nulls")
                _mark(paths, positions.to_numpy(), wanted)


def _check(schema: pa.Schema) -> None:
    """Both names are reserved, so a file of other columns is no position-delete file we know."""
    found = {field.name: field.type for field in schema}
    path, position = found.get(_PATH, pa.null()), found.get(_POSITION, pa.null())
    text = path.value_type if pt.is_dictionary(path) else path
    if not (pt.is_string(text) or pt.is_large_string(text)) or not pt.is_int64(position):
        raise Unfit(f"a position-delete file whose {_PATH} is {path} and {_POSITION} is {position}")


def _may_name(parquet: pq.ParquetFile, number: int, wanted: Wanted) -> bool:
    """Whether a row group may name a wanted file, by the bounds of its paths."""
    group = parquet.metadata.row_group(number)
    chunks = [group.column(i) for i in range(group.num_columns)]
    (bounds,) = (chunk.statistics for chunk in chunks if chunk.path_in_schema == _PATH)
    if bounds is None or not bounds.has_min_max:
        return True
    return any(bounds.min <= path <= bounds.max for path in wanted)


def _mark(paths: pa.DictionaryArray, positions: npt.NDArray[np.int64], wanted: Wanted) -> None:
    codes = paths.indices.to_numpy()
    used = np.flatnonzero(np.bincount(codes))
    names = paths.dictionary.take(pa.array(used)).to_pylist()
    found = [(code, wanted[name]) for code, name in zip(used, names, strict=True) if name in wanted]
    if not found:
        return
    # Writers sort by path, and sorting what is sorted costs next to nothing.
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    for code, files in found:
        start, end = np.searchsorted(codes, [code, code + 1])
        for bits in files:
            bits.add(positions[order[start:end]])
