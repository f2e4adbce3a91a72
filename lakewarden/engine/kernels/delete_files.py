"""Delete files as a task names them, and how they are opened."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.engine.kernels.project import Unfit
from lakewarden.engine.kernels.sources import column_sizes
from lakewarden.engine.kernels.storage import MissingSource, Store

# A column chunk is read through a window of this size. Read whole, as pre-buffering does, it takes as much memory as the
# writer's row group, which nothing bounds.
_WINDOW = 4 << 20


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A delete file, or one vector inside a Puffin file; travels to a task by pickle."""

    kind: str
    path: str
    format: str
    bytes: int
    records: int
    sequence_number: int
    equality_ids: tuple[int, ...] = ()
    content_offset: int = 0
    content_size: int = 0
    referenced: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A source file whose rows may be deleted. `rows` are all of the file's; `deletes` are places in the list of files."""

    path: str
    rows: int
    sequence_number: int
    deletes: tuple[int, ...]


@contextlib.contextmanager
def opened(file: DeleteFile, store: Store, dictionaries: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """A Parquet file read in small pieces; what goes wrong inside the block is told as this file's.

    Columns named as dictionaries are read as such, if the file has them.
    """
    path = file.path
    store.throttle.read(0, requests=2)  # its size and its footer
    handle = store.open(path)
    try:
        footer = pq.read_metadata(handle)
        carried = [name for name in dictionaries if name in footer.schema.names]
        yield pq.ParquetFile(
            handle, metadata=footer, read_dictionary=carried, buffer_size=_WINDOW, pre_buffer=False
        )
    except Unfit as unfit:
        raise Unfit(unfit.reason, path) from unfit
    except pa.ArrowNotImplementedError as error:
        raise Unfit(str(error), path) from error
    except (OSError, pa.ArrowException) as error:
        if "encrypted" in str(error):
            raise Unfit("the file is encrypted", path) from error
        raise MissingSource(path, str(error)) from error
    finally:
        handle.close()


def charge(parquet: pq.ParquetFile, number: int, columns: Collection[str], store: Store) -> None:
    """Before these columns of a row group are read, window by window."""
    sizes = column_sizes(parquet.metadata, number, columns)
    store.throttle.read(sum(sizes), requests=sum(-(-size // _WINDOW) for size in sizes))
