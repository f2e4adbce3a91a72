"""From key columns to an order of rows: against plain Python sorts, against PyIceberg's transforms, and across tasks."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import cmp_to_key
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as iceberg
from pyiceberg.transforms import parse_transform

from lakewarden.rewrite.order import curves
from lakewarden.rewrite.order.order import (
    CurveEdges,
    Edges,
    RowEdges,
    cuts,
    find_edges,
    permutation,
    range_of,
    sample,
)
from lakewarden.rewrite.order.sort_keys import Ordering, SortKey, transformed, unfit_ordering
from lakewarden.rewrite.read.project import Unfit

WIDE = Context(prec=60)


def examples(count: int) -> settings:
    """So many examples, each however slow: the machine may be busy."""
    return settings(max_examples=count, deadline=None)


# --- the types a key may have -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """An Arrow type, its hard values, how to draw others, and what Python compares."""

    type: pa.DataType
    hard: Sequence[Any]
    others: st.SearchStrategy[Any]
    compared: Callable[[Any], Any] = lambda value: value

    @property
    def values(self) -> st.SearchStrategy[Any]:
        """Hard values often, so that they repeat, and order and stability both show."""
        return st.one_of(st.sampled_from(self.hard), self.others)

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The values as Arrow has them. Below nulls there lies some other value, as files may have it."""
        below = [self.hard[place % len(self.hard)] if v is None else v for place, v in enumerate(values)]
        plain = pa.array(below, self.storage)
        if None in values:
            valid = pa.array([value is not None for value in values]).buffers()[1]
            plain = pa.Array.from_buffers(plain.type, len(plain), [valid, *plain.buffers()[1:]])
        if isinstance(self.type, pa.UuidType):
            return pa.ExtensionArray.from_storage(self.type, plain)
        return plain.view(self.type)

    @property
    def storage(self) -> pa.DataType:
        if isinstance(self.type, pa.UuidType):
            return pa.binary(16)
        if pa.types.is_temporal(self.type):
            return pa.int32() if self.type.bit_width == 32 else pa.int64()
        return self.type


def integers(kind: pa.DataType) -> Kind:
    low, high = -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    return Kind(kind, [0, 1, -1, low, high], st.integers(low, high))


def decimals(precision: int, scale: int) -> Kind:
    top = 10**precision - 1
    hard = [0, 1, -1, 127, 128, -128, -129, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, top, -top]
    return Kind(
        pa.decimal128(precision, scale),
        [unscaled_decimal(number, scale) for number in hard if abs(number) <= top],
        st.integers(-top, top).map(lambda number: unscaled_decimal(number, scale)),
    )


def unscaled_decimal(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def floats(kind: pa.DataType) -> Kind:
    hard = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -1.5]
    return Kind(kind, hard, st.floats(width=32 if kind == pa.float32() else 64), float_order)


def float_order(value: float) -> tuple[bool, float, float]:
    """As Iceberg orders them: -0.0 before 0.0, and any NaN last."""
    return (True, 0.0, 0.0) if math.isnan(value) else (False, value, math.copysign(1, value))


def texts(kind: pa.DataType) -> Kind:
    hard = ["", "a", "a\0", "a\0b", "é", "z", "😀", "\uffff", "12345678", "12345678\0", "common-prefix-1"]
    return Kind(kind, hard, st.text(max_size=20), str.encode)


def fixed(width: int) -> Kind:
    hard = [bytes(width), b"\x7f" * width, b"\x80" + bytes(width - 1), bytes(width - 1) + b"\xff"]
    return Kind(pa.binary(width), hard, st.binary(min_size=width, max_size=width))


KINDS = {
    "bool": Kind(pa.bool_(), [False, True], st.booleans()),
    "int": integers(pa.int32()),
    "long": integers(pa.int64()),
    "float": floats(pa.float32()),
    "double": floats(pa.float64()),
    "decimal9": decimals(9, 2),
    "decimal18": decimals(18, 0),
    "decimal38": decimals(38, 10),
    "date": integers(pa.date32()),
    "time": Kind(pa.time64("us"), [0, 1, 86_399_999_999], st.integers(0, 86_399_999_999)),
    "timestamp": integers(pa.timestamp("us")),
    "timestamptz": integers(pa.timestamp("us", "UTC")),
    "timestamp_ns": integers(pa.timestamp("ns")),
    "string": texts(pa.string()),
    "large_string": texts(pa.large_string()),
    "binary": Kind(pa.binary(), [b"", b"a", b"a\0", b"\x7f", b"\x80", b"\xff\0"], st.binary(max_size=20)),
    "fixed3": fixed(3),
    "fixed8": fixed(8),
    "fixed11": fixed(11),
    "uuid": replace(fixed(16), type=pa.uuid()),
}


def field(name: str, id_: int, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(id_)})


def table(**columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    """A table whose columns have the field ids 1, 2, 3 …"""
    fields = [field(name, id_, column.type) for id_, (name, column) in enumerate(columns.items(), start=1)]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def sort(*keys: SortKey | int) -> Ordering:
    return Ordering("sort", tuple(SortKey(key) if isinstance(key, int) else key for key in keys))


def curve(*keys: SortKey | int, kind: str = "zorder") -> Ordering:
    return Ordering(kind, sort(*keys).keys)


# --- a plain Python sort ------------------------------------------------------------------------------------


def compare(one: Any, other: Any, kind: Kind, key: SortKey) -> int:
    if one is None or other is None:
        first = -1 if key.nulls_first else 1
        return ((one is None) - (other is None)) * first
    left, right = kind.compared(one), kind.compared(other)
    return ((left > right) - (left < right)) * (-1 if key.descending else 1)


def compare_rows(
    one: tuple[Any, ...], other: tuple[Any, ...], kinds: Sequence[Kind], keys: Sequence[SortKey]
) -> int:
    results = (compare(a, b, kind, key) for a, b, kind, key in zip(one, other, kinds, keys, strict=True))
    return next((result for result in results if result), 0)


def python_order(rows: list[tuple[Any, ...]], kinds: Sequence[Kind], keys: Sequence[SortKey]) -> list[int]:
    by_row = cmp_to_key(lambda a, b: compare_rows(rows[a], rows[b], kinds, keys))
    return sorted(range(len(rows)), key=by_row)


def chunked(kind: Kind, values: Sequence[Any], cuts_at: Sequence[int], dictionary: bool) -> pa.ChunkedArray:
    """Chunks that are slices of larger arrays; as dictionaries, each has its own."""
    limits = [0, *sorted(cut % (len(values) + 1) for cut in cuts_at), len(values)]
    chunks = []
    for start, end in pairwise(limits):
        padded = [*values[:1], None, None, *values[start:end], None]
        array = kind.array(padded)
        array = array.dictionary_encode() if dictionary else array
        chunks.append(array.slice(len(padded) - 1 - (end - start), end - start))
    return pa.chunked_array(chunks)


def sort_keys(id_: int) -> st.SearchStrategy[SortKey]:
    return st.builds(SortKey, st.just(id_), st.just("identity"), st.booleans(), st.booleans())


@st.composite
def keyed_rows(draw: st.DrawFn, names: Sequence[str]) -> tuple[pa.Table, list[Any], list[Kind], Ordering]:
    kinds = [KINDS[name] for name in names]
    row = st.tuples(*(st.none() | kind.values for kind in kinds))
    rows = draw(st.lists(row, max_size=40))
    columns = {}
    for place, kind in enumerate(kinds):
        values = [row[place] for row in rows]
        dictionary = kind.type in (pa.string(), pa.binary()) and draw(st.booleans())
        at = draw(st.lists(st.integers(0, 40), max_size=2))
        columns[f"column_{place}"] = chunked(kind, values, at, dictionary)
    keys = [draw(sort_keys(place + 1)) for place in range(len(kinds))]
    return table(**columns), rows, kinds, sort(*keys)


@pytest.mark.parametrize("name", KINDS)
@examples(25)
@given(data=st.data())
def test_one_key_of_every_type_orders_as_python_does(name: str, data: st.DataObject) -> None:
    made, rows, kinds, ordering = data.draw(keyed_rows([name]))
    assert permutation(made, ordering).tolist() == python_order(rows, kinds, ordering.keys)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("descending", [False, True])
def test_hard_values_order_as_python_does(name: str, descending: bool) -> None:
    kind, key = KINDS[name], SortKey(1, descending=descending, nulls_first=descending)
    once = [(value,) for value in [*kind.hard, None]]
    by_value = [once[number] for number in python_order(once, [kind], [key])]
    for rows in (by_value[::-1] + by_value, by_value + once + by_value[::-1]):
        made = table(a=kind.array([value for (value,) in rows]))
        assert permutation(made, sort(key)).tolist() == python_order(rows, [kind], [key])


@examples(60)
@given(data=st.data(), names=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=4))
def test_several_keys_order_as_python_does(data: st.DataObject, names: list[str]) -> None:
    made, rows, kinds, ordering = data.draw(keyed_rows(names))
    assert permutation(made, ordering).tolist() == python_order(rows, kinds, ordering.keys)


def test_a_batch_orders_as_its_table_does() -> None:
    made = table(a=pa.array([3, None, 1, 2]))
    assert permutation(made.to_batches()[0], sort(1)).tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("name", KINDS)
def test_no_rows_and_no_chunks(name: str) -> None:
    kind = KINDS[name].type
    for empty in (pa.array([], kind) if name != "uuid" else pa.nulls(0, kind), pa.chunked_array([], kind)):
        made = table(a=empty, b=pa.chunked_array([], pa.int64()))
        for ordering in (sort(1, 2), curve(1, 2)):
            assert permutation(made, ordering).tolist() == []
            edges = find_edges(sample(made, ordering, 0.5, 1), ordering, 4)
            assert range_of(made, ordering, edges).tolist() == []
            assert cuts(made, permutation(made, ordering), ordering, 2) == [0, 0, 0]


@pytest.mark.parametrize("name", KINDS)
def test_nothing_but_nulls_stays_as_it_is(name: str) -> None:
    made = table(a=pa.nulls(5, KINDS[name].type), b=pa.array([5, 4, 3, 2, 1]))
    assert permutation(made, sort(1)).tolist() == [0, 1, 2, 3, 4]
    assert permutation(made, sort(1, 2)).tolist() == [4, 3, 2, 1, 0]
    assert sorted(permutation(made, curve(1, 2)).tolist()) == [0, 1, 2, 3, 4]


def test_a_dictionary_may_hold_a_null_or_a_value_twice() -> None:
    twice = pa.DictionaryArray.from_arrays(pa.array([2, 1, 0, None], pa.int32()), pa.array(["b", "a", "b"]))
    null = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1], pa.int32()), pa.array(["b", None, "a"]))
    short = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array(["b", "a"]))
    assert permutation(table(a=twice), sort(1)).tolist() == [3, 1, 0, 2]
    assert permutation(table(a=null), sort(1)).tolist() == [1, 3, 2, 0]
    assert permutation(table(a=null), sort(SortKey(1, nulls_first=False))).tolist() == [2, 0, 1, 3]
    assert permutation(table(a=short), sort(1)).tolist() == [2, 0, 1]


# --- many rows: words that overflow, and ties left for later bits ---------------------------------------------


def many(count: int, seed: int = 7) -> np.random.Generator:
    return np.random.default_rng([seed, count])


@pytest.mark.parametrize(
    "bits", [(11, 37), (37, 11), (1, 63), (63, 1, 5), (3, 3, 3), (20, 20, 20, 20), (64, 64)]
)
def test_many_rows_order_as_lexsort_does(bits: tuple[int, ...]) -> None:
    random = many(30_000)
    columns = [random.integers(-(2 ** (b - 1)), 2 ** (b - 1) - 1, 30_000, endpoint=True) for b in bits]
    columns = [np.repeat(column[::3], 3)[random.permutation(30_000)] for column in columns]
    made = table(**{f"c{place}": pa.array(column) for place, column in enumerate(columns)})
    expected = np.lexsort(columns[::-1])
    assert (permutation(made, sort(*range(1, len(bits) + 1))) == expected).all()


@pytest.mark.parametrize("distinct", [50, 30_000])
@pytest.mark.parametrize("descending", [False, True])
def test_many_texts_order_as_python_does(distinct: int, descending: bool) -> None:
    """Few values go by way of a dictionary, many by their bytes."""
    random = many(30_000)
    names = [
        f"all-share-this-prefix/{number % 7}/{'x' * (number % 19)}{number}" for number in range(distinct)
    ]
    values = [names[number] for number in random.integers(0, distinct, 30_000)]
    chunks = pa.chunked_array([values[:11_000], values[11_000:]])
    found = permutation(table(a=chunks), sort(SortKey(1, descending=descending)))
    assert found.tolist() == sorted(range(30_000), key=values.__getitem__, reverse=descending)


def test_ordered_rows_stay_where_they_are() -> None:
    values = np.sort(many(20_000).integers(0, 5_000, 20_000))
    assert (permutation(table(a=pa.array(values)), sort(1)) == np.arange(20_000)).all()


def test_memory_is_a_few_words_a_row() -> None:
    count = 400_000
    random = many(count)
    made = table(
        device=pa.array([f"device-{n}" for n in range(500)]).take(pa.array(random.integers(0, 500, count))),
        time=pa.array(random.integers(0, 86_400_000_000, count)).view(pa.timestamp("us")),
        value=pa.array(random.random(count)),
    )
    for ordering, words in ((sort(1, 2), 4), (sort(3, 1), 4), (curve(2, 3), 5.5)):
        tracemalloc.start()
        permutation(made, ordering)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < words * 8 * count


# --- transforms -----------------------------------------------------------------------------------------------

ICEBERG_TYPES: dict[str, iceberg.IcebergType] = {
    "int": iceberg.IntegerType(),
    "long": iceberg.LongType(),
    "decimal9": iceberg.DecimalType(9, 2),
    "decimal18": iceberg.DecimalType(18, 0),
    "decimal38": iceberg.DecimalType(38, 10),
    "date": iceberg.DateType(),
    "time": iceberg.TimeType(),
    "timestamp": iceberg.TimestampType(),
    "timestamptz": iceberg.TimestamptzType(),
    "timestamp_ns": iceberg.TimestampNanoType(),
    "string": iceberg.StringType(),
    "binary": iceberg.BinaryType(),
    "fixed3": iceberg.FixedType(3),
    "uuid": iceberg.UUIDType(),
}
DATES = ("date", "timestamp", "timestamptz", "timestamp_ns")
TRANSFORMS = [
    *(("bucket[16]", name) for name in ICEBERG_TYPES),
    *(("bucket[2147483647]", name) for name in ("long", "string")),
    *((f"truncate[{width}]", name) for name in ("int", "long", "string", "binary") for width in (1, 3, 10)),
    *((f"truncate[{width}]", f"decimal{p}") for p in (9, 18, 38) for width in (1, 7, 2**31 - 1)),
    *((period, name) for period in ("year", "month", "day") for name in DATES),
    *(("hour", name) for name in DATES if name != "date"),
]


@pytest.mark.parametrize(("transform", "name"), TRANSFORMS)
@examples(15)
@given(data=st.data())
def test_transforms_are_those_of_iceberg(transform: str, name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    hard, others = kind.hard, kind.others
    if name in DATES and not transform.startswith("bucket"):
        # Python's own calendar, which PyIceberg uses, ends at the year 9999.
        per_day = {"date": 1, "timestamp_ns": 86_400_000_000_000}.get(name, 86_400_000_000)
        last = min(2_900_000, (2**63 - 1) // per_day)
        hard, others = [0, -1, 1], st.integers(-min(719_000, last) * per_day, last * per_day)
    drawn = [*data.draw(st.lists(st.none() | others, max_size=20)), *hard]
    expected = [parse_transform(transform).transform(ICEBERG_TYPES[name])(value) for value in drawn]
    made = transformed(kind.array([None, *drawn]).slice(1), transform)
    assert multiples(made, transform) == expected


def multiples(array: pa.Array, transform: str) -> list[Any]:
    """Truncated numbers are given as quotients, which have the same order."""
    values = array.to_pylist()
    if (
        not transform.startswith("truncate")
        or pa.types.is_string(array.type)
        or pa.types.is_binary(array.type)
    ):
        return values
    width = int(transform.removeprefix("truncate[").removesuffix("]"))
    if pa.types.is_decimal(array.type):
        scale = array.type.scale
        unscaled = [None if value is None else int(Decimal(value).scaleb(scale, WIDE)) for value in values]
        return [None if value is None else unscaled_decimal(value * width, scale) for value in unscaled]
    return [None if value is None else value * width for value in values]


def test_days_far_apart_are_counted_too() -> None:
    days = pa.array([-800_000, 0, 2_900_000], pa.int32()).view(pa.date32())
    assert transformed(days, "year").to_pylist() == [-2191, 0, 7939]


def test_transforms_order_rows() -> None:
    """Bucket by bucket; within one, by day, latest first; then as the rows came."""
    names = pa.array(["a", "b", None, "a", "c", "b", "a"])
    micros = pa.array([5, 86_400_000_000, 7, -1, 2, 86_400_000_001, 6])
    made = table(name=names.dictionary_encode(), at=micros.view(pa.timestamp("us", "UTC")))
    ordering = sort(SortKey(1, "bucket[4]"), SortKey(2, "days", descending=True, nulls_first=False))
    bucket = parse_transform("bucket[4]").transform(iceberg.StringType())
    expected = sorted(
        range(7),
        key=lambda row: (
            -1 if names[row].as_py() is None else bucket(names[row].as_py()),
            -(micros[row].as_py() // 86_400_000_000),
        ),
    )
    assert permutation(made, ordering).tolist() == expected


def test_void_orders_nothing() -> None:
    made = table(a=pa.array([3, 1, 2]), b=pa.array([[1], [2], None]), c=pa.array([2, 1, 3]))
    assert permutation(made, sort(SortKey(1, "void"), SortKey(2, "void"))).tolist() == [0, 1, 2]
    assert permutation(made, sort(SortKey(2, "void"), 3)).tolist() == [1, 0, 2]


# --- what cannot be ordered -------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        field("a", 1, pa.int64()),
        field("b", 2, pa.list_(pa.int64())),
        field("c", 3, pa.float64()),
        field("d", 4, pa.dictionary(pa.int32(), pa.string())),
        field("e", 5, pa.date32()),
    ]
)


@pytest.mark.parametrize(
    ("ordering", "reason"),
    [
        (sort(9), "field 9 is not a top-level column"),
        (sort(1, 2), "column b: values of type list<element: int64> have no order"),
        (sort(SortKey(3, "bucket[4]")), "column c: transform bucket[4] is not possible on double"),
        (sort(SortKey(3, "truncate[4]")), "column c: transform truncate[4] is not possible on double"),
        (sort(SortKey(4, "day")), "column d: transform day is not possible on string"),
        (sort(SortKey(5, "hour")), "column e: transform hour is not possible on date32[day]"),
        (sort(SortKey(1, "bucket[0]")), "column a: transform bucket[0] is not known"),
        (sort(SortKey(1, "reverse")), "column a: transform reverse is not known"),
        (sort(), "there is no column to sort by"),
        (curve(1), "zorder takes 2 to 4 columns, not 1"),
        (curve(1, 3, 4, 5, 1), "zorder takes 2 to 4 columns, not 5"),
        (Ordering("spiral", sort(1).keys), "order spiral is not known"),
    ],
)
def test_what_cannot_be_ordered_is_told(ordering: Ordering, reason: str) -> None:
    assert (unfit_ordering(ordering, SCHEMA) or "").replace("item: ", "element: ") == reason
    with pytest.raises(Unfit):
        permutation(SCHEMA.empty_table(), ordering)


def test_what_can_be_ordered_is_not_refused() -> None:
    fine = (SortKey(1, "truncate[4]"), SortKey(4, "bucket[4]"), SortKey(5, "months"), SortKey(2, "void"))
    assert unfit_ordering(sort(*fine), SCHEMA) is None
    assert unfit_ordering(curve(1, 3, 4, 5), SCHEMA) is None


# --- many tasks -----------------------------------------------------------------------------------------------


def in_tasks(made: pa.Table, ordering: Ordering, edges: Edges, batches: int) -> list[pa.Table]:
    """The rows of every range in order, as tasks would have them that read a batch each and then a range each."""
    limits = [number * made.num_rows // batches for number in range(batches + 1)]
    read = [made.slice(start, end - start) for start, end in pairwise(limits)]
    numbers = [range_of(batch, ordering, edges) for batch in read]
    count = max((int(part.max()) for part in numbers if len(part)), default=0) + 1
    ranges = []
    for number in range(count):
        pieces = [batch.filter(pa.array(part == number)) for batch, part in zip(read, numbers, strict=True)]
        rows = pa.concat_tables(pieces)
        ranges.append(rows.take(pa.array(permutation(rows, ordering, edges))))
    return ranges


def numbered(made: pa.Table) -> pa.Table:
    return made.append_column(field("row", 99, pa.int64()), pa.array(np.arange(made.num_rows)))


@examples(60)
@given(
    data=st.data(),
    names=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    ranges=st.integers(1, 6),
    batches=st.integers(1, 4),
    share=st.sampled_from([0.3, 1.0]),
)
def test_ranges_in_order_are_the_whole_in_order(
    data: st.DataObject, names: list[str], ranges: int, batches: int, share: float
) -> None:
    made, rows, kinds, ordering = data.draw(keyed_rows(names))
    made = numbered(made)
    edges = pickle.loads(pickle.dumps(find_edges(sample(made, ordering, share, 3), ordering, ranges)))
    parts = in_tasks(made, ordering, edges, batches)
    assert len(parts) <= ranges
    result = [row for part in parts for row in part["row"].to_pylist()]
    assert sorted(result) == list(range(len(rows)))
    for one, other in pairwise(result):
        assert compare_rows(rows[one], rows[other], kinds, ordering.keys) <= 0


@examples(60)
@given(
    data=st.data(),
    names=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=4),
    ranges=st.integers(1, 6),
    batches=st.integers(1, 4),
)
def test_ranges_of_a_curve_are_the_whole_curve(
    data: st.DataObject, names: list[str], ranges: int, batches: int
) -> None:
    made, rows, _, linear = data.draw(keyed_rows(names))
    made, ordering = numbered(made), curve(*linear.keys)
    edges = pickle.loads(pickle.dumps(find_edges(sample(made, ordering, 0.7, 3), ordering, ranges)))
    parts = in_tasks(made, ordering, edges, batches)
    assert len(parts) <= ranges
    result = np.array([row for part in parts for row in part["row"].to_pylist()], dtype=np.int64)
    assert sorted(result.tolist()) == list(range(len(rows)))
    places = curves.places(made, ordering.keys, edges.scales)
    assert (places[result] == np.sort(places)).all()


@pytest.mark.parametrize(("columns", "levels"), [(2, 4), (2, 5), (3, 3), (4, 2)])
def test_the_hilbert_curve_visits_every_cell_and_never_jumps(columns: int, levels: int) -> None:
    cells = np.array(list(product(range(1 << levels), repeat=columns)), dtype=np.uint64)
    places = np.zeros(len(cells), dtype=np.uint64)
    for column, bit in product(range(columns), range(levels)):
        of_column = cells[:, column] >> np.uint64(bit) & np.uint64(1)
        places |= of_column << np.uint64(bit * columns + columns - 1 - column)
    found = curves.of_zorder(places, columns, levels)
    assert sorted(found.tolist()) == list(range(len(cells)))
    along = cells[np.argsort(found)].astype(np.int64)
    assert (np.abs(np.diff(along, axis=0)).sum(axis=1) == 1).all()


def covered(made: pa.Table, ordering: Ordering, parts: int) -> float:
    """The largest share of a column's range that a file covers, on the average of its columns."""
    order = permutation(made, ordering)
    at = cuts(made, order, ordering, parts)
    columns = [made[name].to_numpy() for name in made.column_names]
    widths = [[np.ptp(each[order[a:b]]) / np.ptp(each) for a, b in pairwise(at)] for each in columns]
    return float(np.mean(widths))


def test_files_of_a_hilbert_curve_are_narrower_where_they_are_no_power_of_two() -> None:
    random = many(200_000)
    made = table(x=pa.array(random.random(200_000)), y=pa.array(random.random(200_000)))
    assert covered(made, curve(1, 2, kind="hilbert"), 16) < 0.3
    assert covered(made, curve(1, 2, kind="hilbert"), 11) < covered(made, curve(1, 2), 11)


def events(count: int) -> pa.Table:
    random = many(count)
    # Zipf: the first device alone has an eighth of the rows.
    weights = 1 / np.arange(1, 2_001)
    device = random.choice(2_000, count, p=weights / weights.sum())
    names = pa.array([f"device-{number:04d}" for number in random.permutation(2_000)])
    return table(
        device=pa.DictionaryArray.from_arrays(pa.array(device.astype(np.int32)), names),
        at=pa.array(random.integers(0, 86_400_000_000, count)).view(pa.timestamp("us", "UTC")),
        value=pa.array(random.random(count)),
    )


@pytest.mark.parametrize(
    "ordering",
    [sort(1, 2), sort(SortKey(3, descending=True)), curve(1, 3), curve(1, 2, 3), curve(1, 3, kind="hilbert")],
)
def test_ranges_are_about_equal(ordering: Ordering) -> None:
    made = events(100_000)
    batches = made.to_batches(max_chunksize=10_000)
    samples = pa.concat_tables(sample(batch, ordering, 0.1, seed) for seed, batch in enumerate(batches))
    assert 9_000 < samples.num_rows < 11_000
    assert len(samples.schema) == len(ordering.keys)
    edges = find_edges(samples, ordering, 8)
    rows = np.bincount(np.concatenate([range_of(batch, ordering, edges) for batch in batches]))
    assert len(rows) == 8
    assert rows.min() > 0.7 * 12_500
    assert rows.max() < 1.3 * 12_500
    assert len(pickle.dumps(edges)) < 300_000


def test_a_key_of_most_rows_is_dealt_out_among_its_ranges() -> None:
    """Nine rows of ten are equal: one task would be handed them all."""
    random = many(80_000)
    status = pa.array(["done", "failed", "new"]).take(pa.array(random.choice(3, 80_000, p=[0.9, 0.05, 0.05])))
    made = numbered(table(status=status, other=status))
    for ordering in (sort(1), curve(1, 2)):
        edges = find_edges(sample(made, ordering, 0.1, 1), ordering, 8)
        parts = in_tasks(made, ordering, edges, 3)
        assert max(part.num_rows for part in parts) < 2 * 10_000
        whole = pa.concat_tables(parts)["status"].to_pylist()
        assert whole == sorted(whole)


def test_a_sample_has_every_source_column_once() -> None:
    made = events(1_000)
    samples = sample(made, sort(SortKey(2, "day"), 1, 2), 1.0, 0)
    assert samples.schema.names == ["at", "device"]
    assert samples.schema.field("device").type == pa.string()
    assert samples.schema.field("at").metadata == {b"PARQUET:field_id": b"2"}
    assert samples["device"].to_pylist() == made["device"].to_pylist()
    assert sample(made, sort(1), 0.2, 5).equals(sample(made, sort(1), 0.2, 5))
    assert not sample(made, sort(1), 0.2, 5).equals(sample(made, sort(1), 0.2, 6))


def test_edges_of_another_order_are_refused() -> None:
    made = events(100)
    linear = find_edges(sample(made, sort(1), 1.0, 0), sort(1), 2)
    assert isinstance(linear, RowEdges)
    with pytest.raises(ValueError, match="edges of a sort"):
        permutation(made, curve(1, 2), linear)
    with pytest.raises(ValueError, match="edges of a curve"):
        range_of(made, sort(1), find_edges(sample(made, curve(1, 2), 1.0, 0), curve(1, 2), 2))
    with pytest.raises(ValueError, match="ranges"):
        find_edges(made, sort(1), 0)


# --- cuts -------------------------------------------------------------------------------------------------------


def cut_values(values: Sequence[int], parts: int) -> list[int]:
    made = table(a=pa.array(values, pa.int64()))
    return cuts(made, permutation(made, sort(1)), sort(1), parts)


def test_a_cut_moves_to_a_change_nearby() -> None:
    assert cut_values([1] * 495 + [2] * 505, 2) == [0, 495, 1000]
    assert cut_values([1] * 509 + [2] * 491, 2) == [0, 509, 1000]


def test_a_cut_moves_to_the_nearest_change() -> None:
    assert cut_values([1] * 495 + [2] * 8 + [3] * 497, 2) == [0, 503, 1000]


def test_a_cut_stays_where_no_change_is_near() -> None:
    assert cut_values([1] * 480 + [2] * 520, 2) == [0, 500, 1000]
    assert cut_values([1] * 1000, 4) == [0, 250, 500, 750, 1000]


def test_a_cut_prefers_a_change_of_the_first_key() -> None:
    made = table(a=pa.array([1] * 495 + [2] * 505), b=pa.array(np.arange(1000)))
    assert cuts(made, permutation(made, sort(1, 2)), sort(1, 2), 2) == [0, 495, 1000]


def test_fewer_rows_than_parts() -> None:
    assert cut_values([], 3) == [0, 0, 0, 0]
    assert cut_values([1], 3) == [0, 0, 0, 1]
    assert cut_values([2, 1], 1) == [0, 2]
    assert cut_values([2, 1], 4) == [0, 0, 1, 1, 2]


@examples(60)
@given(st.lists(st.integers(0, 50), max_size=300), st.integers(1, 12))
def test_cuts_make_parts_of_about_equal_rows(values: list[int], parts: int) -> None:
    found = cut_values(values, parts)
    sizes = np.diff(found)
    even = len(values) / parts
    assert len(sizes) == parts
    assert found[0] == 0
    assert found[-1] == len(values)
    assert sizes.min() >= math.floor(even * 0.96) - 1
    assert sizes.max() <= math.ceil(even * 1.04) + 1


# --- z-order ----------------------------------------------------------------------------------------------------


def spread(values: np.ndarray[Any, Any], order: np.ndarray[Any, Any], limits: list[int]) -> float:
    """How much of a column's range a part covers, averaged over the parts."""
    whole = values.max() - values.min()
    pieces = [values[order[start:end]] for start, end in pairwise(limits)]
    return float(np.mean([(piece.max() - piece.min()) / whole for piece in pieces]))


def ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found = np.empty(len(values))
    found[np.argsort(values, kind="stable")] = np.arange(len(values))
    return found


def codes(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Distinct values numbered in their order."""
    return np.unique(column.to_numpy(), return_inverse=True)[1].astype(np.float64)


def test_sixteen_parts_of_a_curve_are_tight_in_both_columns() -> None:
    made = events(1_000_000)
    ordering = curve(1, 3)
    order = permutation(made, ordering)
    limits = cuts(made, order, ordering, 16)
    assert (np.sort(order) == np.arange(1_000_000)).all()
    assert spread(made["value"].to_numpy(), order, limits) < 0.3
    device = made["device"].chunk(0)
    names = np.argsort(np.argsort(device.dictionary.to_numpy(zero_copy_only=False)))
    assert spread(names[device.indices.to_numpy()].astype(np.float64), order, limits) < 0.3
    assert np.diff(limits).min() > 0.8 * 62_500
    assert np.diff(limits).max() < 1.2 * 62_500


def test_tasks_make_tight_parts_too() -> None:
    made = events(200_000)
    ordering = curve(1, 3)
    edges = find_edges(sample(made, ordering, 0.2, 1), ordering, 16)
    numbers = range_of(made, ordering, edges)
    order = np.argsort(numbers, kind="stable")
    limits = [0, *np.cumsum(np.bincount(numbers)).tolist()]
    assert spread(made["value"].to_numpy(), order, limits) < 0.3
    assert spread(codes(made["device"].cast(pa.string())), order, limits) < 0.3


def test_a_skewed_number_is_cut_by_its_rows() -> None:
    random = many(200_000)
    skewed, even = np.exp(random.normal(0, 4, 200_000)), random.random(200_000)
    made = table(a=pa.array(skewed), b=pa.array(even))
    order = permutation(made, curve(1, 2))
    limits = cuts(made, order, curve(1, 2), 16)
    assert spread(ranks(skewed), order, limits) < 0.3
    assert spread(even, order, limits) < 0.3


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_few_values_are_split_first_and_starve_no_other(share: float) -> None:
    random = many(100_000)
    flag, even = random.random(100_000) < share, random.random(100_000)
    made = table(flag=pa.array(flag), even=pa.array(even))
    order = permutation(made, curve(1, 2))
    in_order = flag[order]
    assert (in_order == np.sort(flag)).all()
    assert spread(even, order, cuts(made, order, curve(1, 2), 16)) < 0.3


@pytest.mark.parametrize("nulls_first", [True, False])
@pytest.mark.parametrize("kind", [pa.float64(), pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_nulls_share_their_place_with_no_value(nulls_first: bool, kind: pa.DataType) -> None:
    """Even if the sample saw none."""
    plain = pa.string() if pa.types.is_dictionary(kind) else kind
    column = pa.array(many(5_000).random(5_000)).cast(plain)
    made = table(a=column, b=pa.array(np.arange(5_000)))
    ordering = curve(SortKey(1, nulls_first=nulls_first), 2)
    edges = find_edges(sample(made, ordering, 1.0, 0), ordering, 1)
    assert isinstance(edges, CurveEdges)
    tried = pa.array([None, *column.to_pylist()], plain)
    tried = tried.dictionary_encode() if pa.types.is_dictionary(kind) else tried
    same = pa.array([7] * len(tried))
    places = curves.places(table(a=tried, b=same), ordering.keys, edges.scales)
    assert places[0] < places[1:].min() if nulls_first else places[0] > places[1:].max()


def test_the_first_column_counts_most() -> None:
    """Four corners: those of the first column's lower half come first."""
    made = table(a=pa.array([1, 1, 0, 0]), b=pa.array([1, 0, 1, 0]))
    assert permutation(made, curve(1, 2)).tolist() == [3, 2, 1, 0]
    assert permutation(made, curve(2, 1)).tolist() == [3, 1, 2, 0]
    turned = curve(SortKey(1, descending=True), 2)
    assert permutation(made, turned).tolist() == [1, 0, 3, 2]


def test_equal_places_keep_their_order() -> None:
    made = table(a=pa.array([1, 0] * 500), b=pa.array(["x"] * 1000))
    assert permutation(made, curve(1, 2)).tolist() == [*range(1, 1000, 2), *range(0, 1000, 2)]


def test_long_texts_do_not_travel() -> None:
    made = table(a=pa.array([f"{n:06d}" + "x" * 2_000 for n in range(3_000)]), b=pa.array(range(3_000)))
    edges = find_edges(sample(made, curve(1, 2), 1.0, 0), curve(1, 2), 4)
    assert len(pickle.dumps(edges)) < 2_000_000
    assert (np.diff(permutation(made, curve(1, 2), edges).astype(int)) == 1).all()
