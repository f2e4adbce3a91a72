"""Checks the footer statistics of unknown writers against the values, before they become bounds of a table. A
reader that trusts a wrong bound misses rows, and a delete by bounds drops rows that it should keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewarden.model.location import is_local
from lakewarden.rewrite.pages.copyable import trusted
from lakewarden.rewrite.read.footer import NO_SENSE
from lakewarden.rewrite.read.store import MissingSource, Store

# A request to an object store mostly waits for an answer.
_REMOTE_THREADS = 8
_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


@dataclass(frozen=True, slots=True)
class BoundsTask:
    paths: tuple[str, ...]
    io: Mapping[str, str]


def of_unknown_writers(paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
    """The files whose footers name an unknown writer. Files that cannot be opened are left to the format's own check."""
    store = Store(io)

    def is_unknown(path: str) -> bool:
        try:
            with store.open(path) as handle:
                return not trusted(pq.read_metadata(handle).created_by)
        except (MissingSource, *NO_SENSE):
            return False

    with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
        return [path for path, unknown in zip(paths, pool.map(is_unknown, paths), strict=True) if unknown]


def check_bounds(task: BoundsTask) -> list[tuple[str, str]]:
    """The files whose footers state wrong values, each with the wrong statement."""
    pa.set_cpu_count(1)
    store = Store(task.io)
    with ThreadPoolExecutor(1 if is_local(task.paths[0]) else _REMOTE_THREADS) as pool:
        reasons = list(pool.map(lambda path: _wrong(store, path), task.paths))
    return [(path, reason) for path, reason in zip(task.paths, reasons, strict=True) if reason]


def _wrong(store: Store, path: str) -> str:
    try:
        with store.open(path) as handle:
            file = pq.ParquetFile(handle, page_checksum_verification=True)
            writer = file.metadata.created_by or "no name"
            reason = next(_wrong_columns(file), "")
    except MissingSource as error:
        return error.reason
    except (pa.ArrowNotImplementedError, *NO_SENSE) as error:
        return f"it cannot be decoded: {str(error).splitlines()[0]}"
    return f"{reason} (written by {writer})" if reason else ""


def _wrong_columns(file: pq.ParquetFile) -> Iterator[str]:
    """The columns with wrong bounds. Only columns with one value per row have bounds in a table."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            if file.schema.column(place).max_repetition_level or column.statistics is None:
                continue
            values = _leaf(file.read_row_group(number, columns=[column.path_in_schema], use_threads=False))
            if reason := _disagrees(column, values):
                yield f"its footer says of the column {column.path_in_schema} {reason}"


def _leaf(table: pa.Table) -> pa.ChunkedArray:
    """The values of the one column that was read, including nulls of the structs around it."""
    if table.num_columns != 1:
        raise pa.ArrowInvalid(f"columns {', '.join(table.column_names)} have ambiguous names")
    values = table.column(0)
    while pa.types.is_struct(values.type):
        values = pc.struct_field(values, [0])
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _disagrees(column: Any, values: pa.ChunkedArray) -> str:
    stated = column.statistics
    if stated.has_null_count and stated.null_count != values.null_count:
        return f"that it has {stated.null_count} nulls, and it has {values.null_count}"
    # A table does not take bounds of these types from a footer.
    if not stated.has_min_max or pa.types.is_floating(values.type) or column.physical_type == "INT96":
        return ""
    if values.null_count == len(values):
        return ""
    least, most, low, high = _comparable(column, values)
    if least <= low and high <= most:
        return ""
    return f"that it goes from {least!r} to {most!r}, and it goes from {low!r} to {high!r}"


def _comparable(column: Any, values: pa.ChunkedArray) -> tuple[Any, Any, Any, Any]:
    """The stated and the actual bounds, each as least and greatest. Strings by their bytes: a bound may end inside a letter."""
    stated, raw = column.statistics, False
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())
    if column.physical_type in _BYTES and not pa.types.is_decimal(values.type):
        raw = True
    elif getattr(values.type, "unit", "") == "ns":  # Python's times are not that precise
        values, raw = values.cast(pa.int64()), True
    actual = pc.min_max(values)
    least, most = (stated.min_raw, stated.max_raw) if raw else (stated.min, stated.max)
    return least, most, actual["min"].as_py(), actual["max"].as_py()
