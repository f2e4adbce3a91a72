"""Reads very many Parquet files to their end: checks that every page decodes and matches its checksum, and that
the row count is the table's. Also checks delete files and deletion vectors. Keeps none of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.model.files import DeleteFile
from lakewarden.model.location import is_local
from lakewarden.rewrite.deletes.vectors import check_vector
from lakewarden.rewrite.read.footer import NO_SENSE, trouble
from lakewarden.rewrite.read.store import DamagedSource, MissingSource, Store

# A request to an object store mostly waits for an answer.
_REMOTE_THREADS = 8
# Rows decoded at a time; of several files at once, if they are in an object store.
_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Footer:
    """A file to open, and the table's row count for it; `delete` if it is a delete file, or a vector in one."""

    path: str
    bytes: int
    rows: int
    delete: DeleteFile | None = None


@dataclass(frozen=True, slots=True)
class FooterTask:
    files: tuple[Footer, ...]
    io: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WrongFooter:
    """A file that cannot be read (`found` None, and the reason), or that has another number of rows.

    `unknown` means that Arrow has no decoder for it, which says nothing about the file. `damaged` means that
    the file itself is faulty, not its store.
    """

    path: str
    expected: int
    found: int | None
    reason: str = ""
    unknown: bool = False
    delete: bool = False
    damaged: bool = False

    def __str__(self) -> str:
        reason = self.reason or f"it has {self.found:,} rows, the table says {self.expected:,}"
        return f"{self.path}: {reason}"


def check_footers(task: FooterTask) -> list[WrongFooter]:
    """Check the files. Returns only the wrong ones."""
    pa.set_cpu_count(1)
    store = Store(task.io)
    if not task.files or is_local(task.files[0].path):
        results = [_check(file, store) for file in task.files]
    else:
        with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
            results = list(pool.map(lambda each: _check(each, store), task.files))
    return [result for result in results if result is not None]


def _check(file: Footer, store: Store) -> WrongFooter | None:
    def wrong(reason: str, unknown: bool = False, damaged: bool = False) -> WrongFooter:
        return WrongFooter(file.path, file.rows, None, reason, unknown, file.delete is not None, damaged)

    try:
        if file.delete is not None and file.delete.kind == "vector":
            check_vector(file.delete, store)  # this compares the number of positions as well
            return None
        with store.open(file.path) as handle:
            rows = _decoded_rows(handle, pre_buffer=not is_local(file.path))
    except MissingSource as error:
        return wrong(error.reason, damaged=isinstance(error, DamagedSource))
    except pa.ArrowNotImplementedError as error:
        return wrong(str(error), unknown=True)
    except NO_SENSE as error:
        damaged = isinstance(trouble(error, file.path), DamagedSource)
        return wrong(f"{type(error).__name__}: {error}".splitlines()[0], damaged=damaged)
    if rows == file.rows:
        return None
    return WrongFooter(file.path, file.rows, rows, delete=file.delete is not None, damaged=True)


def _decoded_rows(handle: pa.NativeFile, *, pre_buffer: bool) -> int:
    """Decode every page. Checksums are verified if pages have them; without them, damage shows only if decoding fails."""
    file = pq.ParquetFile(handle, pre_buffer=pre_buffer, page_checksum_verification=True)
    rows = int(sum(batch.num_rows for batch in file.iter_batches(_ROWS, use_threads=False)))
    if rows != file.metadata.num_rows:
        raise pa.ArrowInvalid(f"it holds {rows} rows, its footer says {file.metadata.num_rows}")
    return rows
