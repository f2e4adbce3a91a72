"""Opening the footers of very many Parquet files: can each be read, and has it the rows that the table says it has?"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.engine.kernels.storage import MissingSource, Store, is_local

# A request to an object store waits for an answer most of the time.
_REMOTE_THREADS = 8


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
    """A file that cannot be opened (`found` None, and why), or that has another number of rows."""

    path: str
    expected: int
    found: int | None
    reason: str = ""


def check_footers(task: FooterTask) -> list[WrongFooter]:
    """Only what is wrong comes back."""
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
            rows = pq.read_metadata(handle).num_rows
    except MissingSource as error:
        return WrongFooter(file.path, file.rows, None, error.reason)
    except (OSError, pa.ArrowException) as error:
        return WrongFooter(file.path, file.rows, None, f"{type(error).__name__}: {error}".splitlines()[0])
    return None if rows == file.rows else WrongFooter(file.path, file.rows, rows)
