"""An order-free digest of rows: equal before and after a rewrite, and for as long as the rows are kept.

It is stored with the snapshot and may be computed again from other files years later, so it is defined here
in plain arithmetic modulo 2**64, and no release may change it (tests/rewrite/test_digest.py holds a second,
slow implementation):

    fold(x)               x xor x >> 32
    spread(x, a, b)       fold(x * a) * b
    key(n)                fold(spread(n + START, SCATTER, MIX)) | 1
    a value of field f    spread(word, key(4f), key(4f + 1)) + key(4f + 2); a null, or a column a file lacks, is 0
    a struct of field f   key(4f + 2) + the sum of its fields
    a row                 fold(spread(the sum of its columns + ROW, SCATTER, MIX))
    first, second         the sums over rows of that hash, and of fold(spread(hash, AGAIN, TWICE))

The word of an integer, a boolean or an unscaled decimal is its value; of a float, fold(its bits as a
double); of a date or a time, its microseconds. The remainder (a decimal beyond a signed 64-bit part, or
nanoseconds beyond the whole microsecond) is multiplied by BEYOND and added. A string is cut into words of
eight bytes, the first byte lowest, the last word padded with zeros: its own word is the sum of spread(the
k-th word, SEQUENCE, key(4k + 3)), plus its number of bytes * LENGTH. A list is the string of its elements'
hashes; a map is a list of entries, each of which is the hash of its key plus the hash of its value.

So only the value counts, not how Arrow stores it: the number of bits, the unit, plain or in a dictionary,
the part of a buffer. Every NaN is the same value, -0.0 is not 0.0, a date is its midnight, and tables
promote types without changing a row's hash.

`digest_in_place` is another digest, for values that must keep their positions.
"""

from __future__ import annotations

import math
import re
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from lakewarden.rewrite.read.project import Unfit, children, field_id, is_list

Words = NDArray[np.uint64]

MASK = (1 << 64) - 1


def _root(number: int) -> np.uint64:
    """The first 64 binary digits of a square root's fraction, made odd: constants that are not chosen by hand."""
    return np.uint64(math.isqrt(number << 128) & MASK | 1)


SCATTER, MIX, START, SEQUENCE, LENGTH, BEYOND, ROW, AGAIN, TWICE = map(
    _root, (2, 3, 5, 7, 11, 13, 17, 19, 23)
)
HALF = np.uint64(32)
NAN = np.uint64(0x7FF8 << 48)

# Values mixed at a time, so that scratch memory and input stay in a core's second-level cache. Half or twice as
# many cost 5 % more, a quarter as many 20 % more; new memory for a whole batch would cost three times as much.
BLOCK = 49_152


class Scratch(threading.local):
    """Reusable memory that keeps nothing between two calls: allocating it each time would cost as much as the arithmetic."""

    def __init__(self) -> None:
        self._blocks = np.empty((2, BLOCK), np.uint64)

    def of(self, words: int) -> tuple[Words, Words]:
        return self._blocks[0, :words], self._blocks[1, :words]


scratch = Scratch()


def fold(words: Words, spare: Words) -> Words:
    return np.bitwise_xor(words, np.right_shift(words, HALF, spare), words)


def spread(words: Words, first: np.uint64, second: np.uint64 | Words, out: Words, spare: Words) -> Words:
    """One to one, and zero maps to zero. Enough for values that are added and folded again; one fold less saves
    a fifth of the time.
    """
    np.multiply(words, first, out)
    np.multiply(fold(out, spare), second, out)
    return out


def mix(words: Words, first: np.uint64, second: np.uint64, out: Words) -> Words:
    """Spread and fold, so that no sum of these can be constructed from parts. At most one block at a time."""
    spare = scratch.of(len(words))[1]
    return fold(spread(words, first, second, out, spare), spare)


def keys(numbers: Words) -> Words:
    started = numbers + START
    return mix(started, SCATTER, MIX, started) | np.uint64(1)


@lru_cache(maxsize=4096)
def field_keys(id_: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    first, second, here = keys(np.arange(4 * id_, 4 * id_ + 3, dtype=np.uint64))
    return first, second, here


def position_keys(first: int, count: int) -> Words:
    """Keys of the words of a sequence; precomputed for all but very long strings."""
    if first + count <= len(_EARLY):
        return _EARLY[first : first + count]
    return keys(np.arange(first, first + count, dtype=np.uint64) * np.uint64(4) + np.uint64(3))


_EARLY = keys(np.arange(BLOCK, dtype=np.uint64) * np.uint64(4) + np.uint64(3))


Octets = NDArray[np.uint8]

# Up to this many bytes, laying out all strings whole is cheaper than another round for the longer ones.
_SHORT = 64
# Up to this many bytes, strings of equal length are read word by word in place.
_EQUAL = 256

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000}
_DAY = 86_400 * 1_000_000


# Hashes of a dictionary's entries, by column and memory address.
Entries = dict[tuple[Any, ...], Words]


@dataclass(frozen=True, slots=True)
class Digest:
    """Sums over rows, so the digests of two halves add up to that of the whole. Two sums, because 64 bits are
    too few for years.

    `beside` binds each row to values that are not part of its content: its row id and its sequence number. It
    is compared before a commit and never stored.
    """

    rows: int = 0
    first: int = 0
    second: int = 0
    beside: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(
            self.rows + other.rows,
            (self.first + other.first) & MASK,
            (self.second + other.second) & MASK,
            (self.beside + other.beside) & MASK,
        )

    def __str__(self) -> str:
        return self.text("rows-v1")

    def text(self, kind: str) -> str:
        return f"{kind}:{self.rows}:{self.first:016x}{self.second:016x}"

    @classmethod
    def parse(cls, text: str) -> Digest:
        match = re.fullmatch(r"rows-v1:(\d+):([0-9a-f]{16})([0-9a-f]{16})", text, re.ASCII)
        if match is None:
            raise ValueError(f"read row digest {text!r}: expected rows-v1:<rows>:<32 hexadecimal digits>")
        return cls(int(match[1]), int(match[2], 16), int(match[3], 16))


def digest(batch: pa.RecordBatch | pa.Table, leave_out: frozenset[int] = frozenset()) -> Digest:
    """The digest of these rows; fields in `leave_out` do not count."""
    total = Digest()
    for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
        total += add_up(hash_rows(part, leave_out))
    return total


def add_up(hashes: Words, bound: Words | None = None) -> Digest:
    """The digest of the rows with these hashes; `bound` are the results of `bind`."""
    first = second = 0
    for start in range(0, len(hashes), BLOCK):
        part = hashes[start : start + BLOCK]
        first += int(np.add.reduce(part))
        second += int(np.add.reduce(mix(part, AGAIN, TWICE, scratch.of(len(part))[0])))
    beside = 0 if bound is None else int(np.add.reduce(bound))
    return Digest(len(hashes), first & MASK, second & MASK, beside & MASK)


def bind(hashes: Words, beside: pa.RecordBatch) -> Words:
    """A hash for each row, from the row's hash and the values beside it."""
    columns = Columns(beside.num_rows, frozenset())
    for field, column in zip(beside.schema, beside.columns, strict=True):
        columns.add(field, column)
    bound = np.add(columns.sums(), hashes)
    for start in range(0, len(bound), BLOCK):
        part = bound[start : start + BLOCK]
        mix(part, AGAIN, SCATTER, part)
    return bound


def hash_rows(batch: pa.RecordBatch | pa.Table, leave_out: frozenset[int] = frozenset()) -> Words:
    """A hash for each row. Raises Unfit if a column has no field id, or a type that Iceberg does not have."""
    if isinstance(batch, pa.Table):
        parts = [hash_rows(part, leave_out) for part in batch.to_batches()]
        return np.concatenate([np.empty(0, np.uint64), *parts])
    columns = Columns(batch.num_rows, leave_out)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        columns.add(field, column)
    hashes = columns.sums(int(ROW))
    for start in range(0, len(hashes), BLOCK):
        part = hashes[start : start + BLOCK]
        mix(part, SCATTER, MIX, part)
    return hashes


# --- columns ------------------------------------------------------------------------------------------------


class Columns:
    """Sums over columns, for each row. Values common to all rows are kept apart and added once."""

    def __init__(self, rows: int, leave_out: frozenset[int], known: Entries | None = None) -> None:
        self._sums = np.zeros(rows, np.uint64)
        self._every = 0
        self._leave_out = leave_out
        self._known = {} if known is None else known

    def sums(self, more: int = 0) -> Words:
        return np.add(self._sums, np.uint64((self._every + more) & MASK), self._sums)

    def add(self, field: pa.Field, array: pa.Array) -> None:
        """Add a column's values; nulls add nothing."""
        id_ = field_id(field)
        if id_ is None:
            raise Unfit(f"column {field.name} has no field id")
        if id_ in self._leave_out or array.null_count == len(array):
            return
        if isinstance(array, pa.ExtensionArray):
            self.add(field.with_type(field.type.storage_type), array.storage)
        elif not pt.is_dictionary(array.type):
            self._add_values(id_, field, array)
        elif len(array.dictionary) > len(array):
            self.add(field.with_type(field.type.value_type), array.dictionary_decode())
        else:
            self._add_dictionary(field.with_type(field.type.value_type), array)

    def _add_values(self, id_: int, field: pa.Field, array: pa.Array) -> None:
        here = field_keys(id_)[2]
        if _is_constant(array):
            self._every += int(here) + int(self._block(id_, field, array.slice(0, 1))[0])
            return
        for start in range(0, len(array), BLOCK):
            part = array.slice(start, BLOCK)
            hashes = self._block(id_, field, part)
            if array.null_count:
                np.add(hashes, here, hashes)
            self._add_present(start, hashes, part)
        if not array.null_count:
            self._every += int(here)

    def _add_dictionary(self, field: pa.Field, array: pa.Array) -> None:
        """Hash each entry once. Entries may be null themselves; like all nulls they count as 0."""
        entries = self._entries(field, array.dictionary)
        if not len(entries):
            return  # every value is under a null, perhaps only that of a surrounding struct
        if len(entries) == 1 and not array.null_count:
            self._every += int(entries[0])
            return
        indices = array.indices
        places = _fixed(indices, indices.type.to_pandas_dtype())
        for start in range(0, len(array), BLOCK):
            part = places[start : start + BLOCK]
            # An index under a null may be any number; clipping makes it harmless and costs less than checking.
            hashes = np.take(entries, part, out=scratch.of(len(part))[0], mode="clip")
            self._add_present(start, hashes, indices.slice(start, BLOCK))

    def _entries(self, field: pa.Field, dictionary: pa.Array) -> Words:
        where = tuple(None if each is None else each.address for each in dictionary.buffers())
        key = (field_id(field), where, dictionary.offset, len(dictionary))
        if key not in self._known:
            self._known[key] = self._children(len(dictionary), [field], [dictionary])
        return self._known[key]

    def _add_present(self, start: int, hashes: Words, array: pa.Array) -> None:
        """Add a block of hashes, except those of nulls."""
        if array.null_count:
            np.multiply(hashes, _presence(array), hashes)
        sums = self._sums[start : start + len(hashes)]
        np.add(sums, hashes, sums)

    def _block(self, id_: int, field: pa.Field, array: pa.Array) -> Words:
        """Hashes of a block of values, without the part that every present value gets. Undefined under a null."""
        # Use the schema's type: the array's type may have lost the ids of its children.
        kind = field.type
        if pt.is_struct(kind):
            parts = [array.field(place) for place in range(kind.num_fields)]
            return self._children(len(array), children(kind), parts)
        nested = is_list(kind) or pt.is_map(kind)
        words = self._list_words(kind, array) if nested else _plain_words(field, array)
        first, second, _ = field_keys(id_)
        return spread(words, first, second, *scratch.of(len(words)))

    def _list_words(self, kind: pa.DataType, array: pa.Array) -> Words:
        offsets = array.offsets.to_numpy().astype(np.int64)
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        parts = [array.keys, array.items] if pt.is_map(kind) else [array.values]
        entries = self._children(count, children(kind), [part.slice(first, count) for part in parts])
        return _octet_words(entries.view(np.uint8), (offsets - first) * 8)

    def _children(self, rows: int, fields: list[pa.Field], arrays: list[pa.Array]) -> Words:
        """The row sums of these columns alone."""
        inner = Columns(rows, self._leave_out)
        for field, array in zip(fields, arrays, strict=True):
            inner.add(field, array)
        return inner.sums()


def _is_constant(array: pa.Array) -> bool:
    """Whether the array is one repeated integer, date or time, as a partition column is within a file."""
    if array.null_count or len(array) < 2 or not (pt.is_integer(array.type) or pt.is_temporal(array.type)):
        return False
    if array.type.bit_width not in (32, 64):
        return False
    values = _fixed(array, np.dtype(f"i{array.type.bit_width // 8}"))
    return bool(values[0] == values[-1] and (values == values[0]).all())


def _presence(array: pa.Array) -> Octets:
    """One for a value, zero for a null."""
    skipped = array.offset % 8
    bits = np.frombuffer(array.buffers()[0], np.uint8)[array.offset // 8 :]
    return np.unpackbits(bits, count=skipped + len(array), bitorder="little")[skipped:]


# --- values -------------------------------------------------------------------------------------------------


def _plain_words(field: pa.Field, array: pa.Array) -> Words:
    """Each value as one word; undefined under a null."""
    kind = array.type
    if pt.is_integer(kind):
        return _integer_words(_fixed(array, kind.to_pandas_dtype()))
    if pt.is_floating(kind):
        return _float_words(_fixed(array, kind.to_pandas_dtype()))
    if pt.is_date(kind) or pt.is_time(kind) or pt.is_timestamp(kind):
        return _time_words(array)
    if pt.is_string(kind) or pt.is_binary(kind):
        return _octet_words(_octets(array.buffers()[2]), _fixed(array, np.int32, more=1))
    if pt.is_large_string(kind) or pt.is_large_binary(kind):
        return _octet_words(_octets(array.buffers()[2]), _fixed(array, np.int64, more=1))
    if pt.is_fixed_size_binary(kind):
        offsets = np.arange(array.offset, array.offset + len(array) + 1) * kind.byte_width
        return _octet_words(_octets(array.buffers()[1]), offsets)
    if pt.is_boolean(kind):
        return _integer_words(_fixed(array.cast(pa.uint8()), np.uint8))
    if pt.is_decimal(kind) and kind.bit_width <= 128:
        return _decimal_words(array)
    raise Unfit(f"column {field.name} has type {kind}, which has no row digest")


def _fixed(array: pa.Array, kind: Any, per_value: int = 1, more: int = 0) -> NDArray[Any]:
    """The numbers of a fixed-width array, without a copy."""
    size = np.dtype(kind).itemsize * per_value
    count = (len(array) + more) * per_value
    return np.frombuffer(array.buffers()[1], kind, count, array.offset * size)


def _octets(buffer: pa.Buffer | None) -> Octets:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _integer_words(values: NDArray[Any]) -> Words:
    words: Words = values.astype(np.int64, copy=False).view(np.uint64)
    return words


def _float_words(values: NDArray[Any]) -> Words:
    """The bits as a double, folded: most doubles differ only in their upper bits, which a product does not carry down."""
    with np.errstate(invalid="ignore"):
        values = values.astype(np.float64, copy=False)
        words: Words = values.view(np.uint64)
        # The maximum is NaN if any value is, and costs a fraction of checking every value.
        if math.isnan(values.max()):
            words = np.where(np.isnan(values), NAN, words)
    folded: Words = words >> HALF
    np.bitwise_xor(words, folded, folded)
    return folded


def _time_words(array: pa.Array) -> Words:
    """Microseconds; remaining nanoseconds are added on a separate scale."""
    kind = array.type
    values = _fixed(array, np.int32 if kind.bit_width == 32 else np.int64)
    if pt.is_date32(kind):
        return _integer_words(values * np.int64(_DAY))
    unit = "ms" if pt.is_date64(kind) else kind.unit
    if unit == "us":
        return _integer_words(values)
    if unit == "ns":
        whole, rest = np.divmod(values, 1_000)
        return _integer_words(whole) + _integer_words(rest) * BEYOND
    return _integer_words(values * np.int64(_MICROSECONDS[unit]))


def _decimal_words(array: pa.Array) -> Words:
    """The unscaled integer; the part beyond 64 bits is added on a separate scale."""
    width = array.type.bit_width
    if width < 128:
        return _integer_words(_fixed(array, np.dtype(f"i{width // 8}")))
    values = _fixed(array, np.int64, per_value=2)
    low, high = values[::2], values[1::2]
    beyond = low >> 63
    words = _integer_words(np.subtract(high, beyond, beyond))
    np.multiply(words, BEYOND, words)
    np.add(words, low.view(np.uint64), words)
    return words


# --- strings, binaries, and lists as the octets of their elements' hashes ------------------------------------


def _octet_words(data: Octets, offsets: NDArray[Any]) -> Words:
    """One word for each run of bytes between two offsets."""
    sizes = offsets[1:] - offsets[:-1]
    words: Words = sizes.astype(np.uint64)
    np.multiply(words, LENGTH, words)
    _add_runs(words, data, offsets[:-1], sizes)
    return words


def _add_runs(words: Words, data: Octets, starts: NDArray[Any], sizes: NDArray[Any]) -> None:
    """Choose the cheapest method: strings often have one length, apart from nulls and empty ones."""
    start, end = int(starts[0]), int(starts[-1] + sizes[-1])
    size, count = int(sizes.max()), int(np.count_nonzero(sizes))
    equal = size <= _EQUAL and size * count == end - start
    if count and count < len(sizes) and (equal or 2 * count < len(sizes)):
        filled = np.flatnonzero(sizes)
        some = np.zeros(count, np.uint64)
        _add_runs(some, data, starts[filled], sizes[filled])
        words[filled] += some
    elif equal and count:
        _add_equal(words, data[start:end].reshape(-1, size))
    elif count:
        rows = BLOCK // min(max(1, (end - start) // count // 4), _SHORT // 8)
        for first in range(0, len(words), rows):
            part = slice(first, first + rows)
            _add_windows(words[part], data, starts[part].astype(np.int64), sizes[part].astype(np.int64))


def _add_equal(words: Words, strings: Octets) -> None:
    """Strings of one length: the k-th word is at the same place in all of them."""
    out, spare = scratch.of(len(words))
    size = strings.shape[1]
    keys = position_keys(0, -(-size // 8))
    for place in range(0, size, 8):
        _load(strings[:, place : place + 8], out, spare)
        np.add(words, spread(out, SEQUENCE, keys[place // 8], out, spare), words)


def _load(octets: Octets, out: Words, spare: Words) -> None:
    """Up to eight bytes of each row as one word, padded with zeros."""
    size, at = octets.shape[1], 0
    for width in (8, 4, 2, 1):
        if size & width:
            np.copyto(spare if at else out, octets[:, at : at + width].view(f"<u{width}")[:, 0])
            if at:
                np.bitwise_or(out, np.left_shift(spare, np.uint64(8 * at), out=spare), out=out)
            at += width


def _add_windows(words: Words, data: Octets, at: NDArray[np.int64], left: NDArray[np.int64]) -> None:
    """Strings of any length, one window of each at a time; each round keeps the strings that have more bytes."""
    rows: slice | NDArray[np.int64] = slice(None)
    position = 0
    while True:
        longest = int(left.max())
        width = _window_width(longest, left)
        laid_out = _windows(data, at, width)
        laid_out &= _sliding(_ones_then_zeros(width), width)[width - np.minimum(left, width)].view(np.uint64)
        words[rows] += _sequence_sums(laid_out.reshape(len(left), -1), position)
        if longest <= width:
            return
        on = np.flatnonzero(left > width)
        rows = on if isinstance(rows, slice) else rows[on]
        at, left, position = at[on] + width, left[on] - width, position + width // 8


def _window_width(longest: int, left: NDArray[np.int64]) -> int:
    """Whole words that hold most strings to their end: at most half of them are longer than twice the mean."""
    width = longest if longest <= _SHORT else min(longest, max(_SHORT, 2 * int(left.mean())))
    return min(-(-width // 8), BLOCK // len(left)) * 8


@lru_cache(maxsize=8)
def _ones_then_zeros(width: int) -> Octets:
    return np.repeat(np.array([255, 0], np.uint8), width)


def _sequence_sums(laid_out: Words, position: int) -> Words:
    """Sums over the words of each row, of which the first is the string's word at `position`. Overwrites its input."""
    rows, count = laid_out.shape
    keys = position_keys(position, count)
    np.multiply(laid_out, SEQUENCE, laid_out)
    fold(laid_out, scratch.of(rows * count)[1].reshape(rows, count))
    # Multiplying by the keys and adding along short rows is slow, unless it is done as one product.
    sums: Words = np.vecdot(laid_out, keys)
    return sums


def _windows(data: Octets, at: NDArray[np.int64], width: int) -> Words:
    """`width` bytes from each place on, as words; the places ascend. Past the end of the data are zeros."""
    inside = int(np.searchsorted(at, len(data) - width, side="right"))
    pieces = [_sliding(data, width)[at[:inside]]] if inside else []
    if inside < len(at):
        start = int(at[inside])
        rest = np.concatenate([data[start:], np.zeros(width, np.uint8)])
        pieces.append(_sliding(rest, width)[at[inside:] - start])
    return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).view(np.uint64)


def _sliding(data: Octets, width: int) -> NDArray[np.void]:
    """A window at every byte. Numpy copies such a window in about the time it takes to copy one word."""
    return np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))


# Rows weighted at a time, so that they stay in a core's second-level cache.
_BLOCK = 1 << 15
_WEIGHT = 0x9E37_79B9_7F4A_7C15
_WEIGHTS = np.arange(_BLOCK, dtype=np.uint64) * np.uint64(_WEIGHT)


def digest_in_place(
    batch: pa.RecordBatch, place: int, leave_out: frozenset[int] = frozenset(), known: Entries | None = None
) -> Digest:
    """The digest of these rows, the first of which is at `place`: the second sum weights each row by its
    place.

    `known` caches dictionaries from batch to batch; they must stay in memory.

    For values that must keep their positions: decoded columns in a file whose other columns are copied. It
    is faster than the digest of rows, because it needs no hash of each row, and can be compared only with
    digests of its own kind.
    """
    columns = Columns(batch.num_rows, leave_out, known)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        columns.add(field, column)
    sums = columns.sums()
    first = second = 0
    for start in range(0, len(sums), _BLOCK):
        part = sums[start : start + _BLOCK]
        here = int(np.add.reduce(part))
        np.multiply(part, _WEIGHTS[: len(part)], part)
        first += here
        second += int(np.add.reduce(part)) + here * (place + start) * _WEIGHT
    return Digest(len(sums), first & MASK, second & MASK)
