"""Reads a Parquet file's footer in one or two requests, and parses it from memory.

So a store that does not answer (another engine may reach it) is distinguished from a footer that is there and
invalid. No other engine gets a file with an invalid footer: the result of a more lenient reader would become
the table's rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.rewrite.pages.thrift import Malformed
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.store import DamagedSource, MissingSource

Parse = Callable[[pa.NativeFile], pq.FileMetaData]

# Exceptions that Arrow raises if a footer, or a text in it, is invalid.
NO_SENSE = (OSError, pa.ArrowException, Malformed, UnicodeDecodeError)
# How Arrow's messages begin if a file is intact but Arrow does not support its writer's form of a map or a list.
_OTHER_SHAPES = ("Map keys must", "Key-value map", "MAP-annotated", "LIST-annotated")
# How a message begins that comes from a store and not from the file.
_STORE = ("AWS Error", "Google Cloud", "When ")

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
# After the footer: its length and the magic.
_END = 8
# Bytes read first from the end of the file, as Arrow does: nearly every footer is shorter.
_TAIL = 64 << 10


def whole_footer(file: pa.NativeFile) -> pq.FileMetaData:
    return pq.ParquetFile(file).metadata


def trouble(error: Exception, path: str, what: str = "") -> Unfit | MissingSource:
    """Classify an Arrow error about a file: another engine may read it, its store does not answer, or it is damaged."""
    reason = str(error)
    if "encrypted" in reason:
        return Unfit("the file is encrypted", path)
    if isinstance(error, pa.ArrowNotImplementedError) or reason.startswith(_OTHER_SHAPES):
        return Unfit(reason, path)
    if isinstance(error, OSError) and (error.errno or reason.startswith(_STORE)):
        return MissingSource(path, reason)
    return DamagedSource(path, what + reason)


def read_footer(handle: pa.NativeFile, path: str, parse: Parse = whole_footer) -> pq.FileMetaData:
    """The footer of an open file. Unfit if the file is encrypted, DamagedSource if the footer does not parse."""
    try:
        size = handle.size()
        tail = bytes(handle.read_at(min(size, _TAIL), max(0, size - _TAIL)))
        length = _length(tail, size, path)
        if length + _END > len(tail):
            tail = bytes(handle.read_at(length + _END, size - length - _END))
    except OSError as error:
        raise MissingSource(path, str(error)) from error
    try:
        return parse(pa.BufferReader(_MAGIC + tail[-length - _END :]))
    except (pa.ArrowNotImplementedError, *NO_SENSE) as error:
        raise trouble(error, path, "its footer does not parse: ") from error


def has_delta(footer: pq.FileMetaData, column: int) -> bool:
    """Whether pages of a column may use a delta encoding. Arrow cannot read such pages into a dictionary."""
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return any(each.startswith("DELTA") for group in groups for each in group.column(column).encodings)


def _length(tail: bytes, size: int, path: str) -> int:
    """The length of the footer, from the end of the file."""
    if tail[-4:] == _ENCRYPTED:
        raise Unfit("the file is encrypted", path)
    if tail[-4:] != _MAGIC:
        raise DamagedSource(path, f"its {size:,} bytes do not end as a Parquet file does")
    length = int.from_bytes(tail[-_END:-4], "little")
    if not 0 < length <= size - _END - len(_MAGIC):
        raise DamagedSource(path, f"its footer would take {length:,} of its {size:,} bytes")
    return length
