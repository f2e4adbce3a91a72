"""The digest of rows: the same for the same rows however they are held, another for any other rows, and for ever."""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lakewarden.rewrite.digest import Digest, add_up, digest, hash_rows
from lakewarden.rewrite.read.project import Unfit

BLOCK = 32_768  # rows the kernel takes at a time: longer columns meet its seams


def column(name: str, id_: int, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(id_)})


def batch_of(*arrays: pa.Array, first: int = 1) -> pa.RecordBatch:
    """Columns with the ids 1, 2, 3 and so on."""
    fields = [column(f"c{id_}", id_, array.type) for id_, array in enumerate(arrays, first)]
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


def listed(kind: pa.DataType, make: Callable[[pa.Field], pa.DataType] = pa.list_) -> pa.DataType:
    return make(column("element", 50, kind))


def as_map(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """As `pa.array`, which forgets the ids of a map's fields."""
    made = pa.array(values, kind)
    return pa.MapArray.from_arrays(made.offsets, made.keys, made.items, type=kind, mask=made.is_null())


# --- the same hash again, one value at a time, in whole numbers ----------------------------------------------

MASK = (1 << 64) - 1
SCATTER, MIX, START, SEQUENCE, LENGTH, BEYOND, ROW, AGAIN, TWICE = (
    math.isqrt(prime << 128) & MASK | 1 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23)
)


def fold(x: int) -> int:
    return x ^ x >> 32


def spread(x: int, a: int, b: int) -> int:
    return fold(x * a & MASK) * b & MASK


def key(number: int) -> int:
    return fold(spread(number + START & MASK, SCATTER, MIX)) | 1


def slow_rows(batch: pa.RecordBatch, leave_out: frozenset[int] = frozenset()) -> list[int]:
    kept = [(field, batch.column(i)) for i, field in enumerate(batch.schema) if id_of(field) not in leave_out]
    sums = [sum(slow_hash(field, array[row]) for field, array in kept) for row in range(batch.num_rows)]
    return [fold(spread(total + ROW & MASK, SCATTER, MIX)) for total in sums]


def slow_digest(batch: pa.RecordBatch) -> Digest:
    rows = slow_rows(batch)
    second = sum(fold(spread(row, AGAIN, TWICE)) for row in rows)
    return Digest(len(rows), sum(rows) & MASK, second & MASK)


def id_of(field: pa.Field) -> int:
    return int(field.metadata[b"PARQUET:field_id"])


def slow_hash(field: pa.Field, value: pa.Scalar) -> int:
    if not value.is_valid:
        return 0
    if isinstance(value, pa.DictionaryScalar | pa.ExtensionScalar):
        return slow_hash(field.with_type(value.value.type), value.value)
    id_, kind = id_of(field), field.type
    if pt.is_struct(kind):
        inner = sum(slow_hash(kind.field(i), value[i]) for i in range(kind.num_fields))
        return inner + key(4 * id_ + 2) & MASK
    return spread(slow_word(kind, value), key(4 * id_), key(4 * id_ + 1)) + key(4 * id_ + 2) & MASK


def slow_word(kind: pa.DataType, value: pa.Scalar) -> int:
    if pt.is_map(kind):
        pairs = [(entry[0], entry[1]) for entry in value.values]
        hashes = [slow_hash(kind.key_field, k) + slow_hash(kind.item_field, v) & MASK for k, v in pairs]
        return slow_bytes(b"".join(each.to_bytes(8, "little") for each in hashes))
    if pt.is_list(kind) or pt.is_large_list(kind):
        hashes = [slow_hash(kind.value_field, each) for each in value.values]
        return slow_bytes(b"".join(each.to_bytes(8, "little") for each in hashes))
    if pt.is_floating(kind):
        number = float(value.as_py())
        return fold(struct.unpack("<Q", struct.pack("<d", number))[0] if number == number else 0x7FF8 << 48)
    if pt.is_decimal(kind):
        return slow_wide(int(value.as_py().scaleb(kind.scale, Context(prec=50))))
    if pt.is_integer(kind) or pt.is_boolean(kind):
        return int(value.as_py()) & MASK
    return slow_time(value) if pt.is_temporal(kind) else slow_bytes(octets(value))


def octets(value: pa.Scalar) -> bytes:
    content = value.as_py()
    return content.encode() if isinstance(content, str) else bytes(content)


def slow_bytes(content: bytes) -> int:
    words = [int.from_bytes(content[at : at + 8], "little") for at in range(0, len(content), 8)]
    hashes = (spread(word, SEQUENCE, key(4 * k + 3)) for k, word in enumerate(words))
    return sum(hashes) + len(content) * LENGTH & MASK


def slow_wide(number: int) -> int:
    low = (number + (1 << 63) & MASK) - (1 << 63)
    return low + (number - low >> 64) * BEYOND & MASK


def slow_time(value: pa.Scalar) -> int:
    if pt.is_date32(value.type):
        return int(value.value) * 86_400_000_000 & MASK
    unit = "ms" if pt.is_date64(value.type) else value.type.unit
    whole, rest = divmod(int(value.value) * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit], 1000)
    return whole + rest * BEYOND & MASK


# --- rows of every shape -------------------------------------------------------------------------------------

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.one_of(st.text(max_size=6), st.text("ab", min_size=12, max_size=12), st.text("xyz", max_size=90))
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), INT64),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    (pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=40)),
    (pa.large_binary(), st.binary(max_size=40)),
    (pa.binary(16), st.binary(min_size=16, max_size=16)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["", "a", "rather long for a dictionary"])),
]


@st.composite
def kinds(draw: st.DrawFn, ids: Iterator[int], depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type, nested up to three levels deep, and its values, with nulls wherever there may be some."""
    shape = (
        draw(st.sampled_from(["plain", "plain", "struct", "list", "large_list", "map"])) if depth else "plain"
    )
    if shape == "plain":
        return draw(st.sampled_from(PLAIN))
    if shape == "struct":
        inner = draw(st.lists(kinds(ids, depth - 1), min_size=1, max_size=3))
        fields = [column(f"f{i}", next(ids), kind) for i, (kind, _) in enumerate(inner)]
        return pa.struct(fields), st.fixed_dictionaries(
            {field.name: st.none() | values for field, (_, values) in zip(fields, inner, strict=True)}
        )
    kind, values = draw(kinds(ids, depth - 1))
    if shape == "map":
        keys = column("key", next(ids), pa.string()).with_nullable(False)
        pairs = st.tuples(st.text(max_size=3), st.none() | values)
        return pa.map_(keys, column("value", next(ids), kind)), st.lists(pairs, max_size=3)
    make = pa.list_ if shape == "list" else pa.large_list
    return make(column("element", next(ids), kind)), st.lists(st.none() | values, max_size=4)


@st.composite
def batches(draw: st.DrawFn, min_rows: int = 0) -> pa.RecordBatch:
    ids = count(1)
    columns = draw(st.lists(kinds(ids), min_size=1, max_size=4))
    rows = draw(st.integers(min_rows, 8))
    fields, arrays = [], []
    for place, (kind, values) in enumerate(columns):
        content = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        fields.append(column(f"c{place}", next(ids), kind))
        arrays.append(pa.array(content, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@settings(max_examples=100, deadline=None)
@given(batches(), st.data())
def test_the_fast_hash_is_the_slow_one_at_every_level_and_in_every_slice(
    batch: pa.RecordBatch, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, batch.num_rows))
    part = batch.slice(start, data.draw(st.integers(0, batch.num_rows - start)))
    assert hash_rows(part).tolist() == slow_rows(part)
    assert digest(part) == slow_digest(part)


@settings(max_examples=40, deadline=None)
@given(batches(min_rows=2), st.data())
def test_a_slice_is_the_same_rows_built_anew(batch: pa.RecordBatch, data: st.DataObject) -> None:
    start = data.draw(st.integers(1, batch.num_rows))
    part = batch.slice(start)
    anew = [pa.array(array.to_pylist(), array.type) for array in part.columns]
    assert digest(part) == digest(pa.RecordBatch.from_arrays(anew, schema=batch.schema))


@settings(max_examples=40, deadline=None)
@given(batches(), st.data())
def test_neither_order_nor_batches_count(batch: pa.RecordBatch, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(batch.num_rows)))
    cut = data.draw(st.integers(0, batch.num_rows))
    whole = digest(batch)
    rows = [batch.slice(row, 1) for row in order]
    assert digest(pa.Table.from_batches(rows, schema=batch.schema)) == whole
    assert digest(batch.slice(0, cut)) + digest(batch.slice(cut)) == whole
    assert sum(map(digest, rows), Digest()) == whole


# --- other rows, another digest ------------------------------------------------------------------------------

ROWS = st.lists(
    st.tuples(
        st.none() | INT64, st.none() | INT64, st.none() | st.floats(), st.none() | st.text(max_size=20)
    ),
    min_size=2,
    max_size=12,
)
KINDS = (pa.int64(), pa.int64(), pa.float64(), pa.string())


def content(rows: Sequence[Sequence[Any]]) -> Digest:
    return digest(batch_of(*(pa.array([row[i] for row in rows], kind) for i, kind in enumerate(KINDS))))


def same(one: Any, other: Any) -> bool:
    """Whether two values are one, to the bit; NaN is one value."""
    return str(one) == str(other)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.data())
def test_a_lost_row_shows(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, len(rows) - 1))
    left = content(rows[:lost] + rows[lost + 1 :])
    assert left != content(rows)
    assert left.first != content(rows).first


@settings(max_examples=40, deadline=None)
@given(ROWS, st.data())
def test_a_row_in_place_of_another_shows(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    lost, twice = data.draw(st.tuples(*[st.integers(0, len(rows) - 1)] * 2))
    assume(not same(rows[lost], rows[twice]))
    changed = content([*rows[:lost], rows[twice], *rows[lost + 1 :]])
    assert changed.rows == content(rows).rows
    assert changed.first != content(rows).first
    assert changed.second != content(rows).second


@settings(max_examples=60, deadline=None)
@given(ROWS, st.data())
def test_a_changed_value_shows(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    row, place = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 3))
    values = (INT64, INT64, st.floats(), st.text(max_size=20))[place]
    value = data.draw(st.none() | values)
    assume(not same(rows[row][place], value))
    changed = [*rows[row]]
    changed[place] = value
    assert content([*rows[:row], tuple(changed), *rows[row + 1 :]]) != content(rows)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.data())
def test_values_that_changed_rows_show(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    one, other = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, max_size=2, unique=True))
    place = data.draw(st.integers(0, 3))
    rest = [[value for i, value in enumerate(rows[row]) if i != place] for row in (one, other)]
    assume(not same(rows[one][place], rows[other][place]) and not same(*rest))
    swapped = [list(row) for row in rows]
    swapped[one][place], swapped[other][place] = swapped[other][place], swapped[one][place]
    assert content(swapped) != content(rows)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.data())
def test_values_that_changed_columns_show(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    first, second, *rest = rows[row]
    assume(first != second)
    assert content([*rows[:row], (second, first, *rest), *rows[row + 1 :]]) != content(rows)


@pytest.mark.parametrize(
    "values, kind",
    [
        ([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, 100.0, math.inf, -math.inf, math.nan, None], pa.float64()),
        ([0, 1, -1, 2, 256, 2**31, 2**32, -(2**32), 2**62, -(2**63), 2**63 - 1, 86_400_000_000, 1000, None], pa.int64()),
        (["", "\0", "\0\0", "a", "aaaaaaa\x01", "aaaaaaa\x02", "a" * 16, "a" * 17, "A", "1", "0", "01", "10", None], pa.string()),
    ],
)  # fmt: skip
def test_rows_of_few_and_regular_values_are_all_different(values: list[Any], kind: pa.DataType) -> None:
    """Values that differ in a few high or low bits, met with each other in four columns."""
    rows = list(product(values, repeat=4))
    arrays = [pa.array([row[i] for row in rows], kind) for i in range(4)]
    assert len(np.unique(hash_rows(batch_of(*arrays)))) == len(values) ** 4


def test_null_and_nothing_in_it_are_different() -> None:
    numbers, texts = listed(pa.int64()), [None, ""]
    lists = [None, [], [None], [None, None], [0], [0, None], [None, 0], [0, 0]]
    structs = [None, {"a": None}, {"a": 0}]
    for values, kind in (
        (texts, pa.string()),
        (lists, numbers),
        (structs, pa.struct([column("a", 60, pa.int64())])),
        ([None, [None], [structs[1]], [{"a": 0}]], listed(pa.struct([column("a", 60, pa.int64())]))),
        ([[[1], [2]], [[1, 2]], [[], [1, 2]], [[2], [1]], [[1, 2], []]], listed(pa.list_(column("e", 61, pa.int64())))),
    ):  # fmt: skip
        assert len(set(hash_rows(batch_of(pa.array(values, kind))).tolist())) == len(values)


def test_the_order_within_a_list_or_map_counts() -> None:
    kind = pa.map_(column("k", 51, pa.string()).with_nullable(False), column("v", 52, pa.int64()))
    maps = [[("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", 2), ("b", 1)], [("a", 1)], []]
    lists = [[1, 2, 3], [3, 2, 1], [2, 1, 3], [1, 2], []]
    for array in (as_map(maps, kind), pa.array(lists, listed(pa.int64()))):
        assert len(set(hash_rows(batch_of(array)).tolist())) == 5


# --- one value, many representations ------------------------------------------------------------------------

DAY = datetime(2024, 2, 29, 23, 59, 58, 123_000)
NUMBERS = [0, 1, -1, 127, -128, None]
STRINGS = ["", "a", None, "twelve bytes", "ä" * 30, "twelve bytes"]
PAYLOAD_NAN = struct.unpack("<d", (0xFFF8_0000_0000_BEEF).to_bytes(8, "little"))[0]
UUIDS = [uuid.UUID(int=7).bytes, None, uuid.UUID(int=2**127).bytes]


def as_uuid(values: list[bytes | None]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


def in_dictionary(values: Sequence[Any], kind: pa.DataType, index: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, kind).dictionary_encode().cast(pa.dictionary(index or pa.int32(), kind))


ALIKE: dict[str, list[pa.Array]] = {
    "integers": [pa.array(NUMBERS, kind()) for kind in (pa.int8, pa.int16, pa.int32, pa.int64)],
    "floats": [
        pa.array([0.5, -0.0, None, math.inf, float(np.float32(0.1))], kind) for kind in (pa.float32(), pa.float64())
    ],
    "NaN": [
        pa.array([math.nan, None, 1.0], pa.float64()),
        pa.array(np.array([PAYLOAD_NAN, 0, 1.0]), mask=np.array([False, True, False]), from_pandas=False),
        pa.array([-math.nan, None, 1.0], pa.float32()),
    ],
    "decimals": [
        pa.array([Decimal("1.25"), Decimal("-0.01"), None], kind)
        for kind in (pa.decimal128(9, 2), pa.decimal128(38, 2), pa.decimal64(12, 2), pa.decimal32(5, 2))
    ],
    "timestamps": [pa.array([DAY, None], pa.timestamp(unit)) for unit in ("ms", "us", "ns")],
    "whole seconds": [pa.array([datetime(1969, 12, 31, 1)], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")],
    "dates": [pa.array([date(2024, 2, 29), date(1, 1, 1), None], kind) for kind in (pa.date32(), pa.date64())]
    + [pa.array([datetime(2024, 2, 29), datetime(1, 1, 1), None], pa.timestamp("us"))],
    "times": [
        pa.array([DAY.time(), None], kind) for kind in (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    ],
    "strings": [
        pa.array(STRINGS, pa.string()),
        pa.array(STRINGS, pa.large_string()),
        pa.array([None if text is None else text.encode() for text in STRINGS], pa.binary()),
        pa.array([None if text is None else text.encode() for text in STRINGS], pa.large_binary()),
        in_dictionary(STRINGS, pa.string()),
        in_dictionary(STRINGS, pa.string(), pa.int8()),
        in_dictionary(STRINGS, pa.large_string(), pa.int64()),
        # A dictionary may hold a null, an entry twice, entries nobody uses, and more of them than there are rows.
        pa.DictionaryArray.from_arrays(
            pa.array([2, 1, 0, 3, 4, 5], pa.int32()), pa.array([None, "a", "", *STRINGS[3:]])
        ),
        pa.DictionaryArray.from_arrays(
            pa.array([2, 1, None, 3, 4, 5], pa.int32()), pa.array([None, "a", "", *STRINGS[3:], "b", "c", "d"])
        ),
    ],
    "uuids": [as_uuid(UUIDS), pa.array(UUIDS, pa.binary(16)), pa.array(UUIDS, pa.binary())],
    "numbers in a dictionary": [pa.array(NUMBERS, pa.int64()), in_dictionary(NUMBERS, pa.int64())],
    "lists": [
        pa.array([[1, None], [], None, [3]], listed(kind, make))
        for kind, make in product((pa.int32(), pa.int64()), (pa.list_, pa.large_list))
    ],
    "lists of strings": [
        pa.array([["a", None], [], None, ["a"]], listed(kind))
        for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
    ],
    "booleans": [pa.array([True, False, None]), in_dictionary([True, False, None], pa.bool_())],
    "nothing": [pa.nulls(3, kind) for kind in (pa.int64(), pa.string(), pa.null(), listed(pa.int64()))],
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_a_value_is_the_same_however_it_is_held(name: str) -> None:
    alike = [array for one in ALIKE[name] for array in (one, sliced(one), pa.concat_arrays([one]))]
    hashes = [hash_rows(batch_of(array)).tolist() for array in alike]
    assert hashes.count(hashes[0]) == len(hashes)
    assert hashes[0] == slow_rows(batch_of(ALIKE[name][0]))


def sliced(array: pa.Array) -> pa.Array:
    """The same values, five values into a longer array: validity bits then start within a byte."""
    if pt.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(sliced(array.indices), array.dictionary)
    longer = [pa.nulls(3, array.type), array.slice(0, 2), array, array.slice(0, 1)]
    return pa.concat_arrays(longer).slice(5 - max(0, 2 - len(array)), len(array))


def test_finer_times_are_other_times() -> None:
    texts = ["2024-02-29T00:00:00", "2024-02-29T00:00:00.000001", "2024-02-29T00:00:00.000000001"]
    nanoseconds = [int(np.datetime64(text, "ns").astype(np.int64)) for text in texts]
    hashes = hash_rows(batch_of(pa.array(nanoseconds).cast(pa.timestamp("ns"))))
    assert len(set(hashes.tolist())) == 3
    assert hashes.tolist() == slow_rows(batch_of(pa.array(nanoseconds).cast(pa.timestamp("ns"))))


def test_columns_go_by_their_ids() -> None:
    one, two = pa.array([1, 2]), pa.array(["a", None])
    fields = [column("one", 1, one.type), column("two", 2, two.type)]
    as_it_was = pa.RecordBatch.from_arrays([one, two], schema=pa.schema(fields))
    moved = pa.schema(
        [column("zwei", 2, two.type), column("three", 3, pa.float64()), column("eins", 1, one.type)]
    )
    assert digest(pa.RecordBatch.from_arrays([two, pa.nulls(2, pa.float64()), one], schema=moved)) == digest(
        as_it_was
    )
    assert digest(batch_of(two, one)) != digest(as_it_was)


def test_a_field_added_to_a_struct_changes_no_old_row() -> None:
    a, b = column("a", 60, pa.int64()), column("b", 61, pa.string())
    before = pa.array([{"a": 1}, None, {"a": None}], pa.struct([a]))
    after = pa.array([{"b": None, "a": 1}, None, {"b": None, "a": None}], pa.struct([b, a]))
    assert digest(batch_of(before)) == digest(batch_of(after))


def test_left_out_fields_do_not_count_at_any_level() -> None:
    pair = pa.struct([column("a", 60, pa.int64()), column("b", 61, pa.int64())])
    one = batch_of(pa.array([1, 2]), pa.array([{"a": 1, "b": 2}, None], pair))
    other = batch_of(pa.array([3, None]), pa.array([{"a": 1, "b": 5}, None], pair))
    assert digest(one) != digest(other)
    assert digest(one, frozenset({1, 61})) == digest(other, frozenset({1, 61}))
    assert digest(one, frozenset({1})) != digest(other, frozenset({1}))
    top = batch_of(pa.array([1, None]), pa.array(["x", "y"]))
    assert hash_rows(top, frozenset({2})).tolist() == slow_rows(top, frozenset({2}))


# --- what lies under a null ---------------------------------------------------------------------------------


def buffer(values: Sequence[Any], kind: str) -> pa.Buffer:
    return pa.py_buffer(np.array(values, kind))


def hidden() -> Iterator[tuple[pa.Array, pa.Array]]:
    """Arrays with something under a null, and the same without."""
    middle = buffer([0b101], "u1")
    yield pa.Array.from_buffers(pa.int64(), 3, [middle, buffer([1, 77, 3], "i8")]), pa.array([1, None, 3])
    floats = buffer([1, math.nan, 3], "f8")
    yield pa.Array.from_buffers(pa.float64(), 3, [middle, floats]), pa.array([1.0, None, 3.0])
    text = [middle, buffer([0, 1, 4, 5], "i4"), pa.py_buffer(b"axyzb")]
    yield pa.Array.from_buffers(pa.string(), 3, text), pa.array(["a", None, "b"])
    bits = [middle, buffer([0b111], "u1")]
    yield pa.Array.from_buffers(pa.bool_(), 3, bits), pa.array([True, None, True])
    indices = pa.Array.from_buffers(pa.int32(), 3, [middle, buffer([0, -123_456, 1], "i4")])
    entries = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    yield entries, pa.array(["a", None, "b"])
    kind = listed(pa.int64())
    lists = pa.Array.from_buffers(
        kind, 3, [middle, buffer([0, 1, 3, 4], "i4")], children=[pa.array([1, 2, 3, 4])]
    )
    yield lists, pa.array([[1], None, [4]], kind)
    pair = pa.struct([column("a", 60, pa.int64())])
    structs = pa.Array.from_buffers(pair, 3, [middle], children=[pa.array([1, 2, 3])])
    yield structs, pa.array([{"a": 1}, None, {"a": 3}], pair)
    # What Arrow builds itself: under a null struct, an entry of a dictionary that has none.
    yield (
        pa.array([None, {"a": None}], pa.struct([column("a", 60, pa.dictionary(pa.int32(), pa.string()))])),
        pa.array([None, {"a": None}], pa.struct([column("a", 60, pa.string())])),
    )


@pytest.mark.parametrize("dirty, clean", list(hidden()))
def test_what_lies_under_a_null_does_not_count(dirty: pa.Array, clean: pa.Array) -> None:
    assert hash_rows(batch_of(dirty)).tolist() == slow_rows(batch_of(clean))


# --- strings of every length, columns of many rows -----------------------------------------------------------


def exact(texts: Sequence[bytes], offset_kind: str = "i4") -> pa.Array:
    """Binaries whose data end with the buffer, so that a byte read past it would be a stranger's."""
    offsets = np.cumsum([0, *map(len, texts)]).astype(offset_kind)
    kind = pa.binary() if offset_kind == "i4" else pa.large_binary()
    return pa.Array.from_buffers(
        kind, len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    )


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize("size", [*range(1, 26), 36, 63, 64, 65, 255, 256, 257, 1000])
def test_strings_of_one_length(size: int) -> None:
    texts = [noise(size, seed) for seed in range(5)]
    assert hash_rows(batch_of(exact(texts))).tolist() == slow_rows(batch_of(exact(texts)))
    fixed = pa.array([*texts, None], pa.binary(size)).slice(1)
    assert hash_rows(batch_of(fixed)).tolist() == slow_rows(batch_of(fixed))


@pytest.mark.parametrize(
    "sizes",
    [
        range(300),
        range(299, -1, -1),
        [0] * 20 + [5] + [0] * 20,
        [3, 0, 3, 3, 0],
        [7, 0, 0, 0, 9, 0, 0],
        [1, 5000, 2, 70, 0, 64, 65],
        [1_100_000, 1, 3, 0],
        [9, 8 * BLOCK + 9, 16 * BLOCK, 8 * BLOCK - 1],
    ],
    ids=["rising", "falling", "one", "equal", "few", "mixed", "huge", "seams"],
)
def test_strings_of_any_length(sizes: Sequence[int]) -> None:
    texts = [noise(size, seed) for seed, size in enumerate(sizes)]
    assert hash_rows(batch_of(exact(texts))).tolist() == slow_rows(batch_of(exact(texts)))
    assert hash_rows(batch_of(exact(texts, "i8"))).tolist() == slow_rows(batch_of(exact(texts)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=150), max_size=40), st.integers(0, 10))
def test_strings_of_mixed_lengths(texts: list[bytes | None], start: int) -> None:
    array = pa.array(texts, pa.binary()).slice(min(start, len(texts)))
    assert hash_rows(batch_of(array)).tolist() == slow_rows(batch_of(array))


def long_columns(rows: int) -> dict[str, pa.Array]:
    random = np.random.default_rng(7)
    some = random.random(rows) < 0.1
    numbers = random.integers(0, 1000, rows)
    items = pa.array(random.integers(0, 50, 3 * rows))
    starts = pa.array(np.sort(random.integers(0, 3 * rows, rows + 1)).astype(np.int32))
    return {
        "numbers": pa.array(numbers),
        "some numbers": pa.array(numbers, mask=some),
        "nulls at the end": pa.array(numbers, mask=np.arange(rows) > rows - 5),
        "equal strings": pa.array([f"{number:012d}" for number in numbers]),
        "some strings": pa.array([f"{number:012d}" for number in numbers], mask=some),
        "strings": pa.array(["x" * (number % 90) for number in numbers]),
        "dictionary": pa.array([str(number) for number in numbers], mask=some).dictionary_encode(),
        "lists": pa.ListArray.from_arrays(starts, items, type=listed(pa.int64())),
        "structs": pa.StructArray.from_arrays(
            [pa.array(numbers, mask=some)], fields=[column("a", 60, pa.int64())], mask=pa.array(~some)
        ),
    }


@pytest.mark.parametrize("name", long_columns(1))
def test_more_rows_than_are_taken_at_a_time(name: str) -> None:
    array = long_columns(BLOCK + 77)[name].slice(3)
    pieces = [array.slice(start, 1000) for start in range(0, len(array), 1000)]
    assert hash_rows(batch_of(array)).tolist() == [
        each for piece in pieces for each in hash_rows(batch_of(piece)).tolist()
    ]
    for row in (0, BLOCK - 1, BLOCK, len(array) - 1):
        assert hash_rows(batch_of(array))[row] == slow_rows(batch_of(array.slice(row, 1)))[0]


# --- for ever -----------------------------------------------------------------------------------------------


def everything() -> pa.RecordBatch:
    pair = pa.struct([column("a", 60, pa.int32()), column("b", 61, pa.string())])
    table = pa.map_(column("k", 62, pa.string()).with_nullable(False), column("v", 63, pa.float64()))
    return batch_of(
        pa.array([True, False, None]),
        pa.array([1, -1, None], pa.int32()),
        pa.array([2**40, -(2**63), None], pa.int64()),
        pa.array([0.5, math.nan, None], pa.float32()),
        pa.array([0.1, -0.0, None], pa.float64()),
        pa.array(
            [Decimal("-123456789012345678901234567890.12"), Decimal("1.20"), None], pa.decimal128(38, 2)
        ),
        pa.array([date(2024, 2, 29), date(1969, 7, 20), None], pa.date32()),
        pa.array([DAY.time(), DAY.time().replace(hour=0), None], pa.time64("us")),
        pa.array([DAY, datetime(1900, 1, 1), None], pa.timestamp("us")),
        pa.array(["ice", "über alle Berge hinweg", None], pa.string()),
        pa.array([b"", bytes(range(100)), None], pa.binary()),
        as_uuid([uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes, None]),
        in_dictionary(["red", "green", None], pa.string()),
        pa.array([{"a": 1, "b": None}, {"a": None, "b": ""}, None], pair),
        pa.array([[1, None, 2], [], None], listed(pa.int64())),
        as_map([[("x", 1.0), ("y", None)], [], None], table),
    )


def test_the_hash_never_changes() -> None:
    """Digests are kept with snapshots: if this fails, the code is wrong, not these numbers."""
    assert [f"{each:016x}" for each in hash_rows(everything()).tolist()] == [
        "e83be7689abf8b4a",
        "4aca24217260cc27",
        "51fc8a8a3ec4f11a",
    ]
    assert str(digest(everything())) == "rows-v1:3:850296144be5488bd26045e6a5b0fbc2"
    assert f"{hash_rows(batch_of(pa.array([0])))[0]:016x}" == "257e6a3c493f82c8"


def test_the_slow_version_agrees_on_everything() -> None:
    assert hash_rows(everything()).tolist() == slow_rows(everything())
    assert digest(everything()) == slow_digest(everything())


def test_a_digest_as_text() -> None:
    assert str(Digest(3, 1, 2**64 - 1)) == "rows-v1:3:0000000000000001ffffffffffffffff"
    found = digest(everything())
    assert Digest.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", "rows-v1:3", "rows-v2:3:" + "0" * 32, "rows-v1:3:" + "0" * 31, "rows-v1:-1:" + "0" * 32,
             "rows-v1:3:" + "0" * 32 + "\n", "rows-v1:3:" + "G" * 32, "rows-v1:٣:" + "0" * 32],
)  # fmt: skip
def test_what_is_not_a_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected rows-v1"):
        Digest.parse(text)


def test_sums_wrap_around() -> None:
    assert Digest(1, 2**64 - 1, 2) + Digest(2, 2, 2**64 - 1) == Digest(3, 1, 1)


# --- around it ----------------------------------------------------------------------------------------------


def test_hashes_of_some_rows_add_up_to_their_digest() -> None:
    batch = batch_of(pa.array(range(BLOCK + 100)), pa.array(["a", "b"] * (BLOCK // 2 + 50)))
    hashes = hash_rows(batch)
    kept = np.arange(len(hashes)) % 3 != 0
    assert add_up(hashes[kept]) == digest(batch.filter(pa.array(kept)))
    assert add_up(hashes) == digest(batch)
    assert hashes.tolist() == hash_rows(batch).tolist()


def test_rows_without_columns_or_values_are_still_rows() -> None:
    assert digest(batch_of(pa.array([], pa.int64()))) == Digest()
    assert digest(pa.table({})) == Digest()
    three = digest(batch_of(pa.nulls(3, pa.string())))
    assert three.rows == 3
    assert three.first != digest(batch_of(pa.nulls(2, pa.string()))).first


def test_chunks_of_a_table_need_not_line_up() -> None:
    numbers, texts = list(range(10)), [str(number) for number in range(10)]
    chunked = pa.table(
        [
            pa.chunked_array([numbers[:3], numbers[3:]]),
            pa.chunked_array([texts[:7], texts[7:]]).dictionary_encode(),
        ],
        schema=pa.schema(
            [column("n", 1, pa.int64()), column("t", 2, pa.dictionary(pa.int32(), pa.string()))]
        ),
    )
    whole = batch_of(pa.array(numbers), pa.array(texts))
    assert digest(chunked) == digest(whole)
    assert hash_rows(chunked).tolist() == hash_rows(whole).tolist()


def test_a_file_has_the_digest_of_what_was_written(tmp_path: Path) -> None:
    batch = everything()
    path = tmp_path / "rows.parquet"
    plain = pa.schema([field.with_type(stored(field.type)) for field in batch.schema])
    table = pa.Table.from_batches([batch]).cast(plain)
    pq.write_table(table, path, store_schema=False)
    for names in ([], ["c10", "c11", "c13"]):
        read = pq.ParquetFile(path, read_dictionary=names).read()
        assert digest(read) == digest(batch)


def stored(kind: pa.DataType) -> pa.DataType:
    return (
        kind.value_type
        if pt.is_dictionary(kind)
        else kind.storage_type
        if isinstance(kind, pa.UuidType)
        else kind
    )


def test_threads_do_not_meet() -> None:
    batches_ = [batch_of(*long_columns(BLOCK + seed).values()) for seed in range(2)]
    alone = [digest(batch) for batch in batches_]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(digest, batches_ * 4)) == alone * 4


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1], pa.duration("us")),
        pa.array([Decimal(1)], pa.decimal256(50, 0)),
        pa.array([[1, 2]], pa.list_(column("element", 50, pa.int64()), 2)),
        pa.array(["a"], pa.string_view()),
    ],
    ids=str,
)
def test_types_without_a_digest_are_refused(array: pa.Array) -> None:
    with pytest.raises(Unfit, match="column c1 has type"):
        digest(batch_of(array))


def test_a_column_without_an_id_is_refused() -> None:
    with pytest.raises(Unfit, match="column plain has no field id"):
        digest(pa.record_batch({"plain": [1]}))
    with pytest.raises(Unfit, match="has no field id"):
        digest(batch_of(pa.array([[1]])))
