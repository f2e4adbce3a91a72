"""Reading very many Parquet files to their end: can every page be decoded, has it its checksum, and are the rows as many as
the table says? Nothing of what is read is kept."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.engine.kernels.storage import MissingSource, Store
from lakewarden.location import is_local

# A request to an object store waits for an answer most of the time.
_REMOTE_THREADS = 8
# Rows decoded at a time; of several files at once, where they are in an object store.
_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Footer:
    """A file to open, and what the table says of it."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class FooterTask:
    files: tuple[Footer, ...]
    io: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WrongFooter:
    """A file that cannot be read (`found` None, and why), or that has another number of rows.

    `unknown` means that Arrow has no decoder for it, which says nothing about the file.
    """

    path: str
    expected: int
    found: int | None
    reason: str = ""
    unknown: bool = False


def check_footers(task: FooterTask) -> list[WrongFooter]:
    """Only what is wrong comes back."""
    pa.set_cpu_count(1)
    store = Store(task.io)
    if not task.files or is_local(task.files[0].path):
        found = [_check(each, store) for each in task.files]
    else:
        with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
            found = list(pool.map(lambda each: _check(each, store), task.files))
    return [each for each in found if each is not None]


def _check(file: Footer, store: Store) -> WrongFooter | None:
    try:
        with store.open(file.path) as handle:
            rows = _decoded_rows(handle, pre_buffer=not is_local(file.path))
    except MissingSource as error:
        return WrongFooter(file.path, file.rows, None, error.reason)
    except pa.ArrowNotImplementedError as error:
        return WrongFooter(file.path, file.rows, None, str(error), unknown=True)
    except (OSError, pa.ArrowException) as error:
        return WrongFooter(file.path, file.rows, None, f"{type(error).__name__}: {error}".splitlines()[0])
    return None if rows == file.rows else WrongFooter(file.path, file.rows, rows)


def _decoded_rows(handle: pa.NativeFile, *, pre_buffer: bool) -> int:
    """Decode every page. Checksums are compared where pages have them; without, damage shows only if it cannot be decoded."""
    file = pq.ParquetFile(handle, pre_buffer=pre_buffer, page_checksum_verification=True)
    rows = int(sum(batch.num_rows for batch in file.iter_batches(_ROWS, use_threads=False)))
    if rows != file.metadata.num_rows:
        raise pa.ArrowInvalid(f"it holds {rows} rows, its footer says {file.metadata.num_rows}")
    return rows
