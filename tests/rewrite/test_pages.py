"""Pages that are copied: every reader finds the rows that were there, and the footer says what Arrow would have said."""

from __future__ import annotations

import math
import pickle
import random
import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakewarden.rate_limit import Pace, Throttle
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.pages import copyable, thrift
from lakewarden.rewrite.pages.assembly import encoded_chunks
from lakewarden.rewrite.pages.chunks import Doubtful, PagesDiffer
from lakewarden.rewrite.pages.copy import _near, concatenate, suits
from lakewarden.rewrite.pages.thrift import Struct
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.sources import RowsDiffer
from lakewarden.rewrite.read.store import MissingSource, Store
from lakewarden.rewrite.task import Reading, RewriteTask, WrittenFile
from lakewarden.rewrite.write.encoding import WriteOptions
from tests.rewrite.test_rewrite_kernel import LINEAGE, NO_DEFAULTS, column, every_type, whole

ROWS = 6_000  # of a file: enough that its pages are not tiny
OPTIONS = WriteOptions.from_properties({})


def source(path: Path, table: pa.Table, **settings: Any) -> Path:
    """A file whose columns all have plain pages, unless told otherwise."""
    defaults: dict[str, Any] = {"use_dictionary": False, "compression": "zstd", "max_rows_per_page": 2_500}
    defaults["write_page_checksum"] = True  # without them no page is copied
    if settings.get("compression") == "gzip":
        defaults["compression_level"] = 1
    pq.write_table(table, path, store_schema=False, store_decimal_as_integer=True, **{**defaults, **settings})
    return path


def task(output: Path, sources: Iterable[Path], schema: pa.Schema, **more: Any) -> RewriteTask:
    settings = {"options": OPTIONS, "iceberg_schema_json": NO_DEFAULTS, "digest": False, **more}
    slices = tuple(whole(path) for path in sources)
    return RewriteTask((str(output),), slices, schema.serialize().to_pybytes(), **settings)


def join(output: Path, sources: Sequence[Path], schema: pa.Schema, **more: Any) -> WrittenFile:
    """Copy what can be copied; a task that does not suit is a mistake of the test."""
    reading = Reading(task(output, sources, schema, **more))
    assert suits(reading)
    (file,) = concatenate(reading)
    assert (file.path, file.size) == (str(output), output.stat().st_size)
    return file


def settled(reading: Reading) -> Reading:
    """With the question closed whether columns of few values want a dictionary: they get none."""
    reading.encodings = replace(reading.encodings, open_questions=(), dictionary=())
    return reading


def footer_of(path: Path) -> Struct:
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    return thrift.read(data[-8 - size : -8])[0]


def chunk_bytes(path: Path, id_: int) -> list[bytes]:
    """The bytes of a leaf column, by its field id, for each row group."""
    data, footer = path.read_bytes(), pq.read_metadata(path)
    elements = [e for e in thrift.value_of(footer_of(path), 2) if thrift.value_of(e, 1) is not None]
    place = next(n for n, e in enumerate(elements) if thrift.value_of(e, 9) == id_)
    chunks = [footer.row_group(n).column(place) for n in range(footer.num_row_groups)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    return [
        data[start : start + chunk.total_compressed_size] for start, chunk in zip(starts, chunks, strict=True)
    ]


def pages_of(chunk: bytes) -> list[tuple[Struct, bytes]]:
    """Header and body of each page of a chunk."""
    found, at = [], 0
    while at < len(chunk):
        header, body = thrift.read(chunk, at)
        at = body + thrift.value_of(header, 3)
        found.append((header, chunk[body:at]))
    return found


def is_copied(output: Path, sources: Sequence[Path], id_: int) -> bool:
    """Whether the output has the very pages of the sources; their headers are written again."""
    there = [page for path in sources for part in chunk_bytes(path, id_) for page in pages_of(part)]
    here = [page for part in chunk_bytes(output, id_) for page in pages_of(part)]
    return [said(*page) for page in here] == [said(*page) for page in there]


def said(header: Struct, body: bytes) -> tuple[Any, ...]:
    """A page's kind, sizes and checksum, its values and their encoding, and the page itself."""
    page = thrift.value_of(header, 5) or thrift.value_of(header, 7) or thrift.value_of(header, 8)
    stated = [header.get(number) for number in (1, 2, 3, 4)]
    return (*stated, page.get(1), page.get(2), body)


def leaf_ids(path: Path) -> list[int]:
    elements = thrift.value_of(footer_of(path), 2)
    return [thrift.value_of(e, 9) for e in elements if thrift.value_of(e, 1) is not None]


def assert_same_rows(output: Path, sources: Sequence[Path]) -> None:
    """By three readers, each compared with itself, so that their types do not matter."""
    assert pq.read_table(output).equals(pa.concat_tables(pq.read_table(path) for path in sources))
    paths = [str(path) for path in sources]
    assert pl.read_parquet(output).equals(pl.concat(pl.read_parquet(path) for path in paths))
    assert by_duckdb([str(output)]).equals(by_duckdb(paths))


def by_duckdb(paths: list[str]) -> pa.Table:
    return duckdb.sql("select * from read_parquet($paths)", params={"paths": paths}).to_arrow_table()


def stated(path: Path) -> list[tuple[Any, ...]]:
    """What the footer says of each column: nulls, least and greatest value, as bits so that zeros differ."""
    footer = pq.read_metadata(path)
    found = [
        footer.row_group(n).column(i) for n in range(footer.num_row_groups) for i in range(footer.num_columns)
    ]
    return [(chunk.path_in_schema, chunk.num_values, *stated_of(chunk.statistics)) for chunk in found]


def stated_of(statistics: Any) -> tuple[Any, ...]:
    def bits(value: Any) -> Any:
        return struct.pack("<d", value) if isinstance(value, float) else value

    bounds = (bits(statistics.min_raw), bits(statistics.max_raw)) if statistics.has_min_max else ()
    return (statistics.null_count if statistics.has_null_count else None, bounds)


def assert_stated_as_arrow_would(output: Path, sources: Sequence[Path], tmp_path: Path) -> None:
    rows = pa.concat_tables(pq.read_table(path) for path in sources).combine_chunks()
    again = source(
        tmp_path / "again.parquet", rows.cast(pq.read_schema(output)), row_group_size=rows.num_rows
    )
    assert stated(output) == stated(again)


# --- rows ---------------------------------------------------------------------------------------------------


def every_value(n: int) -> tuple[Any, ...]:
    """A row of every type, each value like no other, with nulls and empty values between."""
    day = date(1970, 1, 1) + timedelta(days=n - 3_000)
    moment = datetime(1999, 12, 31, 23, 59, 59, 999_999) + timedelta(microseconds=n * 1_000_003)
    point = {"x": n, "tags": None if n % 11 == 0 else [f"t{n}", None, ""][: n % 4]}
    values = (
        n % 3 == 0,
        n - 3_000,
        n * 1_000_000_007,
        n / 7,
        -n / 3,
        day,
        time(n % 24, n // 24 % 60, n // 1440 % 60, n),
        moment,
        moment.replace(tzinfo=UTC),
        n * 1_000_000_000_003,
        "" if n % 5 == 0 else f"grüße {n}",
        n.to_bytes(3, "big") if n % 5 else b"",
        n.to_bytes(3, "little"),
        n.to_bytes(16, "little"),
        Decimal(n - 3_000).scaleb(-2),
        Decimal(n - 3_000).scaleb(-4),
        Decimal((n - 3_000) * 10**20).scaleb(-10),
        [n, None, -n][: n % 4],
        [(f"k{n}", point), (f"l{n}", None)][: n % 3],
        {"x": n, "y": [{"q": n}, None][: n % 3]},
    )
    return tuple(None if (n + place) % 9 == 0 and place != 2 else value for place, value in enumerate(values))


def every_table(first: int, rows: int = ROWS) -> pa.Table:
    found = list(zip(*(every_value(n) for n in range(first, first + rows)), strict=True))
    schema = every_type()
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(found, schema, strict=True)], schema=schema
    )


@pytest.fixture(scope="module")
def every() -> list[pa.Table]:
    return [every_table(0), every_table(ROWS)]


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "uncompressed"])
def test_every_type_is_copied(tmp_path: Path, every: list[pa.Table], codec: str) -> None:
    written = codec if codec != "uncompressed" else "none"
    sources = [source(tmp_path / f"{n}.parquet", table, compression=written) for n, table in enumerate(every)]
    out = tmp_path / "out.parquet"
    file = join(out, sources, every_type(), options=replace(OPTIONS, codec=codec))
    assert (file.rows, file.split_offsets) == (2 * ROWS, (4,))
    # Lists and maps are decoded, and what is beside a list in a struct: only levels tell how many rows they have.
    assert [id_ for id_ in leaf_ids(out) if not is_copied(out, sources, id_)] == [34, 35, 31, 33, 40, 43]
    assert_same_rows(out, sources)
    assert_stated_as_arrow_would(out, sources, tmp_path)


def test_the_schema_is_the_one_arrow_would_write(tmp_path: Path, every: list[pa.Table]) -> None:
    sources = [source(tmp_path / f"{n}.parquet", table) for n, table in enumerate(every)]
    joined, decoded = tmp_path / "joined.parquet", tmp_path / "decoded.parquet"
    join(joined, sources, every_type())
    # A codec no source has: nothing can be copied.
    rewrite(task(decoded, sources, every_type(), options=replace(OPTIONS, codec="snappy")))
    ours, arrows = footer_of(joined), footer_of(decoded)
    same = (1, 2, 3, 5, 7)  # version, schema, rows, metadata, orders
    assert {n: ours.get(n) for n in same} == {n: arrows.get(n) for n in same}
    assert pq.read_metadata(joined).created_by.startswith(pq.read_metadata(decoded).created_by)


def test_pages_of_the_second_version_are_decoded(tmp_path: Path, every: list[pa.Table]) -> None:
    sources = [
        source(tmp_path / f"{n}.parquet", table, data_page_version=f"{n + 1}.0")
        for n, table in enumerate(every)
    ]
    out = tmp_path / "out.parquet"
    rewrite(task(out, sources, every_type()))
    assert not any(is_copied(out, sources, id_) for id_ in leaf_ids(out))
    assert_same_rows(out, sources)


def test_delta_and_split_are_copied_where_the_output_would_have_them(
    tmp_path: Path, every: list[pa.Table]
) -> None:
    modern = {"double": "BYTE_STREAM_SPLIT", "long": "DELTA_BINARY_PACKED", "string": "DELTA_BYTE_ARRAY"}
    sources = [
        source(tmp_path / f"{n}.parquet", table, column_encoding=modern) for n, table in enumerate(every)
    ]
    out = tmp_path / "modern.parquet"
    join(out, sources, every_type(), options=replace(OPTIONS, encodings="modern"))
    # An int that is plain would be delta in a modern file: it is encoded anew.
    copied = {id_: is_copied(out, sources, id_) for id_ in (5, 3, 11, 2)}
    assert copied == {5: True, 3: True, 11: True, 2: False}
    assert_same_rows(out, sources)
    out = tmp_path / "classic.parquet"
    join(out, sources, every_type())
    assert not any(is_copied(out, sources, id_) for id_ in (5, 3, 11))
    assert is_copied(out, sources, 2)
    assert_same_rows(out, sources)


# --- what is not copied -------------------------------------------------------------------------------------

WIDE = pa.schema(
    [
        column("n", 1, pa.int64(), required=True),
        column("v", 2, pa.float64()),
        column("s", 3, pa.string()),
        column("device", 4, pa.string()),
    ]
)


def wide(first: int, rows: int = ROWS) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        [
            list(numbers),
            [None if n % 7 == 0 else n / 3 for n in numbers],
            [f"session-{n}" for n in numbers],
            # In an order of its own in each file, as its dictionary is.
            [f"device-{(n + n // ROWS) % 40}" for n in numbers],
        ],
        schema=WIDE,
    )


def wides(tmp_path: Path, files: int = 3, **settings: Any) -> list[Path]:
    return [
        source(tmp_path / f"in-{n}.parquet", wide(n * ROWS), **{"use_dictionary": ["device"], **settings})
        for n in range(files)
    ]


def test_columns_with_dictionaries_are_encoded_into_one(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    out = tmp_path / "out.parquet"
    join(out, sources, WIDE)
    assert [is_copied(out, sources, id_) for id_ in (1, 2, 3, 4)] == [True, True, True, False]
    device = pq.read_metadata(out).row_group(0).column(3)
    assert "RLE_DICTIONARY" in device.encodings and device.total_uncompressed_size < 20_000
    assert_same_rows(out, sources)
    assert_stated_as_arrow_would(out, sources, tmp_path)


def test_a_column_that_repeats_gets_a_dictionary_though_its_files_had_none(tmp_path: Path) -> None:
    sources = wides(tmp_path, use_dictionary=False)
    out = tmp_path / "out.parquet"
    join(out, sources, WIDE)
    assert "RLE_DICTIONARY" in pq.read_metadata(out).row_group(0).column(3).encodings
    assert_same_rows(out, sources)


def test_one_file_of_another_codec_means_encoding(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    source(sources[1], wide(ROWS), compression={"n": "snappy", "v": "zstd", "s": "gzip", "device": "zstd"})
    out = tmp_path / "out.parquet"
    join(out, sources, WIDE)
    assert [is_copied(out, sources, id_) for id_ in (1, 2, 3)] == [False, True, False]
    assert {pq.read_metadata(out).row_group(0).column(n).compression for n in range(4)} == {"ZSTD"}
    assert_same_rows(out, sources)


def test_tiny_files_do_not_suit(tmp_path: Path) -> None:
    sources = [source(tmp_path / f"{n}.parquet", wide(n * 100, 100)) for n in range(5)]
    work = task(tmp_path / "out.parquet", sources, WIDE)
    assert not suits(Reading(work))
    with pytest.raises(Doubtful):
        concatenate(settled(Reading(work)))
    assert rewrite(work).rows == 500


def test_parts_of_files_and_deletes_do_not_suit(tmp_path: Path) -> None:
    work = task(tmp_path / "out.parquet", wides(tmp_path), WIDE)
    part = replace(work, slices=(replace(work.slices[0], from_row=1), *work.slices[1:]))
    assert suits(Reading(work))
    assert not suits(Reading(part))
    reading = Reading(work)
    reading.task = replace(work, slices=(replace(work.slices[0], deletes=(0,)), *work.slices[1:]))
    assert not suits(reading)


def test_lz4_does_not_suit(tmp_path: Path) -> None:
    work = task(
        tmp_path / "out.parquet",
        wides(tmp_path, compression="lz4"),
        WIDE,
        options=replace(OPTIONS, codec="lz4_raw"),
    )
    assert not suits(Reading(work))


@pytest.mark.parametrize(
    ("maker", "trusted"),
    [
        ("parquet-mr version 1.17.1 (build 78a8d32)", True),
        ("parquet-mr version 1.9.0", False),
        ("parquet-mr version unknown", False),
        ("parquet-mr", False),
        ("parquet-cpp version 1.5.1-SNAPSHOT", False),
        ("parquet-cpp-arrow version 1.0.1", False),
        ("parquet-cpp-arrow version 26.0.1", True),
        ("parquet-java version 1.16.0", True),
        ("parquet-mr-trino version 412", False),
        ("DuckDB version v1.2.0 (build 5f5512b827)", False),
        ("parquet-rs version 53.0.0", False),
        ("Some writer version 9.9", False),
        ("impala", False),
        ("", False),
    ],
)
def test_pages_and_statistics_of_other_writers_are_not_taken_over(
    tmp_path: Path, maker: str, trusted: bool
) -> None:
    sources = wides(tmp_path)
    refoot(sources[0], lambda footer: footer.update({6: thrift.binary(maker.encode())}))
    out = tmp_path / "out.parquet"
    reading = Reading(task(out, sources, WIDE))
    if not trusted:
        with pytest.raises(Doubtful):
            concatenate(reading)
        assert not out.exists()
        return
    concatenate(reading)
    assert is_copied(out, sources, 1)


# --- schema evolution ---------------------------------------------------------------------------------------


def test_a_renamed_and_moved_column_is_copied(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    now = pa.schema([WIDE.field(2).with_name("session.id"), WIDE.field(0).with_name("number")])
    out = tmp_path / "out.parquet"
    join(out, sources, now)
    assert is_copied(out, sources, 3) and is_copied(out, sources, 1)
    rows = pa.concat_tables(pq.read_table(path, columns=["s", "n"]) for path in sources)
    assert pq.read_table(out).equals(rows.rename_columns(["session.id", "number"]))


def test_promoted_missing_and_loosened_columns_are_decoded(tmp_path: Path) -> None:
    old = pa.schema([column("n", 1, pa.int32(), required=True), column("v", 2, pa.float64(), required=True)])
    sources = wides(tmp_path, 2)
    numbers = list(range(ROWS))
    older = source(tmp_path / "old.parquet", pa.table([numbers, [n / 3 for n in numbers]], schema=old))
    now = pa.schema([WIDE.field(0), WIDE.field(1), WIDE.field(2), column("new", 9, pa.date32())])
    out = tmp_path / "out.parquet"
    work = task(out, [*sources, older], now)
    with pytest.raises(Doubtful):
        concatenate(Reading(work))
    rewrite(work)
    assert pq.read_table(out)["n"].to_pylist() == [*range(2 * ROWS), *numbers]
    # Alone, the newer files' columns can be copied; what no file has is null.
    join(out, sources, now)
    assert all(is_copied(out, sources, id_) for id_ in (1, 2, 3))
    assert pq.read_table(out)["new"].null_count == 2 * ROWS
    assert (
        pq.read_table(out)
        .drop_columns("new")
        .equals(pa.concat_tables(pq.read_table(path, columns=["n", "v", "s"]) for path in sources))
    )


def test_a_column_no_file_has_nulls_in_stays_required(tmp_path: Path) -> None:
    """Spark's writer makes a column required if its query has no nulls, though the table's is optional."""
    sources = wides(tmp_path)
    loose = pa.schema([field.with_nullable(True) for field in WIDE])
    out = tmp_path / "out.parquet"
    join(out, sources, loose)
    assert all(is_copied(out, sources, id_) for id_ in (1, 2, 3))
    assert [field.nullable for field in pq.read_schema(out)] == [False, True, True, True]
    assert_same_rows(out, sources)
    # Unless one of them does.
    numbers = [None, *range(3 * ROWS, 4 * ROWS - 1)]
    loose_rows = wide(3 * ROWS).set_column(0, loose.field(0), pa.array(numbers, pa.int64()))
    sources.append(source(tmp_path / "loose.parquet", loose_rows, use_dictionary=["device"]))
    join(out, sources, loose)
    assert [is_copied(out, sources, id_) for id_ in (1, 2, 3)] == [False, True, True]
    assert pq.read_table(out)["n"].to_pylist() == [*range(3 * ROWS), *numbers]


@pytest.mark.parametrize(
    "fields",
    [
        [column("l", 1, pa.list_(column("item", 2, pa.int64()))), column("n", 3, pa.int64())],
        [column("c", 1, pa.struct([column("d", 2, pa.int64())])), column("c.d", 3, pa.int64())],
    ],
)
def test_columns_that_cannot_be_asked_for_by_path_are_left_to_decoding(
    tmp_path: Path, fields: list[pa.Field]
) -> None:
    schema = pa.schema(fields)
    nested = [[n] if pa.types.is_list(fields[0].type) else {"d": n} for n in range(ROWS)]
    path = tmp_path / "in.parquet"
    source(path, pa.table([nested, list(range(ROWS))], schema=schema), use_compliant_nested_type=False)
    work = task(tmp_path / "out.parquet", [path], schema)
    with pytest.raises(Doubtful):
        concatenate(Reading(work))
    assert rewrite(work).rows == ROWS
    assert pq.read_table(tmp_path / "out.parquet").column(1).to_pylist() == list(range(ROWS))


def test_one_arrow_type_stored_in_two_ways(tmp_path: Path) -> None:
    """Small decimals are integers in Iceberg's files and byte strings in others."""
    schema = pa.schema([column("d", 1, pa.decimal128(9, 2)), column("n", 2, pa.int64())])
    numbers = list(range(2 * ROWS))
    rows = pa.table([[Decimal(n).scaleb(-2) for n in numbers], numbers], schema=schema)
    sources = [source(tmp_path / "0.parquet", rows.slice(0, ROWS)), tmp_path / "1.parquet"]
    pq.write_table(
        rows.slice(ROWS),
        sources[1],
        use_dictionary=False,
        compression="zstd",
        store_schema=False,
        write_page_checksum=True,
    )
    out = tmp_path / "out.parquet"
    join(out, sources, schema)
    assert [is_copied(out, sources, id_) for id_ in (1, 2)] == [False, True]
    assert_same_rows(out, sources)


def test_a_struct_is_copied_whole_or_not_at_all(tmp_path: Path) -> None:
    point = pa.struct([column("x", 2, pa.int64(), required=True), column("tag", 3, pa.string())])
    schema = pa.schema([column("p", 1, point), column("n", 4, pa.int64())])
    numbers = list(range(2 * ROWS))
    points = [{"x": n, "tag": f"t{n % 5}"} if n % 4 else None for n in numbers]
    rows = pa.table([points, numbers], schema=schema)
    plain = [source(tmp_path / f"{n}.parquet", rows.slice(n * ROWS, ROWS)) for n in range(2)]
    out = tmp_path / "out.parquet"
    join(out, plain, schema)
    assert all(is_copied(out, plain, id_) for id_ in (2, 3, 4))
    assert_same_rows(out, plain)
    mixed = [
        source(tmp_path / f"d{n}.parquet", rows.slice(n * ROWS, ROWS), use_dictionary=["p.tag"])
        for n in range(2)
    ]
    join(out, mixed, schema)
    assert [is_copied(out, mixed, id_) for id_ in (2, 3, 4)] == [False, False, True]
    assert_same_rows(out, mixed)


@pytest.mark.parametrize(
    "now",
    [
        [column("a", 7, pa.int64()), column("c", 9, pa.int64())],
        [column("b", 8, pa.int64()), column("a", 7, pa.int64())],
        [column("b", 8, pa.int64())],
    ],
)
def test_a_struct_whose_fields_changed_is_decoded(tmp_path: Path, now: list[pa.Field]) -> None:
    def schema(fields: list[pa.Field]) -> pa.Schema:
        return pa.schema([column("s", 1, pa.struct(fields)), column("n", 3, pa.int64())])

    then = [column("a", 7, pa.int64()), column("b", 8, pa.int64())]
    rows = [{"a": n, "b": -n} for n in range(ROWS)]
    path = source(tmp_path / "in.parquet", pa.table([rows, list(range(ROWS))], schema=schema(then)))
    out = tmp_path / "out.parquet"
    join(out, [path], schema(now))
    assert is_copied(out, [path], 3)
    assert pq.read_table(out)["s"].to_pylist() == [{f.name: row.get(f.name) for f in now} for row in rows]


def test_times_in_another_unit_are_decoded(tmp_path: Path) -> None:
    """Milliseconds and microseconds are the same Parquet type but for its annotation."""
    then = pa.schema([column("t", 1, pa.timestamp("ms")), column("n", 2, pa.int64())])
    now = pa.schema([column("t", 1, pa.timestamp("us")), column("n", 2, pa.int64())])
    rows = pa.table([list(range(ROWS)), list(range(ROWS))], schema=then)
    path = source(tmp_path / "in.parquet", rows)
    out = tmp_path / "out.parquet"
    join(out, [path], now)
    assert [is_copied(out, [path], id_) for id_ in (1, 2)] == [False, True]
    assert pq.read_table(out).equals(rows.cast(now))


def test_levels_of_one_number_that_mean_different_things(tmp_path: Path) -> None:
    """One level for nulls in both: of the struct in the file, of what is in it in the table."""
    file = pa.schema(
        [column("p", 1, pa.struct([column("x", 2, pa.int64(), required=True)])), column("n", 3, pa.int64())]
    )
    table = pa.schema(
        [column("p", 1, pa.struct([column("x", 2, pa.int64())]), required=True), column("n", 3, pa.int64())]
    )
    points = [None if n == 70 else {"x": n} for n in range(ROWS)]
    path = source(tmp_path / "in.parquet", pa.table([points, list(range(ROWS))], schema=file))
    with pytest.raises(Unfit, match="holds nulls"):
        concatenate(Reading(task(tmp_path / "out.parquet", [path], table)))
    assert not (tmp_path / "out.parquet").exists()


def test_row_lineage_is_made_up_beside_copied_columns(tmp_path: Path) -> None:
    sources = wides(tmp_path, 2)
    work = task(tmp_path / "out.parquet", sources, WIDE, row_lineage=True)
    first, second = work.slices
    slices = (
        replace(first, first_row_id=100_000, data_sequence_number=7),
        replace(second, first_row_id=500_000, data_sequence_number=9),
    )
    reading = Reading(replace(work, slices=slices))
    assert suits(reading)
    concatenate(reading)
    out = tmp_path / "out.parquet"
    table = pq.read_table(out)
    assert is_copied(out, sources, 1)
    assert table["_row_id"].to_pylist() == [*range(100_000, 100_000 + ROWS), *range(500_000, 500_000 + ROWS)]
    assert table["_last_updated_sequence_number"].to_pylist() == [7] * ROWS + [9] * ROWS
    assert [field.metadata for field in pq.read_schema(out)][-2:] == [field.metadata for field in LINEAGE]


def test_row_lineage_a_file_leaves_open_is_filled_in(tmp_path: Path) -> None:
    schema = pa.schema([*WIDE, *LINEAGE])
    rows = wide(0).append_column(LINEAGE[0], pa.array([None, 5] * (ROWS // 2), pa.int64()))
    rows = rows.append_column(LINEAGE[1], pa.array([None, 3] * (ROWS // 2), pa.int64()))
    path = source(tmp_path / "in.parquet", rows.cast(schema))
    work = task(tmp_path / "out.parquet", [path], WIDE, row_lineage=True)
    slices = (replace(work.slices[0], first_row_id=1_000_000, data_sequence_number=7),)
    concatenate(settled(Reading(replace(work, slices=slices))))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["_row_id"].to_pylist() == [1_000_000 + n if n % 2 == 0 else 5 for n in range(ROWS)]
    assert table["_last_updated_sequence_number"].to_pylist() == [7, 3] * (ROWS // 2)


# --- row groups and memory ----------------------------------------------------------------------------------


def test_many_row_groups_become_one(tmp_path: Path) -> None:
    sources = wides(tmp_path, 2, row_group_size=3_000, max_rows_per_page=10_000)
    assert pq.read_metadata(sources[0]).num_row_groups == 2
    out = tmp_path / "out.parquet"
    work = task(out, sources, WIDE)
    # Three thousand rows a chunk are tiny, but for their bytes.
    assert pq.read_metadata(sources[0]).row_group(0).column(0).total_compressed_size < 32 << 10
    assert not suits(Reading(work))
    sources = [
        source(path, wide(n * 12_000, 12_000), row_group_size=6_000, use_dictionary=False)
        for n, path in enumerate(sources)
    ]
    join(out, sources, WIDE)
    assert pq.read_metadata(out).num_row_groups == 1
    assert is_copied(out, sources, 1)
    assert_same_rows(out, sources)


def test_row_groups_are_cut_between_sources(tmp_path: Path) -> None:
    sources = wides(tmp_path, 8)
    size = sum(path.stat().st_size for path in sources)
    out = tmp_path / "out.parquet"
    file = join(out, sources, WIDE, options=replace(OPTIONS, row_group_bytes=size * 10 // 35))
    footer = pq.read_metadata(out)
    # Four, as few as the size allows, of two files each.
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [2 * ROWS] * 4
    assert len(file.split_offsets) == 4 and list(file.split_offsets) == sorted(set(file.split_offsets))
    assert_same_rows(out, sources)
    entries = thrift.value_of(footer_of(out), 4)
    assert [thrift.value_of(entry, 7) for entry in entries] == [0, 1, 2, 3]
    assert [thrift.value_of(entry, 5) for entry in entries] == list(file.split_offsets)


def test_row_groups_never_multiply(tmp_path: Path) -> None:
    sources = wides(tmp_path, 3)
    out = tmp_path / "out.parquet"
    join(out, sources, WIDE, options=replace(OPTIONS, row_group_bytes=1))
    assert pq.read_metadata(out).num_row_groups == 3


def test_a_small_budget_fetches_columns_one_by_one(tmp_path: Path) -> None:
    sources = wides(tmp_path, 4, use_dictionary=False)
    chunks = [pq.read_metadata(path).row_group(0).column(n) for path in sources for n in range(4)]
    largest = max(chunk.total_compressed_size for chunk in chunks)
    out = tmp_path / "out.parquet"
    reading = settled(Reading(task(out, sources, WIDE, memory_budget=4 * largest)))
    concatenate(reading)
    assert all(is_copied(out, sources, id_) for id_ in (1, 2, 3, 4))
    assert_same_rows(out, sources)


def test_a_chunk_that_would_fill_the_memory_is_decoded_in_batches(tmp_path: Path) -> None:
    schema = pa.schema([column("v", 1, pa.float64()), column("n", 2, pa.int64())])
    noise = random.Random(7)
    rows = pa.table([[noise.random() for _ in range(ROWS)], list(range(ROWS))], schema=schema)
    path = source(tmp_path / "in.parquet", rows)
    largest = pq.read_metadata(path).row_group(0).column(0).total_compressed_size
    out = tmp_path / "out.parquet"
    for budget, copied in ((4 * largest, True), (4 * largest - 1, False)):
        join(out, [path], schema, memory_budget=budget)
        assert is_copied(out, [path], 1) == copied
        assert_same_rows(out, [path])


def test_a_row_group_too_large_for_memory_is_left_to_decoding(tmp_path: Path) -> None:
    schema = pa.schema([column("n", 1, pa.int64()), column("blob", 2, pa.string())])
    rows = pa.table([list(range(20_000)), [f"{n % 50:01000d}" for n in range(20_000)]], schema=schema)
    # Pages of blobs are in another codec, so they must be decoded: 20 MB.
    path = source(tmp_path / "in.parquet", rows, compression={"blob": "gzip", "n": "zstd"})
    out = tmp_path / "out.parquet"
    work = task(out, [path], schema, memory_budget=3 << 20)
    with pytest.raises(Doubtful, match="memory"):
        concatenate(Reading(work))
    assert not out.exists()
    assert rewrite(work).rows == 20_000


@pytest.mark.parametrize(
    ("gap", "runs"),
    [(0, [[1, 2], [3], [4]]), (5, [[1, 2, 3], [4]]), (4, [[1, 2], [3], [4]]), (99, [[1, 2, 3, 4]])],
)
def test_chunks_side_by_side_come_in_one_request(gap: int, runs: list[list[int]]) -> None:
    spans = [(4, 10, 1), (14, 6, 2), (25, 5, 3), (100, 1, 4)]
    assert [[number for *_, number in run] for run in _near(spans, gap)] == runs


def test_handles_that_were_kept_are_used_and_closed(tmp_path: Path) -> None:
    """As those of an object store are, which cost a request each."""
    sources = wides(tmp_path, use_dictionary=False)
    out = tmp_path / "out.parquet"
    reading = settled(Reading(task(out, sources, WIDE)))
    handles = [reading.store.open(str(path)) for path in sources]
    reading.sources = [
        replace(each, handle=handle) for each, handle in zip(reading.sources, handles, strict=True)
    ]
    # Their names are gone: only what is open can be read.
    kept = [path.rename(path.with_suffix(".kept")) for path in sources]
    concatenate(reading)
    assert all(handle.closed for handle in handles)
    assert_same_rows(out, kept)


def test_the_pace_counts_what_is_read_written_and_read_back(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    out = tmp_path / "out.parquet"
    for pace, expected in (
        (Pace(read_bytes=1000.0), lambda: sum(path.stat().st_size for path in sources) + out.stat().st_size),
        (Pace(write_bytes=1000.0), lambda: out.stat().st_size),
    ):
        now = [0.0]
        reading = Reading(task(out, sources, WIDE))
        reading.encodings = replace(reading.encodings, open_questions=())
        reading.throttle = Throttle(
            pace, lambda now=now: now[0], lambda s, now=now: now.__setitem__(0, now[0] + s)
        )
        concatenate(reading)
        reading.throttle.settle()
        assert now[0] * 1000 == pytest.approx(expected(), rel=0.1)


# --- statistics ---------------------------------------------------------------------------------------------


def refoot(path: Path, change: Any) -> None:
    """Change what a file's footer says."""
    data, footer = path.read_bytes(), footer_of(path)
    size = int.from_bytes(data[-8:-4], "little")
    change(footer)
    changed = thrift.write(footer)
    path.write_bytes(data[: -8 - size] + changed + len(changed).to_bytes(4, "little") + b"PAR1")


def metadata_of(footer: Struct, place: int) -> Struct:
    """The first row group's column, as the footer has it."""
    (group,) = thrift.value_of(footer, 4)
    found: Struct = thrift.value_of(thrift.value_of(group, 1)[place], 3)
    return found


def statistics_of(footer: Struct, place: int) -> Struct:
    found: Struct = thrift.value_of(metadata_of(footer, place), 12)
    return found


def one_column(tmp_path: Path, kind: pa.DataType, files: Sequence[Sequence[Any]]) -> tuple[Path, list[Path]]:
    """A file for each list of values, which is repeated until it is no longer tiny; and the output."""
    schema = pa.schema([column("v", 1, kind), column("n", 2, pa.int64())])
    sources = []
    for number, values in enumerate(files):
        repeated = list(values) * (ROWS // len(values))
        rows = pa.table([pa.array(repeated, kind), list(range(len(repeated)))], schema=schema)
        sources.append(source(tmp_path / f"{number}.parquet", rows))
    return tmp_path / "out.parquet", sources


def join_one(output: Path, sources: list[Path]) -> Any:
    """The statistics of the column `v`, whose pages were copied, dictionary or not."""
    concatenate(settled(Reading(task(output, sources, pq.read_schema(sources[0])))))
    assert is_copied(output, sources, 1)
    return pq.read_metadata(output).row_group(0).column(0).statistics


@pytest.mark.parametrize(
    ("kind", "files", "least", "greatest"),
    [
        (pa.float64(), [[1.0, math.nan], [-0.0, 5.0]], -0.0, 5.0),
        (pa.float64(), [[0.0], [0.0, -1.0]], -1.0, 0.0),
        (pa.float64(), [[0.0, 2.0], [-0.0]], -0.0, 2.0),
        (pa.float32(), [[-math.inf], [math.inf, None]], -math.inf, math.inf),
        (pa.string(), [["a", "é"], ["z", ""], [None]], b"", "é".encode()),
        (pa.binary(), [[b"\x7f"], [b"\x80", b"\xff\x00"]], b"\x7f", b"\xff\x00"),
        (pa.binary(2), [[b"\x7fa"], [b"\x80b"]], b"\x7fa", b"\x80b"),
        (pa.bool_(), [[True], [False, None]], False, True),
        (pa.int32(), [[-1], [1], [None]], -1, 1),
        (pa.decimal128(9, 2), [[Decimal("-1.00")], [Decimal("1.00")]], -100, 100),
        (
            pa.decimal128(20, 2),
            [[Decimal("-1.00")], [Decimal("1.00")]],
            (-100).to_bytes(9, "big", signed=True),
            (100).to_bytes(9, "big"),
        ),
        (pa.date32(), [[date(1969, 12, 31)], [date(1970, 1, 1)]], -1, 0),
    ],
)
def test_bounds_of_all_files_together(
    tmp_path: Path, kind: pa.DataType, files: list[list[Any]], least: Any, greatest: Any
) -> None:
    out, sources = one_column(tmp_path, kind, files)
    found = join_one(out, sources)
    assert (found.min_raw, found.max_raw) == (least, greatest)
    if isinstance(least, float):
        signs = math.copysign(1, found.min_raw), math.copysign(1, found.max_raw)
        assert signs == (math.copysign(1, least), math.copysign(1, greatest))
    assert found.null_count == sum(values.count(None) * (ROWS // len(values)) for values in files)
    assert_stated_as_arrow_would(out, sources, tmp_path)


NAN = thrift.binary(struct.pack("<d", math.nan))


@pytest.mark.parametrize("change", [{1: NAN, 2: NAN, 5: NAN, 6: NAN}, {5: NAN, 6: NAN}, {6: NAN}, None])
def test_floats_without_bounds_are_decoded_to_find_them(tmp_path: Path, change: Struct | None) -> None:
    out, sources = one_column(tmp_path, pa.float64(), [[1.0, math.nan], [3.0]])

    def forget(footer: Struct) -> None:
        stated = statistics_of(footer, 0)
        for number in (1, 2, 5, 6):
            del stated[number]
        stated.update(change or {})

    refoot(sources[0], forget)
    concatenate(settled(Reading(task(out, sources, pq.read_schema(sources[0])))))
    assert [is_copied(out, sources, id_) for id_ in (1, 2)] == [False, True]
    found = pq.read_metadata(out).row_group(0).column(0).statistics
    assert (found.min_raw, found.max_raw) == (1.0, 3.0)


def test_a_zero_bound_stands_for_either_zero(tmp_path: Path) -> None:
    """Other writers state the zero they met; a reader that tells zeros apart must not pass over the other."""
    out, sources = one_column(tmp_path, pa.float64(), [[0.0, -0.0], [0.0]])
    least, greatest = (thrift.binary(struct.pack("<d", zero)) for zero in (0.0, -0.0))
    for path in sources:
        refoot(path, lambda footer: statistics_of(footer, 0).update({5: greatest, 6: least}))
    found = join_one(out, sources)
    assert (math.copysign(1, found.min_raw), math.copysign(1, found.max_raw)) == (-1, 1)


def test_floats_that_are_all_null_are_copied(tmp_path: Path) -> None:
    out, sources = one_column(tmp_path, pa.float64(), [[None], [None]])
    found = join_one(out, sources)
    assert not found.has_min_max and found.null_count == 2 * ROWS


def test_bounds_shortened_by_their_writer_stay_bounds(tmp_path: Path) -> None:
    """Java's writer may cut long strings: the least is cut off, the greatest cut and raised."""
    out, sources = one_column(tmp_path, pa.string(), [["mmm long"], ["aaa long", "zzz long"]])
    cut = {
        5: thrift.binary(b"zz{"),
        6: thrift.binary(b"aa"),
        7: thrift.boolean(False),
        8: thrift.boolean(False),
    }
    refoot(sources[1], lambda footer: statistics_of(footer, 0).update(cut))
    found = join_one(out, sources)
    assert (found.min_raw, found.max_raw) == (b"aa", b"zz{")
    # Nothing claims that they are exact.
    assert not {7, 8} & set(statistics_of(footer_of(out), 0))
    where = duckdb.sql(f"select count(*) from '{out}' where v = 'zzz long'").fetchall()
    assert where == [(ROWS // 2,)]


@pytest.mark.parametrize("gone", [(3,), (5,), (1, 5, 2, 6), (1, 2, 3, 5, 6)])
def test_what_one_file_does_not_state_is_not_stated(tmp_path: Path, gone: tuple[int, ...]) -> None:
    out, sources = one_column(tmp_path, pa.string(), [["a"], ["b"]])

    def forget(footer: Struct) -> None:
        for number in gone:
            statistics_of(footer, 0).pop(number, None)

    refoot(sources[0], forget)
    found = join_one(out, sources)
    assert found.has_null_count == (3 not in gone)
    assert found.has_min_max == (5 not in gone)


def test_long_bounds_are_left_out(tmp_path: Path) -> None:
    out, sources = one_column(tmp_path, pa.string(), [["a"], ["b"]])
    refoot(sources[0], lambda footer: statistics_of(footer, 0).update({6: thrift.binary(b"a" * 5000)}))
    assert not join_one(out, sources).has_min_max


def test_nothing_of_the_sources_indexes_is_left(tmp_path: Path) -> None:
    sources = wides(tmp_path, write_page_index=True, bloom_filter_options={"n": {"ndv": 10_000, "fpp": 0.05}})
    assert 14 in metadata_of(footer_of(sources[0]), 0)
    out = tmp_path / "out.parquet"
    join(out, sources, WIDE)
    (group,) = thrift.value_of(footer_of(out), 4)
    for entry in thrift.value_of(group, 1):
        assert not {1, 4, 5, 6, 7, 8, 9} & set(entry)
        assert not {8, 10, 14, 15} & set(thrift.value_of(entry, 3))
    assert_same_rows(out, sources)


def test_a_chunk_arrow_encoded_moves_without_its_indexes() -> None:
    sink = pa.BufferOutputStream()
    rows = pa.table({"s": ["a", "b", "a"] * 100})
    pq.write_table(
        rows,
        sink,
        write_page_index=True,
        bloom_filter_options={"s": {"ndv": 10, "fpp": 0.05}},
    )
    (chunk,) = encoded_chunks(sink.getvalue(), rows)
    assert {4, 5, 6, 7} <= set(chunk.entry) and {14, 15} <= set(thrift.value_of(chunk.entry, 3))
    moved = chunk.at(1000)
    assert set(moved) == {2, 3} and not {14, 15} & set(thrift.value_of(moved, 3))
    before = thrift.value_of(chunk.entry, 3)
    data, dictionary = (thrift.value_of(thrift.value_of(moved, 3), number) for number in (9, 11))
    assert (dictionary, data) == (1000, 1000 + thrift.value_of(before, 9) - thrift.value_of(before, 11))


def test_sizes_add_up(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    join(out, wides(tmp_path), WIDE)
    group = pq.read_metadata(out).row_group(0)
    chunks = [group.column(n) for n in range(group.num_columns)]
    assert group.total_byte_size == sum(chunk.total_uncompressed_size for chunk in chunks)
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    ends = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
    assert starts == [4, *ends[:-1]]
    assert thrift.value_of(thrift.value_of(footer_of(out), 4)[0], 6) == ends[-1] - 4


# --- pages that are not what they should be -----------------------------------------------------------------


@pytest.mark.parametrize("offset", [True, False])
def test_a_dictionary_the_footer_hides_is_left_to_decoding(tmp_path: Path, offset: bool) -> None:
    schema = pa.schema([column("v", 1, pa.int64()), column("n", 2, pa.int64())])
    rows = pa.table([[n % 9 for n in range(ROWS)], list(range(ROWS))], schema=schema)
    path = source(tmp_path / "in.parquet", rows, use_dictionary=["v"])

    def hide(footer: Struct) -> None:
        chunk = metadata_of(footer, 0)
        if offset:
            chunk[9] = chunk.pop(11)
        chunk[2] = thrift.listed(thrift.I32, [0, 3])

    refoot(path, hide)
    out = tmp_path / "out.parquet"
    reading = settled(Reading(task(out, [path], schema)))
    if not offset:
        # That there is one is seen from the footer, and only this column is decoded.
        concatenate(reading)
        assert pq.read_table(out).equals(rows) and is_copied(out, [path], 2)
        return
    with pytest.raises(Doubtful, match="column v"):
        concatenate(reading)
    assert not out.exists()


def test_an_encoding_the_footer_hides_is_left_to_decoding(tmp_path: Path) -> None:
    out, sources = one_column(tmp_path, pa.int64(), [list(range(ROWS)), list(range(ROWS, 2 * ROWS))])
    rows = pq.read_table(sources[1])
    source(sources[1], rows, column_encoding={"v": "DELTA_BINARY_PACKED", "n": "PLAIN"})
    refoot(sources[1], lambda footer: metadata_of(footer, 0).update({2: thrift.listed(thrift.I32, [0, 3])}))
    with pytest.raises(Doubtful, match="column v"):
        concatenate(Reading(task(out, sources, rows.schema)))
    assert not out.exists()


def damage(path: Path, place: int, offset: int) -> None:
    """Flip bits inside the column's chunk, so far from its end."""
    chunk = pq.read_metadata(path).row_group(0).column(place)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - offset] ^= 0x55
    path.write_bytes(bytes(data))


def test_a_page_whose_checksum_differs_is_named(tmp_path: Path) -> None:
    sources = wides(tmp_path, write_page_checksum=True)
    out = tmp_path / "out.parquet"
    join(out, sources, WIDE)
    out.unlink()
    damage(sources[1], 2, 50)
    with pytest.raises(PagesDiffer, match=f"{sources[1]}, column s: .*checksum"):
        concatenate(settled(Reading(task(out, sources, WIDE))))
    assert not out.exists()


def test_a_header_that_is_damaged_is_left_to_decoding(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    chunk = pq.read_metadata(sources[1]).row_group(0).column(0)
    data = bytearray(sources[1].read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 40] = b"\xff" * 40
    sources[1].write_bytes(bytes(data))
    out = tmp_path / "out.parquet"
    with pytest.raises(Doubtful):
        concatenate(settled(Reading(task(out, sources, WIDE))))
    with pytest.raises(MissingSource) as caught:
        rewrite(task(out, sources, WIDE))
    assert caught.value.path == str(sources[1])
    assert not out.exists()


@pytest.mark.parametrize(("field", "by"), [(7, -1), (7, 1), (9, 1)])
def test_sizes_that_do_not_lead_to_the_end_are_left_to_decoding(tmp_path: Path, field: int, by: int) -> None:
    sources = wides(tmp_path)

    def shift(footer: Struct) -> None:
        chunk = metadata_of(footer, 1)
        chunk[field] = thrift.i64(thrift.value_of(chunk, field) + by)

    refoot(sources[2], shift)
    out = tmp_path / "out.parquet"
    with pytest.raises(Doubtful):
        concatenate(settled(Reading(task(out, sources, WIDE))))
    assert not out.exists()


def test_values_that_do_not_add_up_are_named(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    refoot(sources[0], lambda footer: metadata_of(footer, 1).update({5: thrift.i64(ROWS - 1)}))
    out = tmp_path / "out.parquet"
    with pytest.raises(PagesDiffer, match="says 5999 values, its pages 6000"):
        rewrite(task(out, sources, WIDE))
    assert not out.exists()


LISTS = pa.schema([column("n", 1, pa.int64()), column("l", 2, pa.list_(column("element", 3, pa.int64())))])


def lists(first: int, rows: int = ROWS) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table([list(numbers), [[n, n] for n in numbers]], schema=LISTS)


def with_chunk_of(path: Path, other: Path, place: int) -> None:
    """Replace a file's column chunk by another file's, and nothing else that the footer says."""
    data, footer = bytearray(b"PAR1"), footer_of(path)
    files = [path.read_bytes(), other.read_bytes()]
    (group,), (foreign,) = (thrift.value_of(each, 4) for each in (footer, footer_of(other)))
    entries = list(thrift.value_of(group, 1))
    entries[place] = thrift.value_of(foreign, 1)[place]
    for number, entry in enumerate(entries):
        chunk = thrift.value_of(entry, 3)
        start, size = thrift.value_of(chunk, 9), thrift.value_of(chunk, 7)
        chunk[9] = thrift.i64(len(data))
        data += files[number == place][start : start + size]
    group[1] = thrift.listed(thrift.STRUCT, entries)
    changed = thrift.write(footer)
    path.write_bytes(bytes(data) + changed + len(changed).to_bytes(4, "little") + b"PAR1")


def test_lists_of_one_row_too_many_do_not_move_to_other_rows(tmp_path: Path) -> None:
    """Every reader ignores it at the end of its file. Copied, it would push the lists of all files after it by a row."""
    sources = [source(tmp_path / f"{n}.parquet", lists(n * ROWS)) for n in range(3)]
    with_chunk_of(sources[0], source(tmp_path / "longer.parquet", lists(0, ROWS + 1)), 1)
    assert pq.read_table(sources[0]).equals(lists(0))
    out = tmp_path / "out.parquet"
    done = rewrite(task(out, sources, LISTS, digest=True))
    assert [is_copied(out, sources, id_) for id_ in (1, 3)] == [True, False]
    assert done.copied and done.read is not None and done.read == done.written
    assert pq.read_table(out).equals(lists(0, 3 * ROWS))


def test_lists_of_one_row_too_few_are_named(tmp_path: Path) -> None:
    """As many values as rows, but two of them in one row: counting values does not tell."""
    alone = [
        pa.table([range(n, n + ROWS), [[each] for each in range(n, n + ROWS)]], schema=LISTS)
        for n in (0, ROWS)
    ]
    sources = [source(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate(alone)]
    fewer = [[0, 1], *([each] for each in range(2, ROWS))]
    other = pa.table([range(ROWS - 1), fewer], schema=LISTS)
    with_chunk_of(sources[0], source(tmp_path / "shorter.parquet", other), 1)
    out = tmp_path / "out.parquet"
    with pytest.raises(RowsDiffer) as caught:
        rewrite(task(out, sources, LISTS, digest=True))
    assert caught.value.path == str(sources[0]) and not out.exists()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(column("element", 2, pa.int64())), [1, None]),
        (pa.map_(column("key", 2, pa.int64(), required=True), column("value", 3, pa.int64())), [(1, 2)]),
        (pa.struct([column("l", 2, pa.list_(column("element", 3, pa.int64())))]), {"l": [1]}),
    ],
    ids=["list", "map", "list in a struct"],
)
def test_a_table_of_lists_alone_does_not_suit(tmp_path: Path, kind: pa.DataType, value: Any) -> None:
    schema = pa.schema([column("v", 1, kind)])
    path = source(tmp_path / "in.parquet", pa.table([[value] * ROWS], schema=schema))
    work = task(tmp_path / "out.parquet", [path], schema)
    assert not suits(Reading(work))
    with pytest.raises(Doubtful):
        concatenate(settled(Reading(work)))


def test_a_file_cut_off_since_its_footer_was_read(tmp_path: Path) -> None:
    sources = wides(tmp_path, use_dictionary=False)
    reading = Reading(task(tmp_path / "out.parquet", sources, pa.schema([WIDE.field(0), WIDE.field(1)])))
    settled(reading)
    sources[2].write_bytes(sources[2].read_bytes()[:2000])
    with pytest.raises(MissingSource, match="ends before byte") as caught:
        concatenate(reading)
    assert caught.value.path == str(sources[2])
    assert not (tmp_path / "out.parquet").exists()


class _WornFile:
    """A file on a disk that stores one byte of what it is given wrongly, or loses it."""

    def __init__(self, path: str, at: int, byte: bytes) -> None:
        self._file = Path(path).open("wb")  # noqa: SIM115
        self._at, self._byte, self.closed = at, byte, False

    def write(self, data: Any) -> int:
        data, start = bytes(data), self._file.tell()
        if start <= self._at < start + len(data):
            data = data[: self._at - start] + self._byte + data[self._at - start + 1 :]
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
        self.closed = True


class WornStore(Store):
    def __init__(self, at: int, byte: bytes) -> None:
        super().__init__({})
        self._where = at, byte

    def create(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_WornFile(path, *self._where), mode="w")


@pytest.mark.parametrize("byte", [b"\x00", b"", b"\xff"])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_byte_stored_wrongly_is_noticed(tmp_path: Path, place: int, byte: bytes) -> None:
    sources = wides(tmp_path)
    out = tmp_path / "out.parquet"
    join(out, sources, WIDE)
    chunk = pq.read_metadata(out).row_group(0).column(place)
    at = chunk.data_page_offset + chunk.total_compressed_size // 3
    if out.read_bytes()[at : at + 1] == byte:
        at += 1
    reading = Reading(task(out, sources, WIDE))
    reading.store = WornStore(at, byte)
    with pytest.raises(PagesDiffer) as caught:
        concatenate(reading)
    assert caught.value.path == str(out)
    assert caught.value.column == (WIDE.names[place] if byte else "")
    assert not out.exists()


@pytest.mark.parametrize("back", [3, 30, 300])
def test_a_footer_stored_wrongly_is_noticed(tmp_path: Path, back: int) -> None:
    sources = wides(tmp_path)
    out = tmp_path / "out.parquet"
    file = join(out, sources, WIDE)
    byte = bytes([out.read_bytes()[-back] ^ 1])
    reading = Reading(task(out, sources, WIDE))
    reading.store = WornStore(file.size - back, byte)
    with pytest.raises(PagesDiffer, match=f"pages of {out}: the stored bytes differ"):
        concatenate(reading)
    assert not out.exists()


def test_errors_travel_by_pickle() -> None:
    error = PagesDiffer("file:/a", "c", "why")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "copy pages of file:/a, column c: why"


def test_the_kernel_copies_where_it_can(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    out = tmp_path / "out.parquet"
    done = rewrite(task(out, sources, WIDE, digest=True))
    assert is_copied(out, sources, 1)
    assert (done.rows, done.copied) == (3 * ROWS, True)
    assert done.read is not None and done.read == done.written
    assert [part.first for part in done.parts] == [0, ROWS, 2 * ROWS]


# --- any schema ---------------------------------------------------------------------------------------------

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(7, 2): st.decimals(-9999, 9999, places=2),
    pa.decimal128(30, 3): st.decimals(-(10**20), 10**20, places=3),
    pa.list_(column("element", 99, pa.int32())): st.lists(st.none() | st.integers(-5, 5), max_size=3),
    pa.struct([column("a", 97, pa.string()), column("b", 98, pa.float64(), required=True)]): st.builds(
        lambda a, b: {"a": a, "b": b}, st.none() | st.text(max_size=2), st.floats()
    ),
}


@st.composite
def lakes(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.Table], list[dict[str, Any]]]:
    """A schema, files of it, and how each was written."""
    nested = st.sampled_from(list(KINDS)[-2:])
    plain = st.lists(st.sampled_from(list(KINDS)[:-2]), min_size=1, max_size=4)
    kinds = [*draw(plain), *draw(st.lists(nested, max_size=1))]
    schema = pa.schema([column(f"c{n}", n + 1, kind, draw(st.booleans())) for n, kind in enumerate(kinds)])
    files = [
        pa.table(
            [draw(rows_of(field, count)) for field in schema],
            schema=schema,
        )
        for count in draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    ]
    how = st.fixed_dictionaries(
        {
            "data_page_version": st.sampled_from(["1.0", "1.0", "2.0"]),
            "compression": st.sampled_from(["zstd", "zstd", "zstd", "snappy"]),
            "use_dictionary": st.sampled_from([False, False, False, True]),
            "row_group_size": st.integers(1, 12),
            "max_rows_per_page": st.integers(1, 5),
            "write_page_checksum": st.booleans(),
        }
    )
    return schema, files, [draw(how) for _ in files]


def rows_of(field: pa.Field, count: int) -> st.SearchStrategy[pa.Array]:
    values = KINDS[field.type] if not field.nullable else st.none() | KINDS[field.type]
    return st.lists(values, min_size=count, max_size=count).map(lambda found: pa.array(found, field.type))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lakes(), st.booleans(), st.integers(1, 2000))
def test_any_rows_come_out_as_they_went_in(
    lake: tuple[pa.Schema, list[pa.Table], list[dict[str, Any]]], asked: bool, group_bytes: int
) -> None:
    schema, tables, how = lake
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # No page is too small here, so that examples can be.
        patch.setattr(copyable, "_LEAST_VALUES", 0)
        sources = [
            source(Path(folder, f"{n}.parquet"), table, **each)
            for n, (table, each) in enumerate(zip(tables, how, strict=True))
        ]
        out = Path(folder, "out.parquet")
        options = replace(OPTIONS, row_group_bytes=group_bytes)
        reading = Reading(task(out, sources, schema, options=options))
        try:
            concatenate(reading if asked else settled(reading))
        except Doubtful:
            assert not out.exists()
            return
        check(out, sources, pa.concat_tables(tables))


def check(out: Path, sources: list[Path], rows: pa.Table) -> None:
    # NaN is equal to nothing, so rows are compared as text.
    found = pq.read_table(out, use_threads=False)
    assert repr(found.to_pylist()) == repr(rows.to_pylist())
    assert repr(pl.read_parquet(out).rows()) == repr(pl.concat(map(pl.read_parquet, sources)).rows())
    assert pq.read_metadata(out).num_row_groups <= sum(
        pq.read_metadata(path).num_row_groups for path in sources
    )
    check_bounds(out, found)


def check_bounds(out: Path, rows: pa.Table) -> None:
    """No reader may pass over a row group by its statistics that has what it looks for."""
    footer = pq.read_metadata(out)
    first = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        here = rows.slice(first, group.num_rows)
        first += group.num_rows
        for place, name in enumerate(rows.column_names):
            chunk = group.column(place)
            if chunk.path_in_schema != name or not chunk.is_stats_set:
                break  # columns after a nested one have other places
            values = [v for v in here[name].to_pylist() if v is not None and v == v]
            said = chunk.statistics
            assert said.null_count == here[name].null_count
            if said.has_min_max:
                assert values and min(values) == said.min and max(values) == said.max
