"""What a rewrite leaves behind reads the same everywhere: Spark, DuckDB and PyIceberg see the rows there were before."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from lakewarden.model.run import RunState
from tests.compact.test_cluster import bytes_of
from tests.compact.test_shapes import SCATTERED, found, leftovers
from tests.support.lab import Lab

MOR = {"write.delete.mode": "merge-on-read"}
COLUMNS = """
    id bigint, b boolean, i int, f float, x double, p decimal(9,2), q decimal(18,6), r decimal(38,10), dt date,
    ts timestamp, tn timestamp_ntz, s string, w string, bin binary, st struct<a: bigint, n: struct<c: string>>,
    li array<bigint>, m map<string, double>, req bigint not null
"""


NESTED = ("st", "li", "m")


def maybe(every: int, value: str) -> str:
    return f"if(id % {every} = 0, null, {value})"


VALUES = [
    "id",
    maybe(9, "id % 3 = 0"),
    maybe(8, "cast(id * 7 as int)"),
    maybe(7, "cast(if(id % 50 = 1, 'nan', if(id % 50 = 2, '-0.0', id / 3)) as float)"),
    maybe(6, "cast(if(id % 50 = 1, 'nan', if(id % 50 = 2, '-0.0', sqrt(id))) as double)"),
    maybe(9, "cast(id / 100 as decimal(9,2))"),
    maybe(8, "cast(id / 7 as decimal(18,6))"),
    maybe(7, "cast(-id / 7 as decimal(38,10))"),
    maybe(6, "date_add(date'1969-06-01', cast(id as int))"),
    maybe(9, "timestamp'1969-12-31 12:00:00Z' + make_dt_interval(0, 0, cast(id as int), 0.000001)"),
    maybe(8, "timestamp_ntz'2024-03-01' + make_dt_interval(0, 0, 0, id)"),
    maybe(7, "concat('ünï-', sha2(cast(id as string), 224))"),
    maybe(6, "concat('word-', id % 11)"),
    maybe(9, "unhex(sha2(cast(id as string), 256))"),
    maybe(8, "named_struct('a', id, 'n', if(id % 5 = 0, null, named_struct('c', md5(cast(id as string)))))"),
    maybe(7, "if(id % 3 = 0, array(), array(id, null, -id))"),
    maybe(6, "map(cast(id as string), id / 3D, 'k', null)"),
    "id * 13",
]


def fill(lab: Lab, table: str, first: int, end: int, files: int) -> None:
    lab.sql(f"insert into {table} select {', '.join(VALUES)} from range({first}, {end}, 1, {files})")


def by_spark(lab: Lab, table: str) -> pa.Table:
    return lab.spark.table(table).toArrow()


def by_spark_in_vectors(lab: Lab, table: str) -> pa.Table:
    """Spark decodes columns whole only where none of those it reads is nested."""
    flat = [name for name in lab.spark.table(table).columns if name not in NESTED]
    return lab.spark.table(table).select(flat).toArrow()


def by_duckdb(lab: Lab, table: str) -> pa.Table:
    """The files alone, without Iceberg: right only where no delete is left to apply."""
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        return connection.read_parquet(lab.data_files(table), union_by_name=True).to_arrow_table()


def by_pyiceberg(lab: Lab, table: str) -> pa.Table:
    return StaticTable.from_metadata(lab.lw.view(table).metadata_location).scan().to_arrow()


READERS = {
    "Spark": by_spark,
    "Spark in vectors": by_spark_in_vectors,
    "DuckDB": by_duckdb,
    "PyIceberg": by_pyiceberg,
}


def as_text(found: pa.Table, schema: pa.Schema) -> dict[str, str]:
    """Each column in the order of the ids, as text: a NaN is not equal to itself, and -0.0 is equal to 0.0."""
    found = found.sort_by("id")
    wanted = [field for field in schema if field.name in found.column_names]
    return {field.name: repr(found.column(field.name).cast(field.type).to_pylist()) for field in wanted}


def assert_reads_alike(lab: Lab, table: str, expected: dict[str, str], schema: pa.Schema) -> None:
    vectors = lab.lw.view(table).properties.get("write.parquet.page-version") != "v2"
    for reader, read in READERS.items():
        # Iceberg's vectorised reader refuses booleans of its own pages of the second version.
        if reader != "Spark in vectors" or vectors:
            for name, values in as_text(read(lab, table), schema).items():
                # Not by `assert a == b`, which would print a megabyte.
                assert (values == expected[name]) is True, f"{name} by {reader}"


def encodings_used(lab: Lab, table: str) -> set[str]:
    groups = [pq.read_metadata(path).row_group(0) for path in lab.data_files(table)]
    return {name for group in groups for n in range(group.num_columns) for name in group.column(n).encodings}


def were_pages_copied(lab: Lab, table: str) -> bool:
    return all("lakewarden-pages" in pq.read_metadata(path).created_by for path in lab.data_files(table))


WAYS: dict[str, dict[str, Any]] = {
    "packed": {},
    "re-encoded": {"rewrite_digest": "rows"},
    "sorted": {"rewrite_sort_columns": "w, x desc"},
    "z-ordered": {"rewrite_zorder_columns": "w, bin"},
}
QUERIES = [
    "id = 7",
    "x = double('-0.0')",
    "isnan(f)",
    "s > 'ünï-e'",
    "r < -100",
    "ts > '1970-01-01'",
    "st.a = 9",
]


@pytest.mark.parametrize(
    ("version", "encodings", "pages"), [("2", "classic", "v1"), ("3", "modern", "v1"), ("3", "modern", "v2")]
)
def test_outputs_of_every_kind_read_alike_everywhere(
    lab: Lab, version: str, encodings: str, pages: str
) -> None:
    """Pages of the second version, whose headers no checksum covers, are decoded, with the delta encodings they come with."""
    properties = {"format-version": version, "write.parquet.page-version": pages}
    table = lab.create(COLUMNS, "", **properties, **SCATTERED, **MOR)
    fill(lab, table, 0, 11_000, files=2)
    start = lab.snapshots(table)[-1].snapshot_id
    before = by_spark(lab, table)
    expected = as_text(before, before.schema)
    counts = ", ".join(f"count_if({query})" for query in QUERIES)
    (answers,) = lab.sql(f"select {counts} from {table}")
    for way, policy in WAYS.items() if pages == "v1" else [("packed", {})]:
        lab.sql(f"call {lab.catalog}.system.rollback_to_snapshot('{table}', {start})")
        target = bytes_of(lab, table) // 4 if "columns" in str(policy) else bytes_of(lab, table) * 2
        policy = {"rewrite_encodings": encodings, "rewrite_target_bytes": target, **policy}
        run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2, **policy})
        assert (run.state, run.reason) == (RunState.DONE, ""), way
        assert_reads_alike(lab, table, expected, before.schema)
        assert were_pages_copied(lab, table) == (way == "packed" and pages == "v1"), way
        assert ("BYTE_STREAM_SPLIT" in encodings_used(lab, table)) == (encodings != "classic")
        assert found(lab, table, QUERIES) == [list(answers)], way
    assert leftovers(lab, table) == set()


@pytest.mark.parametrize("version", ["2", "3"])
def test_tables_without_their_deletes_read_alike_everywhere(lab: Lab, version: str) -> None:
    table = lab.create(COLUMNS, "", **{"format-version": version, **SCATTERED, **MOR})
    fill(lab, table, 0, 600, files=2)
    lab.sql(f"delete from {table} where id % 7 = 3 or w = 'word-4'")
    before = by_spark(lab, table)
    run = lab.lw.run("compact-deletes", table)
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert_reads_alike(lab, table, as_text(before, before.schema), before.schema)
    # What is taken in on the way stays a delete, which DuckDB's view of the files alone does not know of.
    fill(lab, table, 600, 700, files=2)
    with lab.before_commit(lambda: lab.sql(f"delete from {table} where id = 8")):
        run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.counters["deletes_carried_over"] == 1
    after = by_spark(lab, table)
    assert as_text(by_pyiceberg(lab, table), after.schema) == as_text(after, after.schema)


def test_sources_of_different_codecs_and_page_sizes(lab: Lab) -> None:
    table = lab.create(COLUMNS, "", **SCATTERED)
    fill(lab, table, 0, 6000, files=1)
    for number, codec in enumerate(("gzip", "snappy", "uncompressed", "lz4_raw"), 1):
        lab.sql(
            f"alter table {table} set tblproperties ('write.parquet.compression-codec'='{codec}', "
            f"'write.parquet.page-row-limit'='{1000 * number}')"
        )
        fill(lab, table, 6000 * number, 6000 * number + 3000, files=1)
    before = by_spark(lab, table)
    run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert (run.state, run.reason) == (RunState.DONE, "")
    (path,) = lab.data_files(table)
    assert pq.read_metadata(path).row_group(0).column(0).compression == "LZ4"
    assert_reads_alike(lab, table, as_text(before, before.schema), before.schema)
