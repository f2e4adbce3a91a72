"""The bin-pack kernel: every row, value, type and id comes out as it went in, or nothing comes out."""

from __future__ import annotations

import json
import math
import pickle
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.read.project import Unfit, children
from lakewarden.rewrite.read.sources import RowsDiffer, Slice
from lakewarden.rewrite.read.store import MissingSource
from lakewarden.rewrite.task import RewriteTask, TaskResult
from lakewarden.rewrite.write.encoding import WriteOptions

OPTIONS = WriteOptions.from_properties({})
NO_DEFAULTS = json.dumps({"type": "struct", "fields": []})


def column(name: str, id_: int, kind: pa.DataType, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={"PARQUET:field_id": str(id_)})


def write(path: Path, schema: pa.Schema, rows: Sequence[Any], **settings: Any) -> Slice:
    """A source file as Iceberg's own writer would shape it, and the slice that is all of it."""
    names = schema.names
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    assert table.column_names == names
    pq.write_table(table, path, store_schema=False, store_decimal_as_integer=True, **settings)
    return whole(path)


def whole(path: Path) -> Slice:
    rows = pq.read_metadata(path).num_rows
    return Slice(str(path), path.stat().st_size, rows, 0, rows, 1, None)


def task(output: Path, slices: Sequence[Slice], schema: pa.Schema, **more: Any) -> RewriteTask:
    settings: dict[str, Any] = {"options": OPTIONS, "iceberg_schema_json": NO_DEFAULTS} | more
    return RewriteTask((str(output),), tuple(slices), schema.serialize().to_pybytes(), **settings)


def rows_of(path: Path | str) -> list[tuple[Any, ...]]:
    table = pq.read_table(path)
    return list(zip(*(table.column(i).to_pylist() for i in range(table.num_columns)), strict=True))


def shape(path: Path) -> list[tuple[str, str, str]]:
    """Name, physical and logical type of each Parquet column."""
    schema = pq.ParquetFile(path).schema
    found = [schema.column(i) for i in range(len(schema))]
    return [(c.path, c.physical_type, str(c.logical_type)) for c in found]


def described(fields: Iterable[pa.Field]) -> list[Any]:
    """Names, types, nullability and ids at every level."""
    return [
        (f.name, f.type, f.nullable, f.metadata[b"PARQUET:field_id"], described(children(f.type)))
        for f in fields
    ]


EVENTS = pa.schema([column("id", 1, pa.int64(), required=True), column("name", 2, pa.string())])


def events(tmp_path: Path, files: int = 3, rows: int = 10) -> list[Slice]:
    return [
        write(tmp_path / f"in-{n}.parquet", EVENTS, [(n * rows + i, f"name-{i % 3}") for i in range(rows)])
        for n in range(files)
    ]


def test_rows_keep_their_order_over_files(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "down" / "out.parquet"
    done = rewrite(task(out, events(tmp_path), EVENTS))
    assert rows_of(out) == [(n, f"name-{n % 10 % 3}") for n in range(30)]
    (file,) = done.files
    assert (file.rows, file.size) == (30, out.stat().st_size)
    assert file.split_offsets == (4,)


def test_task_and_result_travel_by_pickle(tmp_path: Path) -> None:
    work = task(tmp_path / "out.parquet", events(tmp_path), EVENTS)
    assert pickle.loads(pickle.dumps(work)) == work
    done = rewrite(work)
    assert pickle.loads(pickle.dumps(done)) == done
    assert isinstance(done, TaskResult)


@pytest.mark.parametrize("error", [Unfit("why", "p"), MissingSource("p", "why"), RowsDiffer("p", 1, 2)])
def test_errors_travel_by_pickle(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def every_type() -> pa.Schema:
    point = pa.struct(
        [
            column("x", 31, pa.int32(), required=True),
            column("tags", 32, pa.list_(column("element", 33, pa.string()))),
        ]
    )
    return pa.schema(
        [
            column("flag", 1, pa.bool_()),
            column("int", 2, pa.int32()),
            column("long", 3, pa.int64(), required=True),
            column("float", 4, pa.float32()),
            column("double", 5, pa.float64()),
            column("date", 6, pa.date32()),
            column("time", 7, pa.time64("us")),
            column("ts", 8, pa.timestamp("us")),
            column("tz", 9, pa.timestamp("us", "UTC")),
            column("ns", 10, pa.timestamp("ns")),
            column("string", 11, pa.string()),
            column("binary", 12, pa.binary()),
            column("fixed", 13, pa.binary(3)),
            column("uuid", 14, pa.uuid()),
            column("d9", 15, pa.decimal128(9, 2)),
            column("d18", 16, pa.decimal128(18, 4)),
            column("d38", 17, pa.decimal128(38, 10)),
            column("list", 18, pa.list_(column("element", 34, pa.int32()))),
            column(
                "map", 19, pa.map_(column("key", 35, pa.string(), required=True), column("value", 36, point))
            ),
            column("struct", 20, point_with_ids(40)),
        ]
    )


def point_with_ids(first: int) -> pa.DataType:
    inner = pa.struct([column("q", first + 3, pa.int64(), required=True)])
    return pa.struct(
        [
            column("x", first, pa.int32(), required=True),
            column("y", first + 1, pa.list_(column("element", first + 2, inner))),
        ]
    )


EVERY_VALUE = (
    True,
    -7,
    2**62,
    1.5,
    -0.1,
    date(1969, 12, 31),
    time(23, 59, 59, 999999),
    datetime(1900, 1, 1, 0, 0, 0, 1),
    datetime(2262, 1, 1, tzinfo=UTC),
    1_700_000_000_123_456_789,
    "grüße",
    b"\x00\xff",
    b"abc",
    uuid.UUID("12345678-1234-4234-a234-123456789abc").bytes,
    Decimal("1234567.89"),
    Decimal("-12345678901234.5678"),
    Decimal("1234567890123456789012345678.0123456789"),
    [1, None, 3],
    [("k", {"x": 1, "tags": ["a", None]}), ("l", None)],
    {"x": 5, "y": [{"q": 1}, None]},
)
NO_VALUE = tuple(9 if name == "long" else None for name in every_type().names)
EMPTY: tuple[Any, ...] = (*NO_VALUE[:-3], [], [], {"x": 0, "y": []})


@pytest.mark.parametrize("encodings", ["modern", "classic"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_every_type_comes_out_as_it_went_in(tmp_path: Path, encodings: str, dictionary: bool) -> None:
    rows = [EVERY_VALUE, NO_VALUE, EMPTY] * 40
    slices = [
        write(tmp_path / f"{n}.parquet", every_type(), rows, use_dictionary=dictionary) for n in range(2)
    ]
    out = tmp_path / "out.parquet"
    rewrite(task(out, slices, every_type(), options=replace(OPTIONS, encodings=encodings)))
    assert pq.read_table(out).equals(pa.concat_tables([pq.read_table(piece.path) for piece in slices]))
    assert described(pq.read_schema(out)) == described(every_type())
    assert shape(out) == shape(tmp_path / "0.parquet")


def test_parquet_types_are_icebergs(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    rewrite(task(out, [write(tmp_path / "in.parquet", every_type(), [EVERY_VALUE])], every_type()))
    physical = {path: kind for path, kind, _ in shape(out)}
    logical = {path: text for path, _, text in shape(out)}
    assert (physical["d9"], physical["d18"], physical["d38"]) == ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY")
    assert logical["uuid"] == "UUID"
    assert "isAdjustedToUTC=true" in logical["tz"]
    assert "isAdjustedToUTC=false" in logical["ts"]


def test_large_arrow_types_of_the_table_schema_are_taken(tmp_path: Path) -> None:
    large = pa.schema([EVENTS.field(0), column("name", 2, pa.large_string())])
    out = tmp_path / "out.parquet"
    rewrite(task(out, events(tmp_path), large))
    assert len(rows_of(out)) == 30


def test_a_source_that_stores_arrows_own_schema(tmp_path: Path) -> None:
    kinds = [pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string()]
    slices = []
    for n, kind in enumerate(kinds):
        path = tmp_path / f"{n}.parquet"
        schema = pa.schema([EVENTS.field(0), column("name", 2, kind)])
        names = pa.array(["a", None, "a"] * 50).cast(kind)
        pq.write_table(pa.Table.from_arrays([pa.arange(0, 150), names], schema=schema), path)
        slices.append(whole(path))
    out = tmp_path / "out.parquet"
    rewrite(task(out, slices, EVENTS))
    assert [name for _, name in rows_of(out)] == ["a", None, "a"] * 150


def test_nan_and_negative_zero_survive(tmp_path: Path) -> None:
    schema = pa.schema([column("f", 1, pa.float32()), column("d", 2, pa.float64())])
    source = write(tmp_path / "in.parquet", schema, [(math.nan, -0.0), (-0.0, math.nan), (None, None)])
    out = tmp_path / "out.parquet"
    rewrite(task(out, [source], schema))
    (f0, d0), (f1, d1), last = rows_of(out)
    assert math.isnan(f0) and math.isnan(d1) and last == (None, None)
    assert math.copysign(1, d0) == math.copysign(1, f1) == -1


# --- schema evolution ---------------------------------------------------------------------------------------


def test_columns_follow_their_ids(tmp_path: Path) -> None:
    old = pa.schema(
        [column("gone", 1, pa.string()), column("b", 2, pa.int64()), column("was", 3, pa.string())]
    )
    new = pa.schema(
        [column("now", 3, pa.string()), column("gone", 4, pa.string()), column("b", 2, pa.int64())]
    )
    slices = [
        write(tmp_path / "old.parquet", old, [("lost", 1, "x"), ("lost", 2, "y")] * 20),
        write(tmp_path / "new.parquet", new, [("z", "fresh", 3)]),
    ]
    out = tmp_path / "out.parquet"
    rewrite(task(out, slices, new))
    assert rows_of(out) == [("x", None, 1), ("y", None, 2)] * 20 + [("z", "fresh", 3)]


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (pa.int32(), pa.int64(), -(2**31)),
        (pa.int16(), pa.int32(), -5),
        (pa.float32(), pa.float64(), 0.5),
        (pa.decimal128(5, 2), pa.decimal128(20, 2), Decimal("123.45")),
        (pa.timestamp("ms"), pa.timestamp("us"), datetime(2024, 1, 2, 3, 4, 5, 6000)),
    ],
)
def test_promotions_are_exact(tmp_path: Path, old: pa.DataType, new: pa.DataType, value: Any) -> None:
    source = write(tmp_path / "in.parquet", pa.schema([column("v", 1, old)]), [(value,), (None,)])
    out = tmp_path / "out.parquet"
    rewrite(task(out, [source], pa.schema([column("v", 1, new)])))
    assert rows_of(out) == [(value,), (None,)]
    assert pq.read_schema(out).field("v").type == new


def test_a_struct_whose_fields_moved(tmp_path: Path) -> None:
    def wrap(*fields: pa.Field) -> pa.Schema:
        struct = pa.struct(fields)
        return pa.schema(
            [
                column("s", 1, struct),
                column("l", 2, pa.list_(column("element", 3, struct))),
                column(
                    "m", 4, pa.map_(column("key", 5, pa.int32(), required=True), column("value", 6, struct))
                ),
            ]
        )

    old = wrap(column("a", 7, pa.int32()), column("b", 8, pa.string()))
    new = wrap(column("bee", 8, pa.string()), column("a", 7, pa.int64()), column("c", 9, pa.float64()))
    before, after = {"a": 1, "b": "x"}, {"bee": "x", "a": 1, "c": None}
    rows = [
        (before, [before, None], [(1, before), (2, None)]),
        (None, None, None),
        (before, [], []),
        (None, [before], None),
    ]
    source = write(tmp_path / "in.parquet", old, rows * 5)
    out = tmp_path / "out.parquet"
    middle = replace(source, from_row=1, to_row=19)
    rewrite(task(out, [middle], new))
    wanted = [
        (after, [after, None], [(1, after), (2, None)]),
        (None, None, None),
        (after, [], []),
        (None, [after], None),
    ]
    assert rows_of(out) == (wanted * 5)[1:19]


@pytest.mark.parametrize(
    ("file", "table", "why"),
    [
        ([pa.field("v", pa.int64())], [column("v", 1, pa.int64())], "no field id"),
        ([column("v", 1, pa.int64())], [column("v", 1, pa.int32())], "int64 in the file and int32"),
        ([column("v", 1, pa.timestamp("ns"))], [column("v", 1, pa.timestamp("us"))], "timestamp"),
        ([column("v", 1, pa.timestamp("us"))], [column("v", 1, pa.timestamp("us", "UTC"))], "timestamp"),
        ([column("v", 1, pa.binary())], [column("v", 1, pa.string())], "binary in the file"),
        ([column("v", 1, pa.decimal128(5, 2))], [column("v", 1, pa.decimal128(9, 3))], "decimal"),
        ([column("v", 1, pa.uint32())], [column("v", 1, pa.int64())], "uint32"),
        ([column("w", 2, pa.int32())], [column("v", 1, pa.int64(), required=True)], "required but missing"),
        ([column("v", 1, pa.int32())], [column("v", 1, pa.null())], "type null"),
        ([column("v", 1, pa.int32())], [column("v", 1, pa.struct([column("a", 2, pa.int32())]))], "struct"),
        (
            [column("v", 1, pa.struct([column("b", 3, pa.int32())]))],
            [column("v", 1, pa.struct([column("a", 2, pa.int32())]))],
            "shares no field",
        ),
        (
            [column("v", 1, pa.list_(pa.field("element", pa.int32())))],
            [column("v", 1, pa.list_(column("element", 2, pa.int32())))],
            "no field id",
        ),
    ],
)
def test_unfit_schemas_are_named_and_leave_nothing(
    tmp_path: Path, file: list[pa.Field], table: list[pa.Field], why: str
) -> None:
    source = write(tmp_path / "in.parquet", pa.schema(file), [(None,)])
    out = tmp_path / "out.parquet"
    with pytest.raises(Unfit, match=why):
        rewrite(task(out, [source], pa.schema(table)))
    assert not out.exists()


def test_a_missing_column_with_a_default_is_unfit(tmp_path: Path) -> None:
    table = pa.schema([*EVENTS, column("kind", 3, pa.string())])
    fields = [{"id": 3, "name": "kind", "required": False, "type": "string", "initial-default": "web"}]
    text = json.dumps({"type": "struct", "fields": fields})
    slices = events(tmp_path)
    with pytest.raises(Unfit, match="does not mean null") as caught:
        rewrite(task(tmp_path / "out.parquet", slices, table, iceberg_schema_json=text))
    assert caught.value.path == slices[0].path


def test_nulls_under_a_required_column_are_unfit(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", pa.schema([column("v", 1, pa.int32())]), [(1,), (None,)])
    out = tmp_path / "out.parquet"
    with pytest.raises(Unfit, match="holds nulls"):
        rewrite(task(out, [source], pa.schema([column("v", 1, pa.int32(), required=True)])))
    assert not out.exists()


def test_int96_is_unfit(tmp_path: Path) -> None:
    schema = pa.schema([column("v", 1, pa.timestamp("ns"))])
    source = write(tmp_path / "in.parquet", schema, [(1,)], use_deprecated_int96_timestamps=True)
    with pytest.raises(Unfit, match="INT96"):
        rewrite(task(tmp_path / "out.parquet", [source], schema))


# --- row lineage --------------------------------------------------------------------------------------------

LINEAGE = [
    column("_row_id", 2147483540, pa.int64()),
    column("_last_updated_sequence_number", 2147483539, pa.int64()),
]


def test_row_ids_follow_from_file_and_position(tmp_path: Path) -> None:
    first, second, third = events(tmp_path)
    slices = [
        replace(first, first_row_id=1000, data_sequence_number=7, from_row=8),
        replace(second, first_row_id=2000, data_sequence_number=8, to_row=2),
        replace(third, to_row=1),
    ]
    out = tmp_path / "out.parquet"
    rewrite(task(out, slices, EVENTS, row_lineage=True))
    assert [row[2:] for row in rows_of(out)] == [(1008, 7), (1009, 7), (2000, 8), (2001, 8), (None, 1)]
    assert [field.metadata for field in pq.read_schema(out)][2:] == [field.metadata for field in LINEAGE]


def test_row_ids_a_file_states_win(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.parquet", pa.schema([*EVENTS, *LINEAGE]), [(1, "a", 55, 3), (2, "b", None, None)]
    )
    out = tmp_path / "out.parquet"
    rewrite(task(out, [replace(source, first_row_id=100, data_sequence_number=9)], EVENTS, row_lineage=True))
    assert rows_of(out) == [(1, "a", 55, 3), (2, "b", 101, 9)]


def test_without_lineage_the_files_own_columns_are_left_out(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", pa.schema([*EVENTS, *LINEAGE]), [(1, "a", 55, 3)])
    out = tmp_path / "out.parquet"
    rewrite(task(out, [source], EVENTS))
    assert rows_of(out) == [(1, "a")]


# --- slices, row groups, memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (99, 100), (25, 75), (30, 31), (20, 60)])
def test_slices_over_row_groups(tmp_path: Path, start: int, end: int) -> None:
    source = write(tmp_path / "in.parquet", EVENTS, [(n, f"n{n % 4}") for n in range(100)], row_group_size=20)
    out = tmp_path / "out.parquet"
    rewrite(task(out, [replace(source, from_row=start, to_row=end)], EVENTS))
    assert rows_of(out) == [(n, f"n{n % 4}") for n in range(start, end)]


def test_many_files_become_one_row_group(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    rewrite(task(out, events(tmp_path, files=20), EVENTS))
    assert pq.read_metadata(out).num_row_groups == 1


def test_row_groups_are_cut_by_size_and_are_even(tmp_path: Path) -> None:
    slices = events(tmp_path, files=4, rows=2500)
    size = sum(piece.size for piece in slices)
    out = tmp_path / "out.parquet"
    done = rewrite(task(out, slices, EVENTS, options=replace(OPTIONS, row_group_bytes=size // 3)))
    footer = pq.read_metadata(out)
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [2500] * 4
    offsets = done.files[0].split_offsets
    assert len(offsets) == 4 and list(offsets) == sorted(set(offsets))
    assert len(rows_of(out)) == 10_000


def test_a_row_group_may_be_one_row(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    rewrite(
        task(out, events(tmp_path, files=1, rows=3000), EVENTS, options=replace(OPTIONS, row_group_bytes=1))
    )
    assert pq.read_metadata(out).num_row_groups == 3000


def test_memory_cuts_row_groups_too(tmp_path: Path) -> None:
    schema = pa.schema([column("v", 1, pa.string())])
    # Each value repeats, so the file is tiny; decoded it is 20 MB.
    source = write(
        tmp_path / "in.parquet", schema, [(f"{n % 7:010000d}",) for n in range(2000)], use_dictionary=False
    )
    out = tmp_path / "out.parquet"
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    rewrite(task(out, [source], schema, memory_budget=4 << 20))
    footer = pq.read_metadata(out)
    assert footer.num_rows == 2000
    assert footer.num_row_groups >= 6
    assert pa.default_memory_pool().max_memory() <= max(peak, before + (24 << 20))


def test_a_row_larger_than_the_budget_still_passes(tmp_path: Path) -> None:
    schema = pa.schema([column("v", 1, pa.binary())])
    source = write(tmp_path / "in.parquet", schema, [(b"x" * 100_000,)] * 5)
    rewrite(task(tmp_path / "out.parquet", [source], schema, memory_budget=1000))
    assert len(rows_of(tmp_path / "out.parquet")) == 5


# --- failure ------------------------------------------------------------------------------------------------


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    slices = events(tmp_path)
    Path(slices[1].path).unlink()
    out = tmp_path / "out.parquet"
    with pytest.raises(MissingSource) as caught:
        rewrite(task(out, slices, EVENTS))
    assert caught.value.path == slices[1].path
    assert not out.exists()


def test_a_source_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    slices = events(tmp_path)
    Path(slices[2].path).write_bytes(b"not parquet at all")
    with pytest.raises(MissingSource) as caught:
        rewrite(task(tmp_path / "out.parquet", slices, EVENTS))
    assert caught.value.path == slices[2].path


def damage(path: str) -> None:
    """Spoil the first data page and leave the footer readable."""
    data = bytearray(Path(path).read_bytes())
    data[4:60] = b"\xff" * 56
    Path(path).write_bytes(bytes(data))


def test_a_source_damaged_inside_leaves_no_output(tmp_path: Path) -> None:
    slices = events(tmp_path)
    damage(slices[2].path)
    out = tmp_path / "out.parquet"
    with pytest.raises(MissingSource) as caught:
        # One row a group, so that rows are on disk already when the damage is met.
        rewrite(task(out, slices, EVENTS, options=replace(OPTIONS, row_group_bytes=1)))
    assert caught.value.path == slices[2].path
    assert not out.exists()


def test_a_source_with_other_rows_than_the_table_says(tmp_path: Path) -> None:
    slices = events(tmp_path)
    slices[1] = replace(slices[1], rows=11, to_row=11)
    with pytest.raises(RowsDiffer, match="expected 11 rows, found 10"):
        rewrite(task(tmp_path / "out.parquet", slices, EVENTS))
    assert not (tmp_path / "out.parquet").exists()


def test_a_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    done = rewrite(task(tmp_path / "out.parquet", [], EVENTS))
    assert done.files == () and not (tmp_path / "out.parquet").exists()


def test_an_earlier_attempts_leftover_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_bytes(b"half a file" * 1000)
    rewrite(task(out, events(tmp_path), EVENTS))
    assert len(rows_of(out)) == 30


# --- what the file looks like -------------------------------------------------------------------------------


def encodings_of(path: Path) -> dict[str, tuple[str, ...]]:
    group = pq.read_metadata(path).row_group(0)
    return {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}


@pytest.fixture
def telemetry(tmp_path: Path) -> Callable[[str], Path]:
    schema = pa.schema(
        [column("n", 1, pa.int64()), column("v", 2, pa.float64()), column("s", 3, pa.string())]
    )
    slices = []
    for n in range(3):
        rows = [(i, i / 7, f"s{i % 5}") for i in range(3000 * n, 3000 * n + 3000)]
        slices.append(write(tmp_path / f"{n}.parquet", schema, rows, use_dictionary=["s"]))

    def run(encodings: str) -> Path:
        out = tmp_path / f"{encodings}.parquet"
        rewrite(task(out, slices, schema, options=replace(OPTIONS, encodings=encodings)))
        return out

    return run


def test_modern_encodings(telemetry: Callable[[str], Path]) -> None:
    found = encodings_of(telemetry("modern"))
    assert "DELTA_BINARY_PACKED" in found["n"]
    assert "BYTE_STREAM_SPLIT" in found["v"]
    assert "RLE_DICTIONARY" in found["s"]


def test_classic_encodings(telemetry: Callable[[str], Path]) -> None:
    found = encodings_of(telemetry("classic"))
    assert set(found["n"]) == set(found["v"]) == {"PLAIN", "RLE"}
    assert "RLE_DICTIONARY" in found["s"]


def test_auto_writes_no_encoding_that_the_sources_do_not_have(telemetry: Callable[[str], Path]) -> None:
    """Of whatever format version: Spark 3.5 with Iceberg 1.10 cannot read the newer ones."""
    found = encodings_of(telemetry("auto"))
    assert set(found["n"]) == set(found["v"]) == {"PLAIN", "RLE"}


@pytest.mark.parametrize("copy_pages", [True, False])
def test_auto_keeps_an_encoding_that_every_source_has(tmp_path: Path, copy_pages: bool) -> None:
    schema = pa.schema([column("n", 1, pa.int64()), column("v", 2, pa.float64()), column("m", 3, pa.int64())])
    rows = [(i, i / 7, i) for i in range(30_000)]
    newer = {"n": "DELTA_BINARY_PACKED", "v": "BYTE_STREAM_SPLIT"}
    slices = [
        write(tmp_path / "0.parquet", schema, rows, use_dictionary=False, column_encoding=newer),
        write(tmp_path / "1.parquet", schema, rows, use_dictionary=False, column_encoding={"n": newer["n"]}),
    ]
    out = tmp_path / "out.parquet"
    rewrite(task(out, slices, schema, options=replace(OPTIONS, encodings="auto"), copy_pages=copy_pages))
    found = encodings_of(out)
    assert "DELTA_BINARY_PACKED" in found["n"]
    assert set(found["v"]) == set(found["m"]) == {"PLAIN", "RLE"}, "one of two files is no agreement"


def test_auto_looks_at_every_source(tmp_path: Path) -> None:
    """Of many row groups only some are looked at for dictionaries: one file of three had the encoding, and the output too."""
    schema = pa.schema([column("n", 1, pa.int64())])
    slices = [
        write(
            tmp_path / f"{n}.parquet",
            schema,
            [(100 * n + i,) for i in range(100)],
            use_dictionary=False,
            column_encoding=None if n % 3 else {"n": "DELTA_BINARY_PACKED"},
        )
        for n in range(200)
    ]
    out = tmp_path / "out.parquet"
    rewrite(task(out, slices, schema, options=replace(OPTIONS, encodings="auto")))
    assert set(encodings_of(out)["n"]) == {"PLAIN", "RLE"}


@pytest.mark.parametrize("every", [True, False])
def test_auto_copies_strings_as_differences_only_where_every_source_has_them(
    tmp_path: Path, every: bool
) -> None:
    schema = pa.schema([column("s", 1, pa.string())])
    newer = {"use_dictionary": False, "column_encoding": {"s": "DELTA_BYTE_ARRAY"}}
    plain = newer if every else {"use_dictionary": False}
    rows = [(f"s-{i}",) for i in range(30_000)]
    slices = [
        write(tmp_path / f"{n}.parquet", schema, rows, compression="zstd", write_page_checksum=True, **how)
        for n, how in enumerate([newer, plain])
    ]
    out = tmp_path / "out.parquet"
    done = rewrite(task(out, slices, schema, options=replace(OPTIONS, encodings="auto")))
    assert done.copied == every and ("DELTA_BYTE_ARRAY" in encodings_of(out)["s"]) == every


def test_tiny_files_do_not_hide_a_dictionary(tmp_path: Path) -> None:
    """Ten rows, all different, never keep a dictionary; a thousand such files together want one."""
    schema = pa.schema([column("device", 1, pa.string()), column("n", 2, pa.int64())])
    slices = [
        write(
            tmp_path / f"{n}.parquet",
            schema,
            [(f"d{i}", 10 * n + i) for i in range(10)],
            use_dictionary=False,
        )
        for n in range(40)
    ]
    out = tmp_path / "out.parquet"
    rewrite(task(out, slices, schema, options=replace(OPTIONS, encodings="modern")))
    found = encodings_of(out)
    assert "RLE_DICTIONARY" in found["device"]
    assert "DELTA_BINARY_PACKED" in found["n"]
    assert rows_of(out) == [(f"d{n % 10}", n) for n in range(400)]


def test_a_dictionary_that_outgrows_its_limit(tmp_path: Path) -> None:
    rows = [(n, f"name-{n % 500}") for n in range(5000)]
    source = write(tmp_path / "in.parquet", EVENTS, rows, use_dictionary=["name"])
    out = tmp_path / "out.parquet"
    rewrite(task(out, [source] * 3, EVENTS, options=replace(OPTIONS, dictionary_bytes=64)))
    assert rows_of(out) == rows * 3


def test_the_footer_tells_what_iceberg_asks(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    rewrite(task(out, events(tmp_path), EVENTS))
    footer = pq.read_metadata(out)
    assert footer.metadata == {b"iceberg.schema": NO_DEFAULTS.encode()}
    for n in range(2):
        chunk = footer.row_group(0).column(n)
        assert chunk.compression == "ZSTD"
        assert chunk.statistics.has_min_max and chunk.statistics.null_count == 0


def test_everything_that_is_read_is_counted(tmp_path: Path) -> None:
    """A budget has to hold for delete files, not for the sources alone."""
    slices = events(tmp_path)
    sources = sum(piece.size for piece in slices)
    plain = rewrite(task(tmp_path / "plain.parquet", slices, EVENTS))
    assert (plain.bytes_read, plain.fetched) == (sources, sources)
    keys = write(tmp_path / "keys.parquet", pa.schema([EVENTS.field(0)]), [(1,), (12,)])
    delete = DeleteFile("d", "equality", keys.path, "parquet", keys.size, 2, 2, (1,))
    struck = [replace(piece, deletes=(0,)) for piece in slices]
    erasing = rewrite(task(tmp_path / "erased.parquet", struck, EVENTS, deletes=(delete,)))
    assert erasing.erased == 2
    stored = pq.read_metadata(keys.path).row_group(0).column(0).total_compressed_size
    assert (erasing.bytes_read, erasing.fetched) == (sources, sources + stored)
