"""Changes footers in two ways that Arrow cannot: it keeps INT96 timestamps, and removes the bounds of floats
that contain NaN.

To Arrow, an INT96 is a number of nanoseconds, which ends in the year 2262 and wraps around after it. Here its
twelve bytes stay unchanged: a footer that is read declares the column as twelve bytes, a footer that is written
declares INT96 again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.pages.thrift import Struct
from lakewarden.rewrite.read.project import Leaf, children

# Marks a field that holds the bytes of an INT96. Only the table formats set it; the name is fixed.
INT96 = b"lakewarden.int96"
INT96_BYTES = 12

_MAGIC = b"PAR1"
_INT96, _FIXED = 3, 7
# Statistics: only the counts of nulls and of distinct values are valid for any order.
_COUNTS = frozenset((3, 4))


def is_int96(field: pa.Field) -> bool:
    return INT96 in (field.metadata or {})


def has_int96(schema: pa.Schema) -> bool:
    def below(field: pa.Field) -> bool:
        return is_int96(field) or any(below(child) for child in children(field.type))

    return any(below(field) for field in schema)


def read_as_bytes(handle: pa.NativeFile) -> pq.FileMetaData:
    """A file's footer, with INT96 columns as twelve bytes each."""
    size = handle.size()
    length = int.from_bytes(handle.read_at(4, size - 8), "little")
    if not 0 < length <= size - 12:
        raise pa.ArrowInvalid(f"its footer would have {length} of its {size} bytes")
    footer = thrift.read(handle.read_at(length, size - 8 - length))[0]
    try:
        data = thrift.write(_mapped(footer, _to_bytes, _without_bounds_of_int96))
    except (TypeError, AttributeError, KeyError) as error:
        raise thrift.Malformed(f"a part of it is missing or has another type: {error}") from error
    return pq.read_metadata(pa.BufferReader(_MAGIC + data + len(data).to_bytes(4, "little") + _MAGIC))


def amended(footer: Struct, int96: Collection[str], boundless: Collection[str]) -> Struct:
    """The footer with `int96` columns as INT96, and `boundless` columns without bounds. Columns are named by Parquet path."""
    at = iter(_leaf_paths(footer))

    def element(each: Struct) -> Struct:
        if thrift.value_of(each, 5, 0) or next(at) not in int96:
            return each
        return {number: typed for number, typed in each.items() if number != 2} | {1: thrift.i32(_INT96)}

    def column(each: Struct) -> Struct:
        path = ".".join(name.decode() for name in thrift.value_of(each, 3))
        if path in int96:
            return _without_bounds(each | {1: thrift.i32(_INT96)})
        return _without_bounds(each) if path in boundless else each

    return _mapped(footer, element, column)


def int96_paths(found: Collection[Leaf]) -> list[str]:
    return [leaf.path for leaf in found if is_int96(leaf.field)]


class HeldFooter:
    """A sink that holds back everything written after `hold`: a footer that is still to be amended."""

    closed = False

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink = sink
        self._held: bytearray | None = None

    def hold(self) -> None:
        self._held = bytearray()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._held is None:
            self._sink.write(view)
        else:
            self._held += view
        return len(view)

    def tell(self) -> int:
        return int(self._sink.tell()) + len(self._held or b"")

    def flush(self) -> None:
        return None

    def close(self) -> None:
        """Does nothing: the opener of the sink closes it."""

    def release(self, amend: Callable[[Struct], Struct]) -> None:
        """Pass on the held bytes, with the footer amended."""
        held = bytes(self._held or b"")
        length = int.from_bytes(held[-8:-4], "little")
        start = len(held) - 8 - length
        footer = thrift.write(amend(thrift.read(held[start:-8])[0]))
        self._sink.write(held[:start] + footer + len(footer).to_bytes(4, "little") + _MAGIC)


def _mapped(
    footer: Struct, element: Callable[[Struct], Struct], column: Callable[[Struct], Struct]
) -> Struct:
    """The footer with the functions applied to every schema element and every column chunk's metadata."""

    def chunk(each: Struct) -> Struct:
        return each | {3: thrift.structure(column(thrift.value_of(each, 3)))}

    def group(each: Struct) -> Struct:
        return each | {1: thrift.listed(thrift.STRUCT, map(chunk, thrift.value_of(each, 1)))}

    return footer | {
        2: thrift.listed(thrift.STRUCT, map(element, thrift.value_of(footer, 2))),
        4: thrift.listed(thrift.STRUCT, map(group, thrift.value_of(footer, 4, []))),
    }


def _to_bytes(element: Struct) -> Struct:
    if thrift.value_of(element, 1) != _INT96 or thrift.value_of(element, 5, 0):
        return element
    return element | {1: thrift.i32(_FIXED), 2: thrift.i32(INT96_BYTES)}


def _without_bounds_of_int96(column: Struct) -> Struct:
    return (
        _without_bounds(column | {1: thrift.i32(_FIXED)}) if thrift.value_of(column, 1) == _INT96 else column
    )


def _without_bounds(column: Struct) -> Struct:
    statistics = thrift.value_of(column, 12)
    if statistics is None:
        return column
    kept = {number: typed for number, typed in statistics.items() if number in _COUNTS}
    return column | {12: thrift.structure(kept)}


def _leaf_paths(footer: Struct) -> Iterator[str]:
    elements = iter(thrift.value_of(footer, 2))

    def walk(above: tuple[str, ...], count: int) -> Iterator[str]:
        for _ in range(count):
            element = next(elements)
            names = (*above, thrift.value_of(element, 4).decode())
            below = thrift.value_of(element, 5, 0)
            if below:
                yield from walk(names, below)
            else:
                yield ".".join(names)

    return walk((), thrift.value_of(next(elements), 5, 0))
