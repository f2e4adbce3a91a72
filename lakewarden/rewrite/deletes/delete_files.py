"""The rows that delete files may apply to, and functions to open and read delete files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.read.footer import NO_SENSE, has_delta, read_footer, trouble
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.sources import column_sizes
from lakewarden.rewrite.read.store import DamagedSource, Store

# A column chunk is read through a window of this size. Pre-buffering would read it whole and take as much
# memory as the writer's row group, which has no size limit.
_WINDOW = 4 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A source file whose rows may be deleted. `rows` is the file's total; `deletes` are indices into the list
    of delete files.
    """

    path: str
    rows: int
    sequence_number: int
    deletes: tuple[int, ...]


@contextlib.contextmanager
def opened(file: DeleteFile, store: Store, dictionaries: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for reading in small pieces with checksums verified. Errors inside the block are
    reported for this file.

    Damage is never ignored: a delete that is read wrongly brings one row back and deletes another. Columns
    named in `dictionaries` are read as dictionaries, if the file has them and Arrow can.
    """
    path = file.path
    store.throttle.read(0, requests=2)  # the file's size and its footer
    handle = store.open(path)
    try:
        footer = read_footer(handle, path)
        _check_rows(footer, file)
        names = footer.schema.names
        carried = [
            name for name in dictionaries if name in names and not has_delta(footer, names.index(name))
        ]
        yield pq.ParquetFile(
            handle,
            metadata=footer,
            read_dictionary=carried,
            buffer_size=_WINDOW,
            pre_buffer=False,
            page_checksum_verification=True,
        )
    except Unfit as unfit:
        raise Unfit(unfit.reason, path) from unfit
    except (pa.ArrowNotImplementedError, *NO_SENSE) as error:
        raise trouble(error, path) from error
    finally:
        handle.close()


def _check_rows(footer: pq.FileMetaData, file: DeleteFile) -> None:
    """Check the row count: if a damaged footer leaves out deletes, deleted rows come back."""
    rows = sum(footer.row_group(number).num_rows for number in range(footer.num_row_groups))
    if rows != footer.num_rows:
        raise DamagedSource(
            file.path, f"its row groups hold {rows:,} rows, its footer says {footer.num_rows:,}"
        )
    if rows != file.records:
        raise DamagedSource(file.path, f"it holds {rows:,} rows, the table says {file.records:,}")


def batches(
    parquet: pq.ParquetFile, number: int, columns: Sequence[str], rows: int, store: Store
) -> Iterator[pa.RecordBatch]:
    """Columns of a row group, `rows` rows at a time and window by window. A group that ends early is damaged."""
    sizes = column_sizes(parquet.metadata, number, columns)
    store.throttle.read(sum(sizes), requests=sum(-(-size // _WINDOW) for size in sizes))
    left = parquet.metadata.row_group(number).num_rows
    for batch in parquet.iter_batches(rows, [number], columns, use_threads=False):
        left -= batch.num_rows
        yield batch
    if left:
        raise pa.ArrowInvalid(f"row group {number} has a different row count than its footer states")
