"""Deletes are applied to exactly the rows they name, in memory that does not grow with them."""

from __future__ import annotations

import base64
import math
import pickle
import struct
import subprocess
import sys
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.deletes import deletes as positions
from lakewarden.rewrite.deletes import equality
from lakewarden.rewrite.deletes.delete_files import Target
from lakewarden.rewrite.deletes.deletes import Eraser
from lakewarden.rewrite.deletes.keys import comparable, hash_keys
from lakewarden.rewrite.read.project import Unfit, field_id
from lakewarden.rewrite.read.sources import RowsDiffer
from lakewarden.rewrite.read.store import MissingSource, Store

ROOMY, TIGHT = 64 << 20, 1


def column(name: str, id_: int, kind: pa.DataType, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={"PARQUET:field_id": str(id_)})


def table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


PEOPLE = pa.schema([column("id", 1, pa.int64()), column("name", 2, pa.string())])


class Lake:
    """Data files as tables in memory, delete files on disk."""

    def __init__(self, folder: Path, schema: pa.Schema = PEOPLE) -> None:
        self.folder = folder
        self.schema = schema
        self.files: list[DeleteFile] = []
        self.tables: list[pa.Table] = []
        self.targets: list[Target] = []
        self.keys_read = 0

    def data(
        self, rows: Sequence[tuple[Any, ...]], sequence: int = 1, path: str = "", deletes: Any = None
    ) -> None:
        self.tables.append(table(self.schema, rows))
        path = path or f"/lake/{len(self.targets)}.parquet"
        self.targets.append(Target(path, len(rows), sequence, deletes))

    def write(self, contents: pa.Table, **more: Any) -> str:
        path = self.folder / f"delete-{len(self.files)}.parquet"
        pq.write_table(contents, path, store_schema=False, **more)
        return str(path)

    def equality(
        self,
        rows: Sequence[tuple[Any, ...]],
        sequence: int = 2,
        ids: tuple[int, ...] = (),
        schema: pa.Schema | None = None,
    ) -> None:
        """A delete file of these keys; `ids` are of the table's schema unless the file has another."""
        schema = schema or pa.schema([next(f for f in self.schema if field_id(f) == id_) for id_ in ids])
        ids = ids or tuple(field_id(field) or 0 for field in schema)
        path = self.write(table(schema, rows))
        self.files.append(DeleteFile("d", "equality", path, "parquet", 1, len(rows), sequence, ids))

    def position(self, rows: Sequence[tuple[str, int]], **more: Any) -> None:
        schema = pa.schema(
            [column("file_path", 2147483546, pa.string()), column("pos", 2147483545, pa.int64())]
        )
        self.files.append(
            DeleteFile("d", "position", self.write(table(schema, rows), **more), "parquet", 1, len(rows), 2)
        )

    def vector(self, blob: bytes, records: int, referenced: str, before: bytes = b"PFA1") -> None:
        path = self.folder / f"delete-{len(self.files)}.puffin"
        path.write_bytes(before + blob + b"and a footer")
        where = {"content_offset": len(before), "content_size": len(blob), "referenced": referenced}
        self.files.append(DeleteFile("d", "vector", str(path), "puffin", len(blob), records, 2, **where))

    def read_keys(self, target: int, keys: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
        self.keys_read += 1
        ids = {field_id(field) for field in keys}
        contents = self.tables[target]
        wanted = [i for i, field in enumerate(contents.schema) if field_id(field) in ids]
        yield from cut(contents.select(wanted))

    def eraser(self, budget: int = ROOMY) -> Eraser:
        every = tuple(range(len(self.files)))
        targets = [replace(t, deletes=every if t.deletes is None else t.deletes) for t in self.targets]
        return Eraser(self.files, targets, self.schema, Store({}), budget, self.read_keys)

    def erased(self, budget: int = ROOMY) -> list[list[int]]:
        """Deleted positions of each data file, after all its batches have passed."""
        return run(self.eraser(budget), self.tables)


def cut(contents: pa.Table, rows: int = 7) -> Iterator[tuple[int, pa.RecordBatch]]:
    position = 0
    for batch in contents.combine_chunks().to_batches(rows):
        yield position, batch
        position += batch.num_rows


def run(eraser: Eraser, tables: Sequence[pa.Table]) -> list[list[int]]:
    found = []
    for target, contents in enumerate(tables):
        gone = []
        for position, batch in cut(contents):
            kept = eraser.survivors(target, position, batch)
            if kept is not None:
                assert len(kept) == batch.num_rows and not kept.null_count and kept.false_count
                gone += [position + i for i, stays in enumerate(kept.to_pylist()) if not stays]
        assert eraser.erased(target).dtype == np.int64
        assert eraser.erased(target).tolist() == gone
        found.append(gone)
    return found


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def people(count: int) -> list[tuple[int, str]]:
    return [(n, f"name-{n}") for n in range(count)]


def test_values_travel_by_pickle() -> None:
    file = DeleteFile("d", "vector", "s3://b/x.puffin", "puffin", 40, 3, 7, (), 4, 40, "s3://b/data.parquet")
    target = Target("s3://b/data.parquet", 10, 6, (0,))
    assert pickle.loads(pickle.dumps((file, target))) == (file, target)


def test_without_deletes_all_rows_stay(lake: Lake) -> None:
    lake.data(people(20), deletes=())
    lake.position([("/lake/0.parquet", 3)])
    assert lake.erased() == [[]]


def test_a_batch_behind_the_files_end_is_refused(lake: Lake) -> None:
    lake.data(people(5))
    lake.position([("/lake/0.parquet", 3)])
    (_, batch), *_ = cut(lake.tables[0])
    with pytest.raises(RowsDiffer, match="expected 5 rows, found 6"):
        lake.eraser().survivors(0, 1, batch)


@pytest.mark.parametrize(
    ("kind", "format_"),
    [
        ("position", "avro"),
        ("position", "puffin"),
        ("vector", "parquet"),
        ("equality", "orc"),
        ("new", "parquet"),
    ],
)
def test_other_kinds_and_formats_are_unfit(lake: Lake, kind: str, format_: str) -> None:
    lake.data(people(5))
    lake.files.append(DeleteFile("d", kind, "/lake/delete", format_, 1, 1, 2, (1,)))
    with pytest.raises(Unfit, match=f"kind {kind} and format {format_}") as caught:
        lake.eraser()
    assert caught.value.path == "/lake/delete"


# --- by position --------------------------------------------------------------------------------------------


def test_positions_of_many_files(lake: Lake) -> None:
    for _ in range(3):
        lake.data(people(20))
    rows = [(f"/lake/{file}.parquet", row) for file in range(9) for row in (file, 9, 19)]
    lake.position(rows)
    assert lake.erased() == [[0, 9, 19], [1, 9, 19], [2, 9, 19]]


def test_positions_in_any_order_and_more_than_once(lake: Lake) -> None:
    lake.data(people(20))
    lake.data(people(20))
    rows = [("/lake/1.parquet", 5), ("/lake/0.parquet", 7), ("/lake/1.parquet", 2), ("/lake/0.parquet", 3)]
    lake.position(rows * 2, row_group_size=3)
    lake.position([("/lake/0.parquet", 3), ("/lake/0.parquet", 4)])
    assert lake.erased() == [[3, 4, 7], [2, 5]]


def test_positions_the_file_does_not_have_delete_nothing(lake: Lake) -> None:
    lake.data(people(10))
    lake.position([("/lake/0.parquet", n) for n in (-1, 9, 10, 15, 16, 1 << 40)])
    assert lake.erased() == [[9]]


def test_only_files_that_list_a_delete_file_heed_it(lake: Lake) -> None:
    lake.data(people(10), path="/lake/x", deletes=(0,))
    lake.data(people(10), path="/lake/x", deletes=(1,))
    lake.position([("/lake/x", 1)])
    lake.position([("/lake/x", 2)])
    assert lake.erased() == [[1], [2]]


SPELLINGS = [
    ["/lake/a b%20c", "file:/lake/a b%20c", "file:///lake/a b%20c", "file://lake/a b%20c"],
    ["s3://bucket/x", "s3a://bucket/x", "s3n://bucket/x"],
]


@pytest.mark.parametrize(("one", "other"), [pair for group in SPELLINGS for pair in product(group, group)])
def test_only_the_table_s_own_spelling_names_a_file(lake: Lake, one: str, other: str) -> None:
    lake.data(people(10), path=one)
    lake.position([(other, 4)])
    lake.position([(other, 5)])
    lake.files[1] = replace(lake.files[1], referenced=one)
    # Iceberg compares the text: what it still shows, a rewrite must not remove.
    assert lake.erased() == ([[4, 5]] if one == other else [[]])


@pytest.mark.parametrize(
    "other", ["s3://bucket/X", "s3://bucket2/x", "gs://bucket/x", "/bucket/x", "s3://bucket/x/"]
)
def test_other_files_are_other_files(lake: Lake, other: str) -> None:
    lake.data(people(10), path="s3://bucket/x")
    lake.position([(other, 4)])
    assert lake.erased() == [[]]


def test_row_groups_of_other_files_are_not_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.data(people(10), path="s3://b/f050")
    lake.position([(f"s3://b/f{n:03d}", 5) for n in range(100)], row_group_size=10)
    looked_at = []
    mark = positions._mark

    def spy(paths: pa.Array, *rest: Any) -> None:
        looked_at.extend(paths.to_pylist())
        mark(paths, *rest)

    monkeypatch.setattr(positions, "_mark", spy)
    assert lake.erased() == [[5]]
    assert looked_at == [f"s3://b/f{n:03d}" for n in range(50, 60)]


@pytest.mark.parametrize(
    "paths",
    [
        ["/lake/b", "file:/a"],
        ["/lake/b", "s3://a/c"],
        ["file:///b", "file:/a"],
        ["s3://b/x", "s3a://a/x"],
        # A hyphen sorts before a slash, so the second lies between the others as text, but not in the one spelling.
        ["file:/-/w", "file:///-/a", "file:/z"],
    ],
)
def test_bounds_of_mixed_spellings_hide_no_path(lake: Lake, paths: list[str]) -> None:
    for path in paths:
        lake.data(people(3), path=path, deletes=(len(lake.targets),))
        lake.position([(path, 1) for path in paths])
    assert lake.erased() == [[1]] * len(paths)


def test_a_delete_file_of_another_file_is_not_opened(lake: Lake) -> None:
    lake.data(people(10), path="/lake/x")
    lake.files.append(DeleteFile("d", "position", "/gone", "parquet", 1, 1, 2, referenced="/lake/y"))
    assert lake.erased() == [[]]


def test_deleted_rows_kept_beside_positions_are_passed_over(lake: Lake) -> None:
    lake.data(people(10))
    contents = pa.table(
        {"row": [{"id": 1, "name": "x"}] * 2, "file_path": ["/lake/0.parquet"] * 2, "pos": [2, 3]}
    )
    lake.files.append(DeleteFile("d", "position", lake.write(contents), "parquet", 1, 2, 2))
    assert lake.erased() == [[2, 3]]


@pytest.mark.parametrize(
    "contents", [{"pos": [1]}, {"file_path": ["x"], "pos": ["1"]}, {"file_path": [1], "pos": [1]}]
)
def test_a_file_of_other_columns_is_unfit(lake: Lake, contents: dict[str, list[Any]]) -> None:
    lake.data(people(10))
    lake.files.append(DeleteFile("d", "position", lake.write(pa.table(contents)), "parquet", 1, 1, 2))
    with pytest.raises(Unfit, match=r"file_path is .* and pos is") as caught:
        lake.eraser()
    assert caught.value.path == lake.files[0].path


@pytest.mark.parametrize("kind", ["position", "equality"])
def test_missing_and_damaged_delete_files_are_named(lake: Lake, kind: str) -> None:
    lake.data(people(1000))
    if kind == "position":
        lake.position([("/lake/0.parquet", n) for n in range(1000)])
    else:
        lake.equality([(n,) for n in range(1000)], ids=(1,))
    path = Path(lake.files[0].path)
    whole = path.read_bytes()
    for spoilt in (whole[:4] + b"\xff" * 200 + whole[204:], b"not parquet", None):
        path.unlink() if spoilt is None else path.write_bytes(spoilt)
        with pytest.raises(MissingSource) as caught:
            lake.eraser()
        assert caught.value.path == str(path)
        assert caught.value.gone == (spoilt is None)


# --- by vector ----------------------------------------------------------------------------------------------

# What Iceberg 1.12 itself made of the positions below: an array container each at 0 and 65,536, a run, a bitmap, and a
# second 32-bit bitmap.
BY_ICEBERG = zlib.decompress(
    base64.b85decode(
        "c-rmSu?fOZ5Qp*ay%$kz5_^j@l1hk`sEv!*xj;6sa|}E85eJH=2+kmUcl_aZ+>LP1o*vKLIrFPSU#OsvqBC_@7?!J8tRtJq_H$O4"
        "GLA4TQcQK1ay4t(;{_pv5JCtcgb+dqA%qY@2qA<JLi{b>UjX|a()W#^iA=a(Z}S%nv6OT"
    )
)
HELD = [0, 3, 7, 65535, 65536, 70001, *range(131072, 141072), *range(196608, 262144, 9), (1 << 32) + 5]


def vector(bitmap: bytes) -> bytes:
    body = b"\xd1\xd3\x39\x64" + bitmap
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def vector_lake(lake: Lake, rows: int, blob: bytes, records: int, referenced: str = "/lake/x") -> Lake:
    lake.targets.append(Target("/lake/x", rows, 1, (0,)))
    lake.vector(blob, records, referenced)
    return lake


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 70_001, 70_002, 131_077, 200_000, 300_000, 1 << 27])
def test_a_vector_iceberg_wrote(lake: Lake, rows: int) -> None:
    eraser = vector_lake(lake, rows, BY_ICEBERG, len(HELD)).eraser()
    assert eraser.erased(0).tolist() == [position for position in HELD if position < rows]


def test_a_vector_by_hand(lake: Lake) -> None:
    one_bitmap = struct.pack("<QI", 1, 0)
    array = struct.pack("<II HH I HHH", 12346, 1, 0, 2, 16, 1, 4, 9)
    lake.data(people(12), path="/lake/x")
    lake.vector(vector(one_bitmap + array), 3, "/lake/x")
    assert lake.erased() == [[1, 4, 9]]


@settings(deadline=None, max_examples=60)
@example([(0, 8192, 2)], False)  # the largest array, and the smallest bitmap
@example([(0, 8194, 2)], False)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 70_000), st.integers(1, 40)), max_size=6),
    st.booleans(),
)
def test_vectors_of_all_containers(ranges: list[tuple[int, int, int]], runs: bool) -> None:
    held = BitMap64()
    for start, length, step in ranges:
        held |= BitMap64(range(start, start + length, step))
    if runs:
        held.run_optimize()
    with tempfile.TemporaryDirectory() as folder:
        eraser = vector_lake(Lake(Path(folder)), 1 << 21, vector(held.serialize()), len(held)).eraser()
    assert eraser.erased(0).tolist() == list(held)


def spoilt_vectors() -> dict[str, bytes]:
    flipped = bytearray(BY_ICEBERG)
    flipped[60] ^= 1
    bitmap = BY_ICEBERG[8:-4]
    return {
        "length does not fit its 8200": BY_ICEBERG[:8200],
        "length does not fit its 0": b"",
        "length does not fit its 8294": BY_ICEBERG + b"x",
        "checksum differs": bytes(flipped),
        "begins with d1d33965": BY_ICEBERG[:7] + b"\x65" + BY_ICEBERG[8:],
        "ends at byte": vector(bitmap[:-1]),
        "bytes follow": vector(bitmap + b"x"),
        "a bitmap begins with 1": vector(struct.pack("<QII", 1, 0, 1)),
        "4294967295 containers": vector(struct.pack("<QIII", 1, 0, 12346, (1 << 32) - 1)),
        "does not hold 2 positions": vector(struct.pack("<QI II HH I HH", 1, 0, 12346, 1, 0, 1, 16, 5, 5)),
    }


@pytest.mark.parametrize("why", spoilt_vectors())
def test_damaged_vectors_are_named(lake: Lake, why: str) -> None:
    vector_lake(lake, 100, spoilt_vectors()[why], len(HELD))
    with pytest.raises(MissingSource, match=why) as caught:
        lake.eraser()
    assert caught.value.path == lake.files[0].path and not caught.value.gone


def test_a_vector_of_another_count_is_damaged(lake: Lake) -> None:
    vector_lake(lake, 100, BY_ICEBERG, len(HELD) - 1)
    with pytest.raises(MissingSource, match=f"holds {len(HELD)} positions, the table says {len(HELD) - 1}"):
        lake.eraser()


def test_a_vector_of_another_file_is_not_passed_over(lake: Lake) -> None:
    vector_lake(lake, 100, BY_ICEBERG, len(HELD), referenced="/lake/y")
    with pytest.raises(Unfit, match="a deletion vector of /lake/y is listed for /lake/x"):
        lake.eraser()


# --- by value -----------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("budget", [ROOMY, TIGHT], ids=["small", "large"])


@BOTH
def test_the_way_is_told(lake: Lake, budget: int) -> None:
    lake.data(people(30))
    lake.equality([(n,) for n in range(5, 15)], ids=(1,))
    eraser = lake.eraser(budget)
    (way,) = eraser.ways
    assert (way.ids, way.large) == ((1,), budget == TIGHT)
    assert lake.keys_read == (1 + way.rounds if way.large else 0)
    assert way.rounds > 1 if way.large else way.keys == 10
    assert run(eraser, lake.tables) == [list(range(5, 15))]


def test_keys_that_no_row_has_need_no_rounds(lake: Lake) -> None:
    lake.data(people(30))
    lake.equality([(n,) for n in range(1000, 3000)], ids=(1,))
    lake.equality([(7,)], ids=(1,))
    eraser = lake.eraser(budget=50_000)
    (way,) = eraser.ways
    assert way.large and way.rounds == 0 and way.keys < 200 and lake.keys_read == 1
    assert run(eraser, lake.tables) == [[7]]


def test_strings_longer_than_guessed_change_the_way(lake: Lake) -> None:
    names = [f"{n}" * 2000 for n in range(10, 60)]
    lake.data(list(enumerate(names)))
    lake.equality([(name,) for name in names[::3]], ids=(2,))
    eraser = lake.eraser(budget=100_000)
    assert eraser.ways[0].large
    assert run(eraser, lake.tables) == [list(range(0, 50, 3))]


def test_a_key_deleted_again_and_again_takes_no_room(lake: Lake) -> None:
    lake.data(people(10))
    for sequence in range(2, 42):
        lake.equality([(n % 3,) for n in range(50)], sequence=sequence, ids=(1,))
    eraser = lake.eraser(budget=40_000)
    (way,) = eraser.ways
    assert (way.large, way.rounds, way.keys) == (True, 0, 3)
    assert run(eraser, lake.tables) == [[0, 1, 2]]


@BOTH
def test_only_older_rows_are_deleted(lake: Lake, budget: int) -> None:
    for sequence in (1, 4, 5, 6):
        lake.data(people(4), sequence)
    lake.equality([(1,)], sequence=5, ids=(1,))
    lake.equality([(2,)], sequence=2, ids=(1,))
    lake.equality([(2,)], sequence=6, ids=(1,))
    lake.equality([(3,)], sequence=1, ids=(1,))
    assert lake.erased(budget) == [[1, 2], [1, 2], [2], []]


@BOTH
def test_a_delete_of_another_partition_is_not_heeded(lake: Lake, budget: int) -> None:
    lake.data(people(4), deletes=(0, 2))
    lake.data(people(4), deletes=(1, 2))
    lake.data(people(4), deletes=())
    lake.equality([(0,), (1,)], ids=(1,))
    lake.equality([(1,), (2,)], ids=(1,))
    lake.equality([(3,)], ids=(1,))
    assert lake.erased(budget) == [[0, 1, 3], [1, 2, 3], []]


@BOTH
def test_sets_of_columns_are_filters_of_their_own(lake: Lake, budget: int) -> None:
    lake.data([(1, "a"), (2, "b"), (3, "c"), (1, "c"), (4, "d")])
    lake.equality([(1, "c"), (2, "x")], ids=(1, 2))
    lake.equality([("b",)], ids=(2,))
    lake.equality([("d", 4), ("a", 4)], ids=(2, 1))
    eraser = lake.eraser(budget)
    assert [way.ids for way in eraser.ways] == [(1, 2), (2,)]
    assert run(eraser, lake.tables) == [[1, 3, 4]]


@BOTH
def test_null_equals_null_and_nothing_else(lake: Lake, budget: int) -> None:
    lake.data([(None, "a"), (None, None), (0, None), (0, ""), (None, "")])
    lake.equality([(None, None), (0, "")], ids=(1, 2))
    assert lake.erased(budget) == [[1, 3]]
    lake.files.clear()
    lake.equality([(None,)], ids=(2,))
    assert lake.erased(budget) == [[1, 2]]


@BOTH
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_are_equal_as_java_has_it(tmp_path: Path, kind: pa.DataType, budget: int) -> None:
    """As Iceberg's own comparator, which is Double.compare: NaN equals NaN, -0.0 is less than 0.0."""
    lake = Lake(tmp_path, pa.schema([column("v", 1, kind)]))
    negative_nan = np.copysign(np.nan, -1.0)
    lake.data([(0.0,), (-0.0,), (math.nan,), (negative_nan,), (1.5,), (None,), (math.inf,)])
    lake.equality([(-0.0,), (math.nan,), (-math.inf,)], ids=(1,))
    assert lake.erased(budget) == [[1, 2, 3]]


TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int32(), [-1, 0, 2**31 - 1]),
    (pa.int64(), [-1, 0, 2**63 - 1, -(2**63)]),
    (pa.float32(), [0.5, -0.5]),
    (pa.float64(), [1e300, -1e300]),
    (pa.decimal128(9, 2), [Decimal("1.23"), Decimal("-1.23")]),
    (pa.decimal128(38, 0), [Decimal(10**37), Decimal(-(10**37)), Decimal(2**64), Decimal(0)]),
    (pa.date32(), [date(1969, 1, 1), date(2024, 2, 29)]),
    (pa.time64("us"), [time(0), time(23, 59, 59, 999999)]),
    (pa.timestamp("us"), [datetime(1960, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1)]),
    (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)]),
    (pa.string(), ["", "a", "a\0", "ä", "x" * 8, "x" * 9, "y" * 400 + "1", "y" * 400 + "2"]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"\xff" * 8, b"\xff" * 9]),
    (pa.binary(3), [b"abc", b"abd"]),
    (pa.binary(16), [b"a" * 16, b"b" * 16, b"a" * 8 + b"b" * 8]),
    (pa.uuid(), [uuid.UUID(int=1).bytes, uuid.UUID(int=1 << 64).bytes]),
]


@BOTH
@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_every_type_alone_and_in_a_pair(
    tmp_path: Path, kind: pa.DataType, values: list[Any], budget: int
) -> None:
    for gone in [*values, None]:
        for ids in [(1,), (1, 2)]:
            lake = Lake(tmp_path, pa.schema([column("v", 1, kind), column("n", 2, pa.int32())]))
            rows = [(value, 7) for value in [*values, None]]
            lake.data(rows + rows)
            lake.equality([(gone, 7)[: len(ids)]], ids=ids)
            assert lake.erased(budget) == [[i for i, row in enumerate(rows + rows) if row[0] == gone]]


@BOTH
@pytest.mark.parametrize("distinct", [3, 50])
def test_rows_may_come_as_dictionaries(lake: Lake, budget: int, distinct: int) -> None:
    rows = [(n, None if n % distinct == 2 else f"s{n % distinct}") for n in range(40)]
    lake.data(rows)
    lake.equality([("s1",), (None,)], ids=(2,))
    eraser = lake.eraser(budget)
    schema = PEOPLE.set(1, PEOPLE.field(1).with_type(pa.dictionary(pa.int32(), pa.string())))
    encoded = pa.table([lake.tables[0]["id"], lake.tables[0]["name"].dictionary_encode()], schema=schema)
    nulls_inside = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int32()), pa.array([None, "s1"]))
    batch = pa.record_batch([pa.array([1, 2, 3]), nulls_inside], schema=schema)
    assert run(eraser, [encoded]) == [[i for i, row in enumerate(rows) if row[1] in ("s1", None)]]
    if budget == ROOMY:
        assert eraser.survivors(0, 0, batch).to_pylist() == [False, False, False]
    # A column the file does not have is a dictionary of nothing.
    empty = pa.record_batch([pa.array([1, 2]), pa.nulls(2, nulls_inside.type)], schema=schema)
    fresh = lake.eraser()
    assert fresh.survivors(0, 0, empty).to_pylist() == [False, False]


def test_a_batch_may_have_the_key_columns_alone(lake: Lake) -> None:
    lake.data([(1, "a"), (2, "b"), (3, "c")])
    lake.equality([("b", 2), ("c", 9)], ids=(2, 1))
    lake.equality([("c",)], ids=(2,))
    assert run(lake.eraser(), [lake.tables[0].select([1, 0])]) == [[1, 2]]
    lake.files.pop(0)
    assert run(lake.eraser(), [lake.tables[0].select([1])]) == [[2]]


@BOTH
def test_keys_of_an_older_schema(tmp_path: Path, budget: int) -> None:
    """The column was an int of another name, and the file keeps columns that are no part of its key."""
    lake = Lake(
        tmp_path, pa.schema([column("name", 2, pa.string()), column("id", 1, pa.int64(), required=True)])
    )
    lake.data([("a", 1), ("b", 2), ("c", 2**40)])
    old = pa.schema(
        [column("lost", 9, pa.string()), pa.field("no_id", pa.int32()), column("key", 1, pa.int32())]
    )
    lake.equality([("x", 5, 2), ("x", 5, None), ("x", 5, 3)], ids=(1,), schema=old)
    assert lake.erased(budget) == [[1]]


@BOTH
def test_keys_of_a_dropped_column_are_those_of_the_files(tmp_path: Path, budget: int) -> None:
    """The table has no such column any more, and one delete file is from before it became a long."""
    old = column("old", 9, pa.int64())
    lake = Lake(tmp_path, pa.schema([*PEOPLE, old]))
    lake.data([(n, "a", n % 5) for n in range(40)])
    lake.data([(n, "b", n % 5) for n in range(40)], sequence=3)
    lake.equality([(1,)], sequence=2, schema=pa.schema([column("old", 9, pa.int32())]))
    lake.equality([(2,), (7,)], sequence=4, schema=pa.schema([old]))
    lake.schema = PEOPLE
    eraser = lake.eraser(budget)
    assert run(eraser, [contents.drop_columns("old") for contents in lake.tables]) == [
        [n for n in range(40) if n % 5 in (1, 2)],
        [n for n in range(40) if n % 5 == 2],
    ]


NESTED = pa.struct([column("x", 5, pa.int64())])


@pytest.mark.parametrize(
    ("ids", "file", "why"),
    [
        ((5,), column("x", 5, pa.int64()), "by the value of a nested field, field 5"),
        (
            (9,),
            column("id", 1, pa.int64()),
            "a column that neither the table nor the delete file has, field 9",
        ),
        ((4,), column("s", 4, NESTED), "by the value of s, which is struct"),
        ((1,), column("id", 1, pa.string()), "id is string in the file and int64"),
        ((1,), column("id", 2, pa.int64()), "id is not in the file"),
        ((), column("id", 1, pa.int64()), "without equality columns"),
    ],
)
def test_keys_that_cannot_be_compared_are_unfit(
    tmp_path: Path, ids: tuple[int, ...], file: pa.Field, why: str
) -> None:
    lake = Lake(tmp_path, pa.schema([*PEOPLE, column("s", 4, NESTED)]))
    lake.data([(1, "a", None)])
    lake.equality([(None,)], schema=pa.schema([file]))
    lake.files[0] = replace(lake.files[0], equality_ids=ids)
    with pytest.raises(Unfit, match=why) as caught:
        lake.eraser()
    assert caught.value.path == lake.files[0].path


@BOTH
def test_keys_of_one_hash_are_told_apart(lake: Lake, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three hashes for all keys there are collisions everywhere; they delete nothing and hide nothing."""
    monkeypatch.setattr(equality, "hash_keys", lambda columns: hash_keys(columns) % np.uint64(3))
    rows = [(n, None if n % 3 else f"name-{n}") for n in range(24)]
    for sequence in (1, 3, 5):
        lake.data(rows, sequence)
    for sequence in (2, 4, 6):
        others = [(n, None if name else f"name-{n}") for n, name in rows]
        lake.equality([*others, *rows[sequence::5], *rows[sequence::5]], sequence, ids=(1, 2))
    every = [{n for s in (2, 4, 6) if s > age for n in range(s, 24, 5)} for age in (1, 3, 5)]
    assert lake.erased(budget) == [sorted(gone) for gone in every]


def test_hashes_of_different_keys_differ() -> None:
    """Not needed to be right, but to be fast: also for keys that differ in few bits."""
    numbers = np.concatenate([np.arange(50_000), np.arange(50_000) << 40, -np.arange(1, 50_000)])
    words = [f"{a:x}{b}" for a in range(300) for b in "abcdefghij" * 10]
    for values in (np.unique(numbers), sorted(set(words)), [b"\0" * n for n in range(300)]):
        keys = comparable(pa.array(values))
        assert len(np.unique(hash_keys([keys]))) == len(keys)
        pairs = [
            keys.take(pa.array(np.repeat(np.arange(300), 300))),
            keys.take(pa.array(np.tile(np.arange(300), 300))),
        ]
        assert len(np.unique(hash_keys(pairs))) == 90_000


def test_a_slice_and_a_dictionary_hash_as_the_values_do() -> None:
    for kind, values in TYPES:
        whole = pa.array([None, *values, None, *values], kind.storage_type if kind == pa.uuid() else kind)
        part = whole[1:]
        expected = hash_keys([comparable(whole)])[1:].tolist()
        assert hash_keys([comparable(part)]).tolist() == expected
        assert hash_keys([comparable(part.dictionary_encode())]).tolist() == expected
        assert hash_keys([comparable(whole.dictionary_encode()[1:])]).tolist() == expected


# --- all of it, against a plain model -----------------------------------------------------------------------

WIDE = pa.schema([column("a", 1, pa.int64()), column("b", 2, pa.string()), column("c", 3, pa.float64())])
NAN = "NaN"
rows_of_wide = st.lists(
    st.tuples(
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["", "x", "longer than a word", "longer than a work"]),
        st.none() | st.sampled_from([0.0, -0.0, 1.0, math.nan]),
    ),
    max_size=25,
)
id_sets = st.sampled_from([(1,), (2,), (3,), (1, 2), (3, 1), (2, 3), (1, 2, 3)])
sequences = st.integers(1, 4)


def model(value: Any) -> Any:
    """A value that Python's == compares as Iceberg does."""
    return (repr(value),) if isinstance(value, float) else value


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(rows_of_wide, sequences, st.sets(st.integers(0, 5))), min_size=1, max_size=4),
    st.lists(st.tuples(rows_of_wide, sequences, id_sets), max_size=4),
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=8), max_size=2),
)
def test_both_ways_are_the_model(data: Any, deletes: Any, by_position: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder), WIDE)
        for rows, sequence, ids in deletes:
            lake.equality([tuple(row[id_ - 1] for id_ in ids) for row in rows], sequence, ids)
        for pairs in by_position:
            lake.position([(f"/lake/{file}.parquet", row) for file, row in pairs])
        expected = []
        for number, (rows, sequence, listed) in enumerate(data):
            listed = {place for place in listed if place < len(lake.files)}
            lake.data(rows, sequence, deletes=tuple(listed))
            gone = set()
            for place in listed:
                if place >= len(deletes):
                    gone |= {row for file, row in by_position[place - len(deletes)] if file == number}
                    continue
                keys, newer, ids = deletes[place]
                known = {tuple(model(key[id_ - 1]) for id_ in ids) for key in keys}
                if newer > sequence:
                    gone |= {
                        i for i, row in enumerate(rows) if tuple(model(row[id_ - 1]) for id_ in ids) in known
                    }
            expected.append(sorted(row for row in gone if row < len(rows)))
        assert lake.erased(ROOMY) == expected
        assert lake.erased(8000) == expected
        assert lake.erased(TIGHT) == expected


# --- memory -------------------------------------------------------------------------------------------------

MEASURE = """
import sys
import pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.deletes.delete_files import Target
from lakewarden.rewrite.deletes.deletes import Eraser
from lakewarden.rewrite.read.store import Store

pa.set_cpu_count(1)
path, keys, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
rows = pa.record_batch([pa.array(range(0, 100_000, 2))], schema=schema)

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

before = peak()
file = DeleteFile("d", "equality", path, "parquet", 1, keys, 2, (1,))
target = Target("/lake/x", rows.num_rows, 1, (0,))
eraser = Eraser([file], [target], schema, Store({}), budget, lambda *_: iter([(0, rows)]))
eraser.survivors(0, 0, rows)
print(eraser.ways[0].large, len(eraser.erased(0)), peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_keys(tmp_path: Path) -> None:
    """Eight million keys are 64 MB in one row group, and would be ten times that while an index is made of them."""
    path = tmp_path / "delete.parquet"
    keys = pa.table([pa.array(np.arange(8_000_000))], schema=pa.schema([column("id", 1, pa.int64())]))
    pq.write_table(keys, path, compression="none", use_dictionary=False, row_group_size=8_000_000)
    command = [sys.executable, "-c", MEASURE, str(path), str(keys.num_rows), str(8 << 20)]
    large, erased, grown = subprocess.check_output(command, text=True).split()
    assert (large, int(erased)) == ("True", 50_000)
    assert int(grown) < 64 << 20
