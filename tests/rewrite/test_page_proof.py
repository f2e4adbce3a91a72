"""What is proven where pages are copied: no page without a right checksum, and no encoder is believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.rewrite.arrow import _gather, _trouble
from lakewarden.rewrite.digest import Digest, Entries, digest_in_place
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.pages import copy as pages
from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.pages.assembly import footer_of, octets
from lakewarden.rewrite.pages.chunks import CODECS, PagesDiffer, _looks_like, dictionary_statistics
from lakewarden.rewrite.read.project import Projection, Unfit
from lakewarden.rewrite.read.store import DamagedSource, MissingSource
from lakewarden.rewrite.task import Reading, TaskResult
from lakewarden.rewrite.write.encoding import WriteOptions
from tests.rewrite.test_pages import (
    ROWS,
    WIDE,
    damage,
    is_copied,
    metadata_of,
    refoot,
    source,
    task,
    wide,
    wides,
)
from tests.rewrite.test_rewrite_kernel import column

MANY = 25_000


def page_headers(path: Path) -> list[thrift.Struct]:
    """Every page header of a file, dictionary pages too."""
    data, footer, found = path.read_bytes(), pq.read_metadata(path), []
    for group in (footer.row_group(n) for n in range(footer.num_row_groups)):
        for chunk in (group.column(n) for n in range(group.num_columns)):
            at = chunk.dictionary_page_offset or chunk.data_page_offset
            end = at + chunk.total_compressed_size
            while at < end:
                header, body = thrift.read(data, at)
                found.append(header)
                at = body + thrift.value_of(header, 3)
    return found


CODEC = "write.parquet.compression-codec"


def rewritten(tmp_path: Path, sources: list[Path], **more: Any) -> tuple[Path, TaskResult]:
    out = tmp_path / "out.parquet"
    return out, rewrite(task(out, sources, WIDE, digest=True, **more))


# --- a page is copied only if its checksum is there, and right -----------------------------------------------


def test_pages_without_a_checksum_are_decoded_and_every_row_is_hashed(tmp_path: Path) -> None:
    sources = wides(tmp_path, write_page_checksum=False)
    out, done = rewritten(tmp_path, sources)
    assert not done.copied
    assert done.read == done.written and done.read is not None and done.read.rows == 3 * ROWS
    assert pq.read_table(out).equals(pa.concat_tables(pq.read_table(path) for path in sources))


def test_one_file_without_checksums_among_others_is_not_copied(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    source(sources[2], wide(2 * ROWS), use_dictionary=["device"], write_page_checksum=False)
    _, done = rewritten(tmp_path, sources)
    assert not done.copied and done.read is not None


def test_a_damaged_page_without_a_checksum_stops_the_rewrite_by_name(tmp_path: Path) -> None:
    """It used to be copied: the healthy rows beside it could then no longer be read."""
    # Files whose footers tell enough, so that no rows are looked at before they are copied.
    sources = [
        source(tmp_path / f"in-{n}.parquet", wide(n * MANY, MANY), write_page_checksum=False)
        for n in range(4)
    ]
    chunk = pq.read_metadata(sources[1]).row_group(0).column(2)
    data = bytearray(sources[1].read_bytes())
    _, at = thrift.read(data, chunk.data_page_offset)
    data[at : at + 4] = b"\xff\xff\xff\xff"
    sources[1].write_bytes(bytes(data))
    with pytest.raises((OSError, pa.ArrowException)):
        pq.read_table(sources[1])
    with pytest.raises(DamagedSource) as caught:
        rewritten(tmp_path, sources)
    assert caught.value.path == str(sources[1])
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("codec", ["zstd", "gzip"])  # a frame of zstd says how long its content is
def test_a_damaged_page_header_stops_the_rewrite_by_name(tmp_path: Path, codec: str) -> None:
    """A page's checksum covers its body. One bit of the size that its header states, and nobody can read the page."""
    sources = [
        source(tmp_path / f"in-{n}.parquet", wide(n * MANY, MANY), compression=codec) for n in range(4)
    ]
    at = pq.read_metadata(sources[1]).row_group(0).column(0).data_page_offset
    data = bytearray(sources[1].read_bytes())
    header, body = thrift.read(data, at)
    wrong = thrift.write({**header, 2: thrift.i32(thrift.value_of(header, 2) ^ 8)})
    assert len(wrong) == body - at
    data[at:body] = wrong
    sources[1].write_bytes(bytes(data))
    with pytest.raises(DamagedSource) as caught:
        rewritten(tmp_path, sources, options=WriteOptions.from_properties({CODEC: codec}))
    assert caught.value.path == str(sources[1])


def test_a_damaged_file_goes_to_no_other_engine() -> None:
    """A more lenient decoder would make rows of it, and give them checksums."""
    found = _trouble(DamagedSource("a.parquet", "bad page"))
    assert (found.unfit, found.path) == (False, "a.parquet") and "fsck" in found.reason
    assert _trouble(MissingSource("a.parquet", "no access")).unfit


@pytest.mark.parametrize("backwards", [False, True])
def test_a_group_with_a_damaged_file_goes_to_no_other_engine(backwards: bool) -> None:
    """Another file of it is unfit for the kernel: whichever is found first, Iceberg's writer must not get the damaged one."""
    found = [_trouble(Unfit("column x is an INT96 timestamp", "a")), _trouble(DamagedSource("b", "CRC"))]
    order, group = Mock(sort_order_id=0), Mock(ordered=False, clustering="", partition_id=0)
    trouble = _gather(order, group, found[::-1] if backwards else found).trouble
    assert trouble is not None and (trouble.unfit, trouble.path) == (False, "b")


@pytest.mark.parametrize("place", [0, 3])
def test_a_wrong_checksum_stops_the_rewrite_whether_the_page_is_copied_or_decoded(
    tmp_path: Path, place: int
) -> None:
    sources = wides(tmp_path)
    damage(sources[1], place, 50)
    with pytest.raises((PagesDiffer, MissingSource)) as caught:
        rewritten(tmp_path, sources)
    assert caught.value.path == str(sources[1])
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("checksums", [True, False])
def test_every_page_that_is_written_has_a_checksum(tmp_path: Path, checksums: bool) -> None:
    out, done = rewritten(tmp_path, wides(tmp_path, write_page_checksum=checksums))
    assert done.copied == checksums
    assert [header for header in page_headers(out) if thrift.value_of(header, 4) is None] == []
    pq.read_table(out, page_checksum_verification=True)


# The codecs of the page and, as a footer states them: one bit lies between most of them.
FLIPS = [
    ("snappy", "none", 0),
    ("gzip", "none", 0),
    ("gzip", "zstd", 6),
    ("zstd", "gzip", 2),
    ("none", "snappy", 1),
]


@pytest.mark.parametrize(("was", "stated", "number"), FLIPS)
def test_a_damaged_codec_in_a_footer_stops_the_rewrite_by_name(
    tmp_path: Path, was: str, stated: str, number: int
) -> None:
    """The footer has no checksum. Pages that were copied as pages of another codec made an output that nothing can read."""
    beside = ["v", "s", "device"]
    sources = [
        source(tmp_path / f"in-{n}.parquet", wide(n * MANY, MANY), compression=stated) for n in range(3)
    ]
    mixed = {"n": was, **dict.fromkeys(beside, stated)}
    source(sources[1], wide(MANY, MANY), compression=mixed, compression_level=None)
    refoot(sources[1], lambda footer: metadata_of(footer, 0).update({4: thrift.i32(number)}))
    options = WriteOptions.from_properties(
        {"write.parquet.compression-codec": stated.replace("none", "uncompressed")}
    )
    with pytest.raises((DamagedSource, PagesDiffer)) as caught:
        rewritten(tmp_path, sources, options=options)
    assert caught.value.path == str(sources[1])
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("codec", ["snappy", "gzip"])
def test_compressed_bytes_are_not_taken_for_values(tmp_path: Path, codec: str) -> None:
    """Values that do not compress: a codec that is lost leaves enough bytes for as many values, all of them wrong."""
    schema = pa.schema([column("n", 1, pa.int64(), required=True)])
    options = WriteOptions.from_properties({"write.parquet.compression-codec": "uncompressed"})
    sources = []
    for number in range(3):
        values = np.random.default_rng(number).integers(-(2**62), 2**62, MANY)
        how = "none" if number != 1 else codec
        path = tmp_path / f"in-{number}.parquet"
        sources.append(source(path, pa.table([values], schema=schema), compression=how))
    refoot(sources[1], lambda footer: metadata_of(footer, 0).update({4: thrift.i32(0)}))
    with pytest.raises(PagesDiffer, match="does not look like UNCOMPRESSED") as caught:
        rewrite(task(tmp_path / "out.parquet", sources, schema, digest=True, options=options))
    assert caught.value.path == str(sources[1])


@pytest.mark.parametrize("codec", ["SNAPPY", "GZIP", "ZSTD"])
@pytest.mark.parametrize("size", [1, 200, 255, 256, 700, 65_535, 65_792, 100_000, 20_000_000])
def test_a_page_looks_like_its_own_codec_only(codec: str, size: int) -> None:
    body = octets(pa.Codec(codec.lower()).compress(b"x" * size))
    assert {each for each in CODECS if _looks_like(each, size, body)} == {codec, "UNCOMPRESSED"}
    assert _looks_like(codec, size + 1, body) == (codec == "GZIP")
    assert not _looks_like(codec, size, body[:0])


# --- what is encoded again is hashed at the encoder ----------------------------------------------------------------------

Spoil = Callable[[pa.Table], pa.Table]


def reverse_one_column(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("device")
    return rows.set_column(place, rows.schema.field(place), rows.column(place).take(backwards(rows)))


def reverse_every_row(rows: pa.Table) -> pa.Table:
    """All decoded columns alike, so that each row of them is whole, and stands beside another row's copied columns."""
    return rows.take(backwards(rows))


def swap_two_rows(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array([0, 2, 1, *range(3, rows.num_rows)]))


def repeat_one_row(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array([0, 0, *range(2, rows.num_rows)]))


def backwards(rows: pa.Table) -> pa.Array:
    return pa.array(range(rows.num_rows - 1, -1, -1))


@pytest.mark.parametrize("spoil", [reverse_one_column, reverse_every_row, swap_two_rows, repeat_one_row])
@pytest.mark.parametrize("lineage", [False, True], ids=["v2", "v3"])
def test_an_encoder_that_writes_other_values_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, lineage: bool
) -> None:
    honest = pages.arrow_file

    def broken(schema: pa.Schema, encodings: Any, work: Any, rows: pa.Table, *rest: Any) -> pa.Buffer:
        return honest(schema, encodings, work, spoil(rows), *rest)

    monkeypatch.setattr(pages, "arrow_file", broken)
    sources = wides(tmp_path)
    out, done = rewritten(tmp_path, sources, row_lineage=lineage)
    assert done.copied and is_copied(out, sources, 1)
    assert done.read is not None and done.written is not None
    assert done.read.rows == done.written.rows == 3 * ROWS, "the count is right"
    assert done.read != done.written


def test_a_projection_that_mixes_up_rows_beside_copied_columns_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Reading._output_batch

    def broken(self: Reading, *arguments: Any) -> pa.RecordBatch:
        batch = honest(self, *arguments)
        return batch.take(pa.array([1, 0, *range(2, batch.num_rows)]))

    monkeypatch.setattr(Reading, "_output_batch", broken)
    _, done = rewritten(tmp_path, wides(tmp_path))
    assert done.copied and done.read != done.written


def test_row_ids_that_are_written_are_hashed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made up in the task, and no part of a row's digest: here they are compared all the same."""
    honest = pages.arrow_file

    def broken(schema: pa.Schema, encodings: Any, work: Any, rows: pa.Table, *rest: Any) -> pa.Buffer:
        place = rows.schema.get_field_index("_row_id")
        rows = rows.set_column(place, schema.field(place), rows.column(place).take(backwards(rows)))
        return honest(schema, encodings, work, rows, *rest)

    monkeypatch.setattr(pages, "arrow_file", broken)
    work = task(tmp_path / "out.parquet", wides(tmp_path), WIDE, digest=True, row_lineage=True)
    slices = tuple(
        type(each)(each.path, each.size, each.rows, 0, each.rows, 7, 1_000 * n)
        for n, each in enumerate(work.slices)
    )
    done = rewrite(type(work)(**{**{f: getattr(work, f) for f in work.__slots__}, "slices": slices}))
    assert done.copied and done.read != done.written


@pytest.mark.parametrize("copy_pages", [True, False])
def test_row_ids_that_go_to_other_rows_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy_pages: bool
) -> None:
    """A row's id is no part of its digest. It is bound to the row all the same, from the source file to the encoder."""
    honest = Reading._output_batch

    def mixed_up(self: Reading, source: Any, batch: pa.RecordBatch, *rest: Any) -> pa.RecordBatch:
        made = honest(self, source, batch, *rest)
        place = made.schema.get_field_index("_row_id")
        ids = made.column(place).take(pa.array(range(made.num_rows - 1, -1, -1)))
        return made.set_column(place, made.schema.field(place), ids)

    work = task(
        tmp_path / "out.parquet", wides(tmp_path), WIDE, digest=True, row_lineage=True, copy_pages=copy_pages
    )
    slices = tuple(
        replace(each, data_sequence_number=7, first_row_id=1_000 * n) for n, each in enumerate(work.slices)
    )
    work = replace(work, slices=slices)
    done = rewrite(work)
    assert done.copied is copy_pages and done.read == done.written
    monkeypatch.setattr(Reading, "_output_batch", mixed_up)
    done = rewrite(replace(work, outputs=(str(tmp_path / "mixed.parquet"),)))
    assert done.copied is copy_pages and done.read != done.written


# --- rows of a nested column that changed since its file was written -------------------------------------------


def grown(*fields: pa.Field) -> pa.Schema:
    """A struct of these fields, alone and in a list, beside a plain column that may be copied."""
    element = pa.list_(column("element", 3, pa.struct(fields)))
    return pa.schema([column("n", 1, pa.int64()), column("s", 2, pa.struct(fields)), column("l", 4, element)])


THEN = grown(column("a", 10, pa.int32()), column("b", 11, pa.string()))
NOW = grown(column("bee", 11, pa.string()), column("c", 12, pa.float64()))


def changed_shape(tmp_path: Path, copy_pages: bool) -> tuple[Path, Callable[[], TaskResult]]:
    """A file of a struct that lost a field, got one and renamed one; and its rewrite."""
    points = [None if n % 9 == 0 else {"a": n, "b": f"b{n}" if n % 4 else None} for n in range(ROWS)]
    lists = [None if n % 5 == 0 else [points[n], None, points[-n]][: n % 4] for n in range(ROWS)]
    path = source(tmp_path / "in.parquet", pa.table([list(range(ROWS)), points, lists], schema=THEN))
    work = task(tmp_path / "out.parquet", [path], NOW, digest=True, copy_pages=copy_pages)
    return path, lambda: rewrite(work)


@pytest.mark.parametrize("copy_pages", [True, False], ids=["copied", "decoded"])
def test_a_nested_column_that_changed_has_the_digest_of_its_file(tmp_path: Path, copy_pages: bool) -> None:
    path, run = changed_shape(tmp_path, copy_pages)
    done = run()
    assert (done.copied, done.rows) == (copy_pages, ROWS)
    assert done.read == done.written and done.read is not None and done.read.rows == ROWS
    found, there = pq.read_table(tmp_path / "out.parquet"), pq.read_table(path)
    for row, was in zip(found["s"].to_pylist(), there["s"].to_pylist(), strict=True):
        assert row == (was and {"bee": was["b"], "c": None})


def lose_a_plain_column(columns: list[pa.Array]) -> list[pa.Array]:
    return [pa.nulls(len(columns[0]), columns[0].type), *columns[1:]]


def lose_a_struct(columns: list[pa.Array]) -> list[pa.Array]:
    return [columns[0], pa.nulls(len(columns[1]), columns[1].type), columns[2]]


def lose_fields_in_a_list(columns: list[pa.Array]) -> list[pa.Array]:
    kind = columns[2].type
    rows = [each and [None for _ in each] for each in columns[2].to_pylist()]
    return [*columns[:2], pa.array(rows, kind)]


@pytest.mark.parametrize("spoil", [lose_a_plain_column, lose_a_struct, lose_fields_in_a_list])
def test_a_projection_that_loses_values_is_found_though_a_nested_column_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[list[pa.Array]], list[pa.Array]]
) -> None:
    """Rows of such a file used to be hashed only after they were projected: both digests agreed on the wrong rows."""
    honest = Projection.apply
    monkeypatch.setattr(Projection, "apply", lambda self, *rest: spoil(honest(self, *rest)))
    _, run = changed_shape(tmp_path, copy_pages=False)
    done = run()
    assert done.read is not None and done.read.rows == ROWS
    assert done.read != done.written


def test_without_digests_nothing_is_hashed(tmp_path: Path) -> None:
    done = rewrite(task(tmp_path / "out.parquet", wides(tmp_path), WIDE))
    assert done.copied and done.read is None and done.written is None


def test_where_every_column_is_copied_there_is_nothing_to_hash(tmp_path: Path) -> None:
    narrow = pa.schema([WIDE.field(0), WIDE.field(1)])
    sources = wides(tmp_path)
    done = rewrite(task(tmp_path / "out.parquet", sources, narrow, digest=True))
    assert done.copied and done.read is not None
    assert done.read == done.written and done.read.rows == 0


# --- whose statistics become the table's bounds --------------------------------------------------------------


@pytest.mark.parametrize("maker", [b"SomeWriter version 3.1", b"parquet-rs version 53.0.0", b"parquet-mr-trino version 412"])  # fmt: skip
def test_bounds_of_an_unknown_writer_are_computed_again(tmp_path: Path, maker: bytes) -> None:
    """Its footer says that no value of `n` is above 5: a reader that believed it would not find the others."""
    sources = wides(tmp_path)

    def lie(footer: thrift.Struct) -> None:
        footer[6] = thrift.binary(maker)
        statistics = thrift.value_of(metadata_of(footer, 0), 12)
        statistics.update(
            {5: thrift.binary((5).to_bytes(8, "little")), 2: thrift.binary((5).to_bytes(8, "little"))}
        )

    for path in sources:
        refoot(path, lie)
    out, done = rewritten(tmp_path, sources)
    assert not done.copied
    found = pq.read_metadata(out).row_group(0).column(0).statistics
    assert (found.min, found.max) == (0, 3 * ROWS - 1)


# --- digests that depend on the place of each value ----------------------------------------------------------


def ids(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        field.with_metadata({"PARQUET:field_id": str(n)}) for n, field in enumerate(schema, start=1)
    )


def table_of(**columns: pa.Array) -> pa.Table:
    table = pa.table(columns)
    return table.cast(ids(table.schema))


SOME = {
    "n": pa.array([7] * 1_000 + list(range(1_000))),
    "sparse": pa.array([None if n % 9 else n for n in range(2_000)]),
    "f": pa.array([n / 7 for n in range(2_000)]),
    "s": pa.array([None if n % 5 == 0 else f"name-{n % 13}" for n in range(2_000)]),
}


def placed(table: pa.Table, batch_rows: int = 1_000_000) -> Digest:
    total = Digest()
    for batch in table.to_batches(max_chunksize=batch_rows):
        total += digest_in_place(batch, total.rows)
    return total


def test_a_digest_in_place_does_not_depend_on_batches_or_dictionaries() -> None:
    table = table_of(**SOME)
    found = placed(table)
    assert found.rows == 2_000
    assert {placed(table, rows) for rows in (1, 7, 999, 1_000)} == {found}
    place = table.schema.get_field_index("s")
    encoded = table.column(place).dictionary_encode()
    field = table.schema.field(place).with_type(encoded.type)
    assert placed(table.set_column(place, field, encoded), 300) == found
    known: Entries = {}
    batch = table.set_column(place, field, encoded).to_batches()[0]
    assert digest_in_place(batch, 5, known=known) == digest_in_place(batch, 5, known=known)
    assert len(known) == 1


@pytest.mark.parametrize("column", list(SOME))
@pytest.mark.parametrize("order", ["turned", "moved", "swapped"])
def test_values_in_other_places_have_another_digest(column: str, order: str) -> None:
    table = table_of(**SOME)
    size = table.num_rows
    orders = {
        "turned": list(range(size - 1, -1, -1)),
        "moved": [*range(1, size), 0],
        "swapped": [*range(1_001), 1_008, *range(1_002, 1_008), 1_001, *range(1_009, size)],
    }
    place = table.schema.get_field_index(column)
    other = table.column(column).take(pa.array(orders[order]))
    changed = table.set_column(place, table.schema.field(place), other)
    assert changed.column(column) != table.column(column)
    assert placed(changed) != placed(table)


def test_values_that_changed_columns_have_another_digest() -> None:
    one = table_of(a=pa.array([1, 2, 3]), b=pa.array([3, 2, 1]))
    other = table_of(a=pa.array([3, 2, 1]), b=pa.array([1, 2, 3]))
    assert placed(one) != placed(other)


# --- bounds of strings that go through as dictionaries -------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        ["b", None, "a", "ünï", "", "b"],
        [None, None, None],
        ["x" * 5_000, "b"],
        [b"\x00", b"\xff\xff", None, b""],
    ],
    ids=["strings", "nulls", "long", "bytes"],
)
def test_bounds_of_a_dictionary_are_those_of_arrows_writer(values: list[Any]) -> None:
    kind = pa.binary() if isinstance(values[0], bytes) else pa.string()
    column = pa.chunked_array([pa.array(values, kind).dictionary_encode()])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"s": column}), sink, store_schema=False)
    (group,) = thrift.value_of(footer_of(sink.getvalue()), 4)
    (entry,) = thrift.value_of(group, 1)
    assert dictionary_statistics(column) == thrift.value_of(thrift.value_of(entry, 3), 12)


def test_entries_that_no_row_has_are_no_bounds() -> None:
    words = pa.array(["a", "m", "z"])
    parts = [
        pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), words) for places in ([1, None], [1])
    ]
    found = dictionary_statistics(pa.chunked_array(parts))
    assert (thrift.value_of(found, 6), thrift.value_of(found, 5), thrift.value_of(found, 3)) == (
        b"m",
        b"m",
        1,
    )
    with pytest.raises(ValueError, match="different dictionaries"):
        dictionary_statistics(pa.chunked_array([parts[0], pa.array(["a"]).dictionary_encode()]))


def test_bounds_of_strings_beside_copied_pages(tmp_path: Path) -> None:
    sources = wides(tmp_path)
    out, done = rewritten(tmp_path, sources)
    assert done.copied
    place = WIDE.get_field_index("device")
    found = pq.read_metadata(out).row_group(0).column(place).statistics
    every = pa.concat_tables(pq.read_table(path) for path in sources).column(place)
    least, greatest = min(each for each in every.to_pylist() if each), max(every.drop_null().to_pylist())
    assert (found.min, found.max, found.null_count) == (least, greatest, every.null_count)
