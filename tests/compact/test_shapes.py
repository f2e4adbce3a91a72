"""Whatever shape a table has, compaction keeps every row: types, schema and partition evolution, format versions, branches.

The helpers at the top hold any rewrite to the same promises; the sibling files use them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.equality import load
from lakewarden import Run
from lakewarden.model.location import local_path
from lakewarden.model.run import RunState
from tests.support.lab import Lab, lakewarden
from tests.support.spark import add_catalog

# Every writing task makes its own file, so that one insert leaves several behind.
SCATTERED = {"write.distribution-mode": "none", "write.spark.fanout.enabled": "true"}
NATIVE = "by Iceberg's own writer: "

# --- what every rewrite is held to --------------------------------------------------------------------------


def everything(lab: Lab, table: str, suffix: str = "") -> list[str]:
    """Every row as text, with its lineage if it has one: a NaN is not equal to itself, and -0.0 is equal to 0.0."""
    lineage = ", _row_id, _last_updated_sequence_number" if lab.lw.view(table).format_version >= 3 else ""
    return sorted(repr(tuple(row)) for row in lab.sql(f"select *{lineage} from {table} {suffix}"))


def leftovers(lab: Lab, table: str) -> set[str]:
    """Files of any kind in the data folder that no snapshot names: `strays`, and those that are not Parquet."""
    named = {row.file_path for row in lab.sql(f"select file_path from {table}.all_files")}
    folder = lab.warehouse / "db" / table.rsplit(".", 1)[1] / "data"
    here = {str(path) for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")}
    return here - {local_path(path) or path for path in named}


def found(lab: Lab, table: str, predicates: Sequence[str]) -> list[Any]:
    """What queries find that open only the files whose bounds let them hope."""
    counts = [f"(select count(*) from {table} where {each})" for each in predicates]
    return [list(row) for row in lab.sql(f"select {', '.join(counts)}")] if counts else []


def rewritten(
    lab: Lab,
    table: str,
    job: str = "compact",
    *,
    engine: str = "arrow",
    queries: Sequence[str] = (),
    suffix: str = "",
    **policy: object,
) -> Run:
    """Do the job and hold it to its promises: same rows, same answers, this engine, nothing left over, and done for good."""
    policy = {"rewrite_min_input_files": 2, **policy}
    before, answers = everything(lab, table, suffix), found(lab, table, queries)
    run = lab.lw.run(job, table, policy=policy)
    assert run.state is RunState.DONE, run.reason
    assert run.reason.startswith(NATIVE) == (engine == "iceberg"), run.reason
    assert everything(lab, table, suffix) == before
    assert found(lab, table, queries) == answers
    assert leftovers(lab, table) == set()
    again = lab.lw.run(job, table, policy=policy)
    assert again.state is RunState.NOTHING_TO_DO, again.reason
    return run


# --- types --------------------------------------------------------------------------------------------------

PLAIN = {
    "b": ("boolean", ["true", "false"]),
    "i": ("int", ["-2147483648", "0", "2147483647"]),
    "l": ("bigint", ["-9223372036854775808", "0L", "9223372036854775807"]),
    "f": ("float", ["float('nan')", "float('-0.0')", "float('0.0')", "float('-inf')", "float('1.4e-45')"]),
    "x": ("double", ["double('nan')", "double('-0.0')", "double('0.0')", "double('inf')", "4.9e-324D"]),
    "p": ("decimal(9,2)", ["-9999999.99", "0.00", "9999999.99"]),
    "q": ("decimal(18,6)", ["-999999999999.999999", "0.000001", "999999999999.999999"]),
    "r": ("decimal(38,10)", ["-9999999999999999999999999999.9999999999", "1e-10BD", "7.5BD"]),
    "dt": ("date", ["date'0001-01-01'", "date'1969-12-31'", "date'9999-12-31'"]),
    "ts": ("timestamp", ["timestamp'1900-01-01 00:00:00'", "timestamp'1969-12-31 23:59:59.999999'"]),
    "tn": (
        "timestamp_ntz",
        ["timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"],
    ),
    "s": ("string", ["''", "'ünï\\u0000 😀'", "repeat('long ', 3000)", "'\\uffff'"]),
    "bin": ("binary", ["X''", "X'00FF'", "cast(repeat('y', 3000) as binary)"]),
}
NESTED = {
    "st": (
        "struct<a: int, n: struct<c: string, e: array<struct<z: bigint>>>>",
        [
            "named_struct('a', 1, 'n', named_struct('c', 'x', 'e', array(named_struct('z', 5L), null)))",
            "named_struct('a', null, 'n', named_struct('c', null, 'e', array()))",
            "named_struct('a', 2, 'n', null)",
        ],
    ),
    "li": ("array<int>", ["array(1, null, 3)", "array()", "array(null)"]),
    "mk": (
        "map<struct<k: int, j: string>, int>",
        ["map(named_struct('k', 1, 'j', null), 5)", "map(named_struct('k', null, 'j', ''), null)"],
    ),
    "ll": ("array<array<string>>", ["array(array('a', null), null, array())", "array(null)"]),
    "m": ("map<string, double>", ["map('k', null, 'j', double('-0.0'))", "map()", "map('', double('nan'))"]),
    "ms": (
        "map<int, struct<u: date, v: map<string, array<int>>>>",
        [
            "map(1, named_struct('u', date'2024-03-01', 'v', map('k', array(1, null))), 2, null)",
            "map(3, named_struct('u', null, 'v', map()))",
        ],
    ),
}
TYPES = PLAIN | NESTED
COLUMNS = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
ORDERABLE = [name for name in PLAIN if name not in ("b", "bin")]


def insert_types(lab: Lab, table: str, columns: dict[str, tuple[str, list[str]]] = TYPES) -> None:
    """Every value of every column at least once, in different company, and a row of nulls."""
    rows = [[f"cast({vs[n % len(vs)]} as {kind})" for kind, vs in columns.values()] for n in range(5)]
    rows.append([f"cast(null as {kind})" for kind, _ in columns.values()])
    lab.sql(f"insert into {table} values {', '.join('(' + ', '.join(row) + ')' for row in rows)}")


def assert_within_bounds(lab: Lab, table: str, names: Sequence[str]) -> None:
    """A bound that leaves a value out hides its row from every query that asks for it."""
    (file,) = lab.sql(f"select readable_metrics m from {table}.files")
    for name in names:
        bounds = (file.m[name].lower_bound, file.m[name].upper_bound)
        values = [row[0] for row in lab.sql(f"select {name} from {table}") if row[0] is not None]
        real = [value for value in values if value == value]
        assert None not in bounds, name
        assert bounds[0] <= min(real), name
        assert bounds[1] >= max(real), name
        assert file.m[name].null_value_count == 2, name


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_every_type_comes_back_as_it_was(lab: Lab, version: str) -> None:
    table = lab.create(COLUMNS, partition="", **{"format-version": version, **SCATTERED})
    for _ in range(2):
        insert_types(lab, table)
    extremes = ", ".join(f"min({name}), max({name}), count({name})" for name in ORDERABLE)
    answers = repr(lab.sql(f"select {extremes} from {table}"))
    asked = ["f = float('0.0')", "x < double('0.0')", "isnan(x)", "s = '\\uffff'", "r = 1e-10BD"]
    run = rewritten(lab, table, queries=asked)
    assert run.counters["files_added"] == 1
    assert_within_bounds(lab, table, list(PLAIN))
    # Iceberg answers these from the files' bounds where it can.
    assert repr(lab.sql(f"select {extremes} from {table}")) == answers


@pytest.mark.parametrize("version", ["1", "2"])
def test_small_files_that_come_after_a_compaction_are_compacted_too(lab: Lab, version: str) -> None:
    """Files of format version 1 have no sequence numbers: they must not be told apart by them."""
    table = lab.create("id bigint", partition="", **{"format-version": version, **SCATTERED})
    for start in (0, 40):
        lab.sql(f"insert into {table} select id from range({start}, {start + 40}, 1, 4)")
        rewritten(lab, table)


def test_a_delete_that_reads_only_bounds_leaves_nans_alone(lab: Lab) -> None:
    """Iceberg drops a whole file when its bounds say that every row matches; a NaN is inside no bounds."""
    table = lab.create("id bigint, x double", "", **SCATTERED)
    lab.sql(f"insert into {table} select id, if(id % 4 = 0, double('nan'), 1D) from range(0, 20, 1, 2)")
    rewritten(lab, table)
    lab.sql(f"delete from {table} where x < 5")
    assert len(lab.rows(table)) == 5


@pytest.mark.parametrize("format_", ["orc", "avro"])
def test_other_file_formats_are_left_to_iceberg(lab: Lab, format_: str) -> None:
    table = lab.create(COLUMNS, partition="", **{"write.format.default": format_, **SCATTERED})
    for _ in range(2):
        insert_types(lab, table)
    run = rewritten(lab, table, engine="iceberg")
    assert f"write.format.default is {format_}" in run.reason
    lab.sql(f"alter table {table} unset tblproperties ('write.format.default')")
    insert_types(lab, table)
    run = rewritten(lab, table, engine="iceberg")
    assert f"the partition has {format_} files" in run.reason


def test_uuids_and_fixed_bytes(lab: Lab) -> None:
    """Spark has no types for them: it shows uuids as strings and fixed as binary, so the columns are added by the library."""
    table = lab.create("id bigint", partition="", **SCATTERED)
    types = lab.spark._jvm.org.apache.iceberg.types.Types
    change = load(lab.spark, table).updateSchema()
    change.addColumn("u", types.UUIDType.get()).addColumn("f", types.FixedType.ofLength(3)).commit()
    lab.sql(f"refresh table {table}")
    for start in (0, 40):
        lab.sql(
            f"insert into {table} select id, if(id % 7 = 0, null, uuid()), if(id % 5 = 0, null, unhex(lpad(hex(id), 6, '0'))) "
            f"from range({start}, {start + 40}, 1, 2)"
        )
    (some,) = lab.sql(f"select u from {table} where id = 50")
    rewritten(lab, table, queries=[f"u = '{some.u}'", "f = X'000015'", "u is null", "f is null"])


@pytest.mark.parametrize(
    ("kind", "value"), [("variant", "parse_json(concat('[', id, ']'))"), ("void", "null")]
)
def test_types_arrow_does_not_keep_are_left_to_iceberg(lab: Lab, kind: str, value: str) -> None:
    table = lab.create(f"id bigint, v {kind}", partition="", **{"format-version": "3", **SCATTERED})
    lab.sql(f"insert into {table} select id, if(id % 3 = 0, null, {value}) from range(0, 20, 1, 4)")
    run = rewritten(lab, table, engine="iceberg")
    assert "the schema has a" in run.reason


def test_a_thousand_columns(lab: Lab) -> None:
    kinds = ["bigint", "string", "double", "date"]
    names = [f"c{n} {kinds[n % 4]}" for n in range(1000)]
    table = lab.create(", ".join(names), partition="", **SCATTERED)
    made = ["id", "cast(id as string)", "id / 7D", "date_add(date'2024-01-01', cast(id as int))"]
    values = ", ".join(f"if(id % {n % 11 + 2} = 0, null, {made[n % 4]})" for n in range(1000))
    lab.sql(f"insert into {table} select {values} from range(0, 12, 1, 4)")
    rewritten(lab, table)


def test_strings_far_larger_than_a_page(lab: Lab) -> None:
    table = lab.create("id bigint, s string", partition="", **SCATTERED)
    lab.sql(
        f"insert into {table} select id, if(id % 4 = 0, null, repeat(concat(uuid(), '💧'), 8000)) from range(0, 24, 1, 4)"
    )
    rewritten(lab, table, queries=["s > '8'", "s is null"])


def test_outputs_of_many_row_groups_are_split_where_these_begin(lab: Lab) -> None:
    """Readers cut a file at the offsets its metadata states; a wrong one loses rows, or shows them twice."""
    table = lab.create(
        "id bigint, s string",
        "",
        **SCATTERED,
        **{
            "write.parquet.row-group-size-bytes": "1048576",
            "write.parquet.row-group-check-min-record-count": "50",
        },
        **{"read.split.target-size": "300000", "read.split.open-file-cost": "1"},
    )
    lab.sql(f"insert into {table} select id, sha2(cast(id as string), 256) from range(0, 150000, 1, 2)")
    rewritten(lab, table, queries=["id = 1500"])
    # Without its size, Iceberg does not believe a file's offsets and shows none.
    (file,) = lab.sql(f"select split_offsets, file_size_in_bytes from {table}.files")
    assert len(file.split_offsets) > 3


# --- names and places ---------------------------------------------------------------------------------------


def test_a_location_that_is_hard_to_spell(lab: Lab, tmp_path: Path) -> None:
    """Paths are not URLs: nothing in them is to be decoded."""
    folder = tmp_path / "a b%20ü#?[c]{d}=+&"
    catalog = add_catalog(lab.spark, {"type": "hadoop", "warehouse": str(folder)})
    with lakewarden(lab.spark, f"sqlite:///{tmp_path}/other.db") as lw:
        there = Lab(lab.spark, catalog, folder, lw)
        table = there.create(
            "id bigint, p string", "p", **SCATTERED, **{"write.delete.mode": "merge-on-read"}
        )
        lab.sql(f"insert into {table} select id, 'c%2Fd e' from range(0, 20, 1, 2)")
        rewritten(there, table)
        lab.sql(f"delete from {table} where id = 3")
        rewritten(there, table, "compact-deletes")


def test_a_filter_on_a_table_whose_name_needs_quotes(lab: Lab) -> None:
    lab.create()
    quoted = f"{lab.catalog}.db.`my-events`"
    lab.sql(f"create table {quoted} using iceberg as select id from range(0, 20, 1, 2)")
    policy = {"rewrite_min_input_files": 2, "rewrite_where": "id >= 0"}
    run = lab.lw.run("compact", quoted.replace("`", ""), policy=policy)
    assert run.state is RunState.DONE, run.reason


# --- schema evolution ---------------------------------------------------------------------------------------


def test_columns_that_were_renamed_moved_dropped_added_and_widened(lab: Lab) -> None:
    table = lab.create(
        "id int, s string, i int, f float, p decimal(9,2), gone string, k int not null", "", **SCATTERED
    )
    values = "select id, concat('s', id), id, id / 3, id / 7, concat('old', id), id from range({}, {}, 1, 2)"
    lab.sql(f"insert into {table} {values.format(0, 30)}")
    for change in (
        "rename column s to label",
        "alter column p first",
        "alter column i type bigint",
        "alter column f type double",
        "alter column p type decimal(20,2)",
        "drop column gone",
        "add column gone string",
        "alter column k drop not null",
        "add column s int",
    ):
        lab.sql(f"alter table {table} {change}")
    assert lab.sql(f"select count(gone), count(s) from {table}") == [(0, 0)]
    lab.sql(
        f"insert into {table} select id * 1000BD, id, 'new', id + 4000000000, id / 3D, null, 'again', 5 from range(30, 50, 1, 2)"
    )
    rewritten(
        lab, table, queries=["i > 2147483647", "gone = 'again'", "gone is null", "label = 's7'", "p = 0.14"]
    )
    assert lab.sql(f"select count(gone) from {table} where id < 30") == [(0,)]


def test_nested_fields_that_were_renamed_moved_dropped_added_and_widened(lab: Lab) -> None:
    table = lab.create(
        "id int, st struct<a: int, b: string, c: float>, li array<struct<x: int, y: string>>, ints array<int>, "
        "m map<string, struct<x: float, y: int>>",
        "",
        **SCATTERED,
    )
    lab.sql(
        f"insert into {table} select id, if(id % 5 = 0, null, named_struct('a', id, 'b', if(id % 3 = 0, null, 'b'), 'c', id / 3)), "
        "if(id % 4 = 0, null, array(named_struct('x', id, 'y', 'y'), null)), if(id % 7 = 0, null, array(id, null)), "
        "if(id % 6 = 0, null, map('k', named_struct('x', id / 3, 'y', id), 'n', null)) "
        "from (select cast(id as int) id from range(0, 30, 1, 2))"
    )
    for change in (
        "add column st.z array<int>",
        "rename column st.b to bb",
        "alter column st.a type bigint",
        "alter column st.c first",
        "drop column li.element.y",
        "add column li.element.y string",
        "alter column ints.element type bigint",
        "add column m.value.k date first",
        "alter column m.value.x type double",
        "drop column m.value.y",
    ):
        lab.sql(f"alter table {table} {change}")
    lab.sql(f"insert into {table} select * from {table} where id % 2 = 0")
    rewritten(lab, table, queries=["st.a = 7", "st.bb is null", "st is null"])


def test_files_of_which_no_column_is_left(lab: Lab) -> None:
    table = lab.create("a bigint, b string", "", **SCATTERED)
    lab.sql(f"insert into {table} select id, 'b' from range(0, 20, 1, 2)")
    for change in ("add column c int", "drop column a", "drop column b"):
        lab.sql(f"alter table {table} {change}")
    rewritten(lab, table)
    assert lab.rows(table) == [(None,)] * 20


def test_a_struct_of_which_no_field_is_left_is_rewritten_by_iceberg(lab: Lab) -> None:
    table = lab.create("id int, st struct<a: int>", "", **SCATTERED)
    lab.sql(
        f"insert into {table} select id, if(id % 2 = 0, null, named_struct('a', id)) from range(0, 20, 1, 2)"
    )
    lab.sql(f"alter table {table} add column st.b int")
    lab.sql(f"alter table {table} drop column st.a")
    run = rewritten(lab, table, engine="iceberg")
    assert "struct st shares no field with the file" in run.reason


def test_imported_files_without_field_ids_are_read_by_name(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "imported"
    lab.spark.range(0, 40, 1, 4).selectExpr(
        "id", "concat('s', id) s", "named_struct('a', id, 'b', array(id)) st", "timestamp'2024-03-01' ts"
    ).write.parquet(str(folder))
    table = lab.create("id bigint, s string, st struct<a: bigint, b: array<bigint>>, ts timestamp", "")
    lab.sql(f"call {lab.catalog}.system.add_files('{table}', '`parquet`.`{folder}`')")
    # The mapping still says `s`: what the files call a column and what the table calls it part ways.
    lab.sql(f"alter table {table} rename column s to label")
    lab.sql(f"alter table {table} add column s string")
    lab.sql(f"alter table {table} drop column st.a")
    lab.sql(
        f"insert into {table} values (99, 'new', named_struct('b', array(1L)), timestamp'2024-03-02', 'other')"
    )
    run = rewritten(lab, table, engine="iceberg", queries=["id = 7", "label = 's7'", "s is null"])
    assert "has no field id" in run.reason
    assert sorted(path.name for path in folder.glob("*.parquet")), "imported files are not ours to remove"


def test_defaults_of_columns_added_in_v3(lab: Lab) -> None:
    """A file without the column does not mean null: Iceberg fills in the default, and later rows may state a null."""
    table = lab.create("id bigint, st struct<a: int>", "", **{"format-version": "3", **SCATTERED})
    lab.sql(f"insert into {table} select id, named_struct('a', id) from range(0, 20, 1, 2)")
    jvm = lab.spark._jvm
    types, literal = jvm.org.apache.iceberg.types.Types, jvm.org.apache.iceberg.expressions.Expressions.lit
    change = load(lab.spark, table).updateSchema()
    change.addColumn("n", types.IntegerType.get(), literal(7))
    change.addColumn("st", "b", types.StringType.get(), literal("unset"))
    change.addRequiredColumn("must", types.IntegerType.get(), literal(1))
    change.commit()
    lab.sql(f"refresh table {table}")
    assert lab.sql(f"select distinct n, st.b, must from {table}") == [(7, "unset", 1)]
    lab.sql(
        f"insert into {table} select id, named_struct('a', id, 'b', null), null, 2 from range(20, 30, 1, 2)"
    )
    run = rewritten(
        lab, table, engine="iceberg", queries=["n = 7", "n is null", "st.b = 'unset'", "must = 1"]
    )
    assert "does not mean null" in run.reason
    lab.sql(f"insert into {table} select id, null, 5, 3 from range(30, 40, 1, 2)")
    rewritten(lab, table, queries=["n = 7", "n is null"])


def test_column_names_that_are_hard_to_spell(lab: Lab) -> None:
    """Iceberg's writer spells them in its own way inside files; after a drop, columns are asked for by name."""
    names = ["a", "a.b", "a.b.c", "with space", "ünï", "1st", "per%cent"]
    table = lab.create(", ".join(f"`{name}` bigint" for name in names), "", **SCATTERED)
    values = ", ".join(f"id * 100 + {n}" for n in range(len(names)))
    lab.sql(f"insert into {table} select {values} from range(0, 20, 1, 4)")
    rewritten(lab, table)
    lab.sql(f"alter table {table} drop column `a.b`")
    values = ", ".join(f"id * 100 + {n}" for n in range(len(names) - 1))
    lab.sql(f"insert into {table} select {values} from range(20, 40, 1, 4)")
    rewritten(lab, table)


def test_required_columns_and_elements(lab: Lab) -> None:
    table = lab.create(
        "id bigint not null, s string not null, st struct<a: int not null, b: string> not null, li array<int> not null",
        "",
        **SCATTERED,
    )
    types = lab.spark._jvm.org.apache.iceberg.types.Types
    long, text = types.LongType.get(), types.StringType.get()
    change = load(lab.spark, table).updateSchema()
    change.addColumn("full", types.ListType.ofRequired(1, long))
    change.addColumn("m", types.MapType.ofRequired(1, 2, text, long)).commit()
    lab.sql(f"refresh table {table}")
    lab.sql(
        f"insert into {table} select id, concat('s', id), named_struct('a', cast(id as int), 'b', null), array(), "
        "array(id, -id), map('k', id) from range(0, 40, 1, 4)"
    )
    rewritten(lab, table, queries=["id = 7", "st.a = 7"])
    (path,) = lab.data_files(table)
    schema = pq.read_schema(path)
    assert [schema.field(name).nullable for name in ("id", "s", "st", "li")] == [False] * 4
    assert not schema.field("full").type.value_field.nullable
    assert not schema.field("m").type.item_field.nullable


# --- partitions ---------------------------------------------------------------------------------------------


def test_partition_values_that_are_hard_to_spell(lab: Lab) -> None:
    table = lab.create("id bigint, p string", "p", **SCATTERED)
    values = [
        "null",
        "'null'",
        "''",
        "'a/b'",
        "'50%'",
        "'k=v'",
        "'a b'",
        "'ü'",
        "'q\"q'",
        "'..'",
        "'a+b&c#d?e'",
    ]
    rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values))
    for _ in range(2):
        lab.sql(f"insert into {table} select /*+ repartition(2) */ col1, col2 from values {rows}, {rows}")
    run = rewritten(lab, table, queries=["p = 'a/b'", "p = '50%'", "p = ''", "p = 'null'", "p is null"])
    assert run.counters["groups_done"] == len(values)
    assert len(lab.data_files(table)) == len(values)


def test_partition_values_longer_than_a_file_name(lab: Lab) -> None:
    layout = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
    table = lab.create("id bigint, p string", "p", **layout, **SCATTERED)
    for start in (0, 20):
        lab.sql(
            f"insert into {table} select id, repeat('ü/', 300 + id % 2) from range({start}, {start + 20}, 1, 2)"
        )
    run = rewritten(lab, table, queries=["p = repeat('ü/', 300)"])
    assert run.counters["groups_done"] == 2


@pytest.mark.parametrize(
    "spec", ["years(ts), months(tn), bucket(2, id)", "days(ts), hours(tn), truncate(2, s), truncate(40, id)"]
)
def test_hidden_partitions(lab: Lab, spec: str) -> None:
    table = lab.create("id bigint, ts timestamp, tn timestamp_ntz, s string", spec, **SCATTERED)
    lab.sql(
        f"insert into {table} select /*+ repartition(3) */ id, ts, if(id % 3 = 0, null, ts), if(id % 5 = 0, null, "
        "concat('é', id % 2)) from (select id, if(id % 7 = 0, null, timestamp'1969-12-31 22:30:00' "
        "+ make_interval(0, 0, 0, 0, cast(id % 2 as int) * 4)) ts from range(0, 80))"
    )
    rewritten(lab, table, queries=["ts < timestamp'1970-01-01'", "tn is null", "s = 'é1' and id = 21"])
    counts = lab.sql(f"select partition, count(*) n from {table}.files group by partition")
    assert {row.n for row in counts} == {1}


def test_partitions_by_the_value_itself_of_every_type(lab: Lab) -> None:
    columns = {name: each for name, each in PLAIN.items() if name not in ("s", "bin")}
    columns |= {"s": ("string", ["'a'", "''"]), "bin": ("binary", ["X'00FF2F'", "X''"])}
    table = lab.create(
        ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items()), ", ".join(columns), **SCATTERED
    )
    for _ in range(2):
        insert_types(lab, table, columns)
    rewritten(
        lab, table, queries=["x = double('0.0')", "isnan(f)", "bin = X''", "ts is null", "tn > '2000-01-01'"]
    )


@pytest.mark.parametrize("version", ["1", "2"])
def test_partition_evolution_into_the_current_spec_or_where_files_are(lab: Lab, version: str) -> None:
    """In format version 1 a field that was dropped stays in the spec, as one that is always null."""
    table = lab.create(
        "id bigint, s string, d date", "bucket(2, id), d", **{"format-version": version, **SCATTERED}
    )
    values = "select id, concat('s', id % 3), date_add(date'2024-03-01', cast(id % 2 as int)) from range({}, {}, 1, 2)"
    lab.sql(f"insert into {table} {values.format(0, 40)}")
    lab.sql(f"alter table {table} drop partition field bucket(2, id)")
    lab.sql(f"alter table {table} add partition field truncate(1, s)")
    lab.sql(f"insert into {table} {values.format(40, 60)}")
    start = lab.snapshots(table)[-1].snapshot_id
    queries = ["d = date'2024-03-01'", "id = 7", "s = 's1'"]
    rewritten(lab, table, queries=queries, rewrite_output_spec_id="keep")
    specs = f"select spec_id, count(*) n from {table}.files group by spec_id order by spec_id"
    assert [row.spec_id for row in lab.sql(specs)] == [0, 2]
    lab.sql(f"call {lab.catalog}.system.rollback_to_snapshot('{table}', {start})")
    run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.state is RunState.DONE, run.reason
    assert "rows move from partition spec 0 to 2" in run.reason
    assert [row.spec_id for row in lab.sql(specs)] == [2]


def test_a_source_column_of_the_partition_that_was_renamed_or_widened(lab: Lab) -> None:
    table = lab.create("id int, p int, q int", "p, bucket(16, q)", **SCATTERED)
    lab.sql(f"insert into {table} select id, id % 2, id % 3 from range(0, 24, 1, 2)")
    lab.sql(f"alter table {table} rename column p to pp")
    lab.sql(f"alter table {table} alter column pp type bigint")
    lab.sql(f"alter table {table} alter column q type bigint")
    lab.sql(f"insert into {table} select id, id % 2, id % 3 from range(24, 40, 1, 2)")
    rewritten(lab, table, queries=["pp = 1", "q = 2", "q = 2 and pp = 0"])
    counts = lab.sql(f"select partition, count(*) n from {table}.files group by partition")
    assert {row.n for row in counts} == {1}


# --- format versions ----------------------------------------------------------------------------------------

ALL_JOBS = [
    {},
    {"rewrite_sort_columns": "s desc, id"},
    {"rewrite_zorder_columns": "id, s"},
    {"rewrite_engine": "iceberg"},
]


@pytest.mark.main
@pytest.mark.parametrize("policy", ALL_JOBS, ids=["binpack", "sort", "zorder", "iceberg"])
def test_lineage_of_rows_outlives_every_rewrite(lab: Lab, policy: dict[str, str]) -> None:
    """In a table that was upgraded, older files state no row ids until Iceberg assigns them; moved rows keep theirs."""
    mor = {"write.update.mode": "merge-on-read"}
    table = lab.create("id bigint, s string", "", **{"format-version": "2", **SCATTERED, **mor})
    values = "select id, concat('s', id % 5) from range({}, {}, 1, 2)"
    lab.sql(f"insert into {table} {values.format(0, 20)}")
    lab.sql(f"alter table {table} set tblproperties ('format-version'='3')")
    lab.sql(f"insert into {table} {values.format(20, 40)}")
    lab.sql(f"update {table} set s = 'changed' where id = 22")
    engine = "iceberg" if "rewrite_engine" in policy else "arrow"
    ids = [row._row_id for row in lab.sql(f"select _row_id from {table}")]
    assert None not in ids
    assert len(set(ids)) == 40
    rewritten(lab, table, engine=engine, **policy)
    lab.sql(f"insert into {table} {values.format(40, 60)}")
    lab.sql(f"delete from {table} where id in (3, 23, 43)")
    rewritten(lab, table, engine=engine, **policy)


def test_a_table_upgraded_to_v3_and_not_written_since(lab: Lab) -> None:
    """Its rows have no ids yet: they get them with the next commit, which is the compaction's own."""
    table = lab.create("id bigint, s string", "", **{"format-version": "2", **SCATTERED})
    lab.sql(f"insert into {table} select id, concat('s', id) from range(0, 40, 1, 4)")
    before = lab.rows(table)
    lab.sql(f"alter table {table} set tblproperties ('format-version'='3')")
    run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.state is RunState.DONE, run.reason
    assert lab.rows(table) == before
    ids = [row._row_id for row in lab.sql(f"select _row_id from {table}")]
    assert sorted(ids) == list(range(min(ids), min(ids) + 40))


# --- branches -----------------------------------------------------------------------------------------------


@pytest.mark.main
def test_a_branch_with_rows_of_its_own(lab: Lab) -> None:
    table = lab.create("id bigint, s string", "", **SCATTERED)
    lab.sql(f"insert into {table} select id, 'main' from range(0, 20, 1, 2)")
    lab.sql(f"alter table {table} create branch dev")
    lab.sql(f"insert into {table}.branch_dev select id, 'dev' from range(20, 40, 1, 2)")
    lab.sql(f"delete from {table} where id < 5")
    head = lab.lw.view(table).head()
    main = everything(lab, table)
    run = rewritten(lab, table, suffix="version as of 'dev'", rewrite_branch="dev")
    assert lab.lw.view(table).head() == head
    assert lab.lw.view(table).head("dev") == run.snapshot_ids[-1]
    assert everything(lab, table) == main
    assert len({row.f for row in lab.sql(f"select _file f from {table} version as of 'dev'")}) == 1


# --- metrics ------------------------------------------------------------------------------------------------

LONG = "concat('value-', lpad(id, 40, '0'))"
MODES = [("none", "full"), ("counts", "truncate(3)"), ("truncate(16)", "none"), ("full", "counts")]


def test_bounds_follow_the_metrics_modes(lab: Lab) -> None:
    """What the outputs state is what Iceberg's own writer states of a file with the same rows."""
    table = lab.create(
        "id bigint, s string, t string, st struct<u: string, n: int>, bin binary, p decimal(38,10)",
        "",
        **SCATTERED,
    )
    lab.sql(
        f"insert into {table} select id, {LONG}, if(id % 3 = 0, null, {LONG}), named_struct('u', {LONG}, 'n', cast(id as int)), "
        f"cast({LONG} as binary), id * 1.5 from range(0, 40, 1, 4)"
    )
    before, start = everything(lab, table), lab.snapshots(table)[-1].snapshot_id
    for default, column in MODES:
        lab.sql(
            f"alter table {table} set tblproperties ('write.metadata.metrics.default'='{default}', "
            f"'write.metadata.metrics.column.t'='{column}')"
        )
        stated = {}
        for engine in ("arrow", "iceberg"):
            lab.sql(f"call {lab.catalog}.system.rollback_to_snapshot('{table}', {start})")
            run = lab.lw.run(
                "compact", table, policy={"rewrite_min_input_files": 2, "rewrite_engine": engine}
            )
            assert run.state is RunState.DONE, run.reason
            (stated[engine],) = lab.sql(
                f"select value_counts, null_value_counts, lower_bounds, upper_bounds from {table}.files"
            )
        assert stated["arrow"] == stated["iceberg"], default
    assert everything(lab, table) == before
