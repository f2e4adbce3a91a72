"""compact-deletes on real tables: what Spark no longer shows is gone from the files, what it shows stays, whatever comes meanwhile."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from bench.equality import add_equality_deletes
from lakewarden.model.run import RunState
from lakewarden.tables.iceberg.commit import Sending
from lakewarden.tables.iceberg.rewrite import RewriteCommit
from tests.compact.test_cluster import little_memory
from tests.compact.test_shapes import SCATTERED, everything, leftovers, rewritten
from tests.support.lab import Lab

MOR = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}
JOB = "compact-deletes"


def create(lab: Lab, version: str = "2", partition: str = "g", rows: int = 80, **properties: str) -> str:
    """80 rows, in two partitions of two files each or in two files."""
    table = lab.create(
        "id bigint, g int, s string",
        partition,
        **{"format-version": version},
        **MOR,
        **SCATTERED,
        **properties,
    )
    if rows:
        append(lab, table, 0, rows)
    return table


def append(lab: Lab, table: str, first: int, end: int, files: int = 2) -> None:
    lab.sql(
        f"insert into {table} select id, cast(id % 2 as int), concat('s', id) from range({first}, {end}, 1, {files})"
    )


def strike(lab: Lab, table: str, *ids: int, branch: str = "main") -> None:
    """An equality delete on an unpartitioned table."""
    add_equality_deletes(lab.spark, table, [pa.table({"id": pa.array(ids, pa.int64())})], branch=branch)


def delete_files(lab: Lab, table: str) -> int:
    return int(lab.sql(f"select count(*) from {table}.delete_files")[0][0])


def stored_rows(lab: Lab, table: str) -> int:
    """Rows in the data files, deleted or not."""
    return int(lab.sql(f"select coalesce(sum(record_count), 0) from {table}.data_files")[0][0])


def debt_is_paid(lab: Lab, table: str) -> None:
    assert delete_files(lab, table) == 0
    assert stored_rows(lab, table) == len(lab.rows(table))


# --- deletes by position ------------------------------------------------------------------------------------


@pytest.mark.main
@pytest.mark.parametrize(("version", "granularity"), [("2", "file"), ("2", "partition"), ("3", "file")])
def test_rows_deleted_by_position(lab: Lab, version: str, granularity: str) -> None:
    """Position deletes of either granularity, and vectors; older snapshots still show what they showed."""
    table = create(lab, version, **{"write.delete.granularity": granularity})
    old, snapshot = everything(lab, table), lab.snapshots(table)[-1].snapshot_id
    lab.sql(f"delete from {table} where id % 5 = 0")
    lab.sql(f"update {table} set s = 'changed' where id % 7 = 0")
    middle, halfway = everything(lab, table), lab.snapshots(table)[-1].snapshot_id
    lab.sql(f"delete from {table} where id in (1, 2)")
    assert delete_files(lab, table) > 0
    run = rewritten(lab, table, JOB)
    assert run.counters["rows_erased"] > 0
    debt_is_paid(lab, table)
    assert everything(lab, table, f"version as of {snapshot}") == old
    assert everything(lab, table, f"version as of {halfway}") == middle


@pytest.mark.parametrize("version", ["2", "3"])
def test_files_whose_rows_are_all_deleted_leave_no_replacement(lab: Lab, version: str) -> None:
    table = create(lab, version)
    lab.sql(f"delete from {table} where g = 1 and id < 79")
    lab.sql(f"delete from {table} where id % 2 = 0 and id > 3")
    lab.sql(f"delete from {table} where id = 79 and s = 's79'")
    run = rewritten(lab, table, JOB)
    assert run.counters["files_added"] == 1
    assert {row.g for row in lab.sql(f"select partition.g g from {table}.files")} == {0}
    lab.sql(f"delete from {table} where s in ('s0', 's2')")
    if delete_files(lab, table):
        run = rewritten(lab, table, JOB)
        assert run.counters["files_added"] == 0
    assert stored_rows(lab, table) == 0


@pytest.mark.main
def test_a_table_upgraded_to_v3_with_position_deletes_from_before(lab: Lab) -> None:
    table = create(lab, "2", **{"write.delete.granularity": "partition"})
    lab.sql(f"delete from {table} where id % 5 = 0")
    lab.sql(f"alter table {table} set tblproperties ('format-version'='3')")
    lab.sql(f"delete from {table} where id % 7 = 1")
    append(lab, table, 100, 120)
    rewritten(lab, table, JOB)
    debt_is_paid(lab, table)


# --- deletes by value ---------------------------------------------------------------------------------------

UTC = dt.UTC
KEYS: dict[str, pa.Table] = {
    "a long": pa.table({"l": pa.array([0, 9], pa.int64())}),
    "a string, a null": pa.table({"s": pa.array(["s1", None])}),
    "an int, NaN and a zero": pa.table(
        {"i": pa.array([2, 2, 2], pa.int32()), "x": [float("nan"), -0.0, 5.5]}
    ),
    "a float that is NaN": pa.table({"f": pa.array([float("nan"), 7.5], pa.float32())}),
    "three columns": pa.table({"l": [14, 14], "s": ["s14", None], "b": [True, False]}),
    "a decimal": pa.table({"p": pa.array([Decimal("1.75")], pa.decimal128(9, 2))}),
    "a long decimal": pa.table({"r": pa.array([Decimal("21.0000000000")], pa.decimal128(38, 10))}),
    "a date": pa.table({"d": pa.array([dt.date(2024, 3, 24)])}),
    "a time": pa.table({"ts": pa.array([dt.datetime(2024, 3, 26, tzinfo=UTC)], pa.timestamp("us", "UTC"))}),
    "a time without zone": pa.table({"tn": pa.array([dt.datetime(2024, 3, 27)], pa.timestamp("us"))}),
    "bytes": pa.table({"bin": pa.array([b"s28", b""])}),
    "a word that repeats": pa.table({"l": [29, 30], "w": ["w2", None]}),
}


def test_keys_of_every_type(lab: Lab) -> None:
    """Each delete file strikes rows no other does, so a type whose keys are not found would show."""
    table = lab.create(
        "l bigint, i int, s string, x double, f float, b boolean, p decimal(9,2), r decimal(38,10), d date, ts timestamp, "
        "tn timestamp_ntz, bin binary, w string",
        "",
        **SCATTERED,
    )
    lab.sql(
        f"insert into {table} select id, cast(id % 4 as int), if(id = 31, null, concat('s', id)), "
        "case when id = 6 then double('nan') when id = 10 then double('-0.0') when id = 18 then 0D else id end, "
        "if(id = 3, float('nan'), id / 2), id % 2 = 0, id / 4, id, date_add(date'2024-03-01', cast(id as int) - 1), "
        "timestamp'2024-03-01 00:00:00Z' + make_dt_interval(cast(id as int) - 1), timestamp_ntz'2024-03-01' + "
        "make_dt_interval(cast(id as int) - 1), cast(concat('s', id) as binary), concat('w', id % 3) from range(0, 32, 1, 2)"
    )
    left = 32
    for what, keys in KEYS.items():
        add_equality_deletes(lab.spark, table, [keys])
        now = int(lab.sql(f"select count(*) from {table} where l >= 0")[0][0])
        assert now < left, what
        left = now
    rewritten(lab, table, JOB)
    debt_is_paid(lab, table)


@pytest.mark.main
@pytest.mark.parametrize("version", ["2", "3"])
def test_a_key_that_is_written_again_survives_the_deletes_before_it(lab: Lab, version: str) -> None:
    """Several rounds of delete and write: each delete file reaches only what is older, in its partition."""
    table = create(lab, version)
    for key in (4, 5, 4):
        keys = pa.table({"id": pa.array([key, 1000 + key], pa.int64())})
        add_equality_deletes(lab.spark, table, [keys], f"g={key % 2}")
        lab.sql(f"insert into {table} values ({key}, {key % 2}, 'again')")
    add_equality_deletes(lab.spark, table, [pa.table({"id": [5], "s": ["again"]})], "g=1")
    lab.sql(f"delete from {table} where id = 6")
    assert lab.rows(table, "where id in (4, 5, 6)") == [(4, 0, "again")]
    rewritten(lab, table, JOB)
    debt_is_paid(lab, table)


@pytest.mark.parametrize("output", ["current", "keep"])
def test_a_delete_file_without_partition_strikes_every_partition(lab: Lab, output: str) -> None:
    table = create(lab)
    lab.sql(f"alter table {table} drop partition field g")
    strike(lab, table, 3, 4, 50, 51)
    append(lab, table, 50, 52)
    lab.sql(f"alter table {table} add partition field truncate(1, s)")
    append(lab, table, 90, 94)
    assert len(lab.rows(table)) == 80 - 4 + 2 + 4
    engine = "iceberg" if output == "current" else "arrow"
    rewritten(lab, table, JOB, engine=engine, rewrite_output_spec_id=output)
    debt_is_paid(lab, table)


def test_keys_of_a_column_that_was_dropped_or_renamed_since(lab: Lab) -> None:
    table = lab.create("id bigint, gone bigint, moved int", "", **SCATTERED)
    lab.sql(f"insert into {table} select id, id * 10, id from range(0, 20, 1, 2)")
    add_equality_deletes(lab.spark, table, [pa.table({"moved": pa.array([7], pa.int32())})])
    lab.sql(f"alter table {table} rename column moved to kept")
    lab.sql(f"alter table {table} alter column kept type bigint")
    rewritten(lab, table, JOB)
    add_equality_deletes(lab.spark, table, [pa.table({"gone": pa.array([30, 50], pa.int64())})])
    assert len(lab.rows(table)) == 17
    lab.sql(f"alter table {table} drop column gone")
    rewritten(lab, table, JOB)
    debt_is_paid(lab, table)


def test_more_keys_than_memory_holds(lab: Lab, tmp_path: Path) -> None:
    table = lab.create("id bigint, s string", "", **SCATTERED)
    lab.sql(f"insert into {table} select id, concat('s', id) from range(0, 6000, 1, 2)")
    strings = pa.array([f"s{n}" for n in range(0, 40_000, 3)])
    add_equality_deletes(lab.spark, table, [pa.table({"id": pa.array(range(0, 40_000, 2), pa.int64())})])
    add_equality_deletes(lab.spark, table, [pa.table({"s": strings})])
    lab.sql(f"insert into {table} select id, concat('s', id) from range(0, 200, 1, 2)")
    assert len(lab.rows(table)) == 2000 + 200
    with little_memory(lab, tmp_path) as (small, _):
        rewritten(small, table, JOB)
    debt_is_paid(lab, table)


# --- which are worth it -------------------------------------------------------------------------------------


def test_files_with_few_deletes_are_skipped_and_keep_the_delete_files_they_share(lab: Lab) -> None:
    """One delete file names a file that is rewritten and one that is not: it has to stay."""
    table = create(lab, "2", "", rows=0, **{"write.delete.granularity": "partition"})
    append(lab, table, 0, 40, files=1)
    append(lab, table, 1000, 1400, files=1)
    lab.sql(f"delete from {table} where id < 30 or id = 1200")
    policy = {"delete_compaction_min_deletes": 3, "delete_compaction_ratio": 0.25}
    plan = lab.lw.plan(JOB, table, policy=policy)
    (group,) = plan.groups()
    assert group.files == 1
    assert any("few deletes: delete_compaction_min_deletes=3" in each.reason for each in plan.skipped)
    rewritten(lab, table, JOB, **policy)
    assert delete_files(lab, table) == 1
    for key in (1300, 1301):
        lab.sql(f"delete from {table} where id = {key}")
    rewritten(lab, table, JOB, **policy)
    debt_is_paid(lab, table)


@pytest.mark.parametrize("version", ["2", "3"])
def test_delete_files_that_apply_to_nothing_are_dropped(lab: Lab, version: str) -> None:
    """Iceberg's own rewrite leaves them behind in version 2; an equality delete may be older than every file there is."""
    table = create(lab, version, "", **{"write.delete.granularity": "partition"})
    lab.sql(f"delete from {table} where id % 5 = 0")
    strike(lab, table, 11, 12)
    lab.sql(
        f"call {lab.catalog}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true', "
        "'use-starting-sequence-number', 'false', 'remove-dangling-deletes', 'false'))"
    )
    assert delete_files(lab, table) >= 1
    append(lab, table, 200, 210)
    run = rewritten(lab, table, JOB)
    assert run.counters["delete_files_dropped"] >= 1
    assert run.counters["files_compacted"] == 0
    assert delete_files(lab, table) == 0


SKIPPING = {"delete_compaction_min_deletes": 1000, "delete_compaction_ratio": 1, "rewrite_min_input_files": 2}


def by_position(lab: Lab, granularity: str) -> str:
    """Deletes spread over both partitions, in several delete files for each."""
    table = create(lab, "2", **{"write.delete.granularity": granularity})
    for key in (0, 2, 4):
        lab.sql(f"delete from {table} where id in ({key}, {key + 41})")
    return table


def test_small_delete_files_are_merged_where_the_data_is_skipped(lab: Lab) -> None:
    table = by_position(lab, "partition")
    data = lab.sql(f"select file_path from {table}.data_files")
    run = rewritten(lab, table, JOB, **SKIPPING)
    assert run.counters["files_compacted"] == 0
    assert delete_files(lab, table) == 2
    assert sorted(lab.sql(f"select file_path from {table}.data_files")) == sorted(data)


@pytest.mark.parametrize("granularity", ["partition", "file"])
def test_delete_files_that_cannot_be_fewer_are_not_planned_to_be_merged(lab: Lab, granularity: str) -> None:
    """One for each partition or for each data file is as few as there can be: a plan for them would never be done."""
    table = by_position(lab, granularity)
    lab.lw.run(JOB, table, policy=SKIPPING)
    assert lab.lw.plan(JOB, table, policy=SKIPPING).empty


def test_a_filter_confines_merging_too(lab: Lab) -> None:
    table = by_position(lab, "partition")
    files = f"select file_path from {table}.delete_files where partition.g = 1"
    others = sorted(lab.sql(files))
    run = lab.lw.run(JOB, table, policy={**SKIPPING, "rewrite_where": "g = 0"})
    assert run.state is RunState.DONE, run.reason
    assert sorted(lab.sql(files)) == others


@pytest.mark.parametrize("merging", [False, True], ids=["rewriting", "merging"])
def test_deletes_of_a_branch_are_its_own(lab: Lab, merging: bool) -> None:
    table = create(lab, "2", "", **{"write.delete.granularity": "partition"})
    for key in (0, 2):
        lab.sql(f"delete from {table} where id = {key}")
    lab.sql(f"alter table {table} create branch dev")
    for key in (10, 50):
        lab.sql(f"delete from {table}.branch_dev where id = {key}")
    main, head = everything(lab, table), lab.lw.view(table).head()
    if merging:
        lab.lw.run(JOB, table, policy={**SKIPPING, "rewrite_branch": "dev"})
    else:
        rewritten(lab, table, JOB, suffix="version as of 'dev'", rewrite_branch="dev")
    assert lab.lw.view(table).head() == head
    assert everything(lab, table) == main
    assert len(everything(lab, table, "version as of 'dev'")) == 76


@pytest.mark.parametrize("format_", ["avro", "orc"])
def test_delete_files_of_other_formats_are_applied_by_iceberg(lab: Lab, format_: str) -> None:
    table = create(lab, "2", "", **{"write.delete.format.default": format_})
    lab.sql(f"delete from {table} where id % 5 = 0")
    run = rewritten(lab, table, JOB, engine="iceberg")
    assert f"the delete files are {format_}" in run.reason
    debt_is_paid(lab, table)


# --- deletes that come meanwhile ----------------------------------------------------------------------------


def vanish(lab: Lab, table: str) -> None:
    lab.sql(f"delete from {table} where id in (3, 21, 60)")


def vanish_and_return(lab: Lab, table: str) -> None:
    """The row written again is younger than the delete, and older than the compaction's commit."""
    strike(lab, table, 3, 21, 60)
    lab.sql(f"insert into {table} values (21, 1, 'again')")


def both(lab: Lab, table: str) -> None:
    vanish(lab, table)
    strike(lab, table, 5, 61)


@pytest.mark.parametrize("arrive", [vanish_and_return, both])
@pytest.mark.parametrize("job", ["compact", JOB])
@pytest.mark.parametrize("version", ["2", "3"])
def test_deletes_that_arrive_meanwhile_are_taken_in(
    lab: Lab, version: str, job: str, arrive: Callable[[Lab, str], None]
) -> None:
    table = create(lab, version, "", **{"write.delete.granularity": "partition"})
    if job == JOB:
        lab.sql(f"delete from {table} where id in (2, 20, 59)")
    expected: list[list[str]] = []

    def arriving() -> None:
        arrive(lab, table)
        expected.append(everything(lab, table))

    with lab.before_commit(arriving):
        run = lab.lw.run(job, table, policy={"rewrite_min_input_files": 2})
    assert run.state is RunState.DONE, run.reason
    assert run.counters["deletes_carried_over"] == (5 if arrive is both else 3)
    assert expected == [everything(lab, table)]
    assert leftovers(lab, table) == set()
    if job == JOB:
        rewritten(lab, table, JOB)
        debt_is_paid(lab, table)


@pytest.mark.parametrize("version", ["2", "3"])
def test_deletes_that_arrive_while_icebergs_own_engine_writes(lab: Lab, version: str) -> None:
    """It does not tell where rows went, so they are written anew; what came back after its delete stays."""
    table = create(lab, version, "", **{"write.delete.granularity": "partition"})
    expected: list[list[str]] = []

    def arriving() -> None:
        vanish_and_return(lab, table)
        vanish(lab, table)
        strike(lab, table, 40)
        expected.append(everything(lab, table))

    with lab.before_commit(arriving):
        run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2, "rewrite_engine": "iceberg"})
    assert run.state is RunState.DONE, run.reason
    assert expected == [everything(lab, table)]
    assert leftovers(lab, table) == set()


def test_deletes_that_arrive_on_a_branch(lab: Lab) -> None:
    table = create(lab, "2", "", **{"write.delete.granularity": "partition"})
    lab.sql(f"alter table {table} create branch dev")
    main, expected = everything(lab, table), []

    def arriving() -> None:
        lab.sql(f"delete from {table}.branch_dev where id in (3, 60)")
        strike(lab, table, 5, branch="dev")
        expected.append(everything(lab, table, "version as of 'dev'"))

    with lab.before_commit(arriving):
        run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2, "rewrite_branch": "dev"})
    assert run.state is RunState.DONE, run.reason
    assert run.counters["deletes_carried_over"] == 3
    assert expected == [everything(lab, table, "version as of 'dev'")]
    assert everything(lab, table) == main
    assert leftovers(lab, table) == set()


@contextmanager
def before_each_attempt(do: Callable[[int], None], times: int) -> Iterator[None]:
    """Somebody else is always faster: `do` is called before every attempt to commit, so many times."""
    real, calls = RewriteCommit._attempt, []

    def attempt(self: RewriteCommit, sending: Sending) -> bool:
        if len(calls) < times:
            calls.append(True)
            do(len(calls))
        return real(self, sending)

    with patch.object(RewriteCommit, "_attempt", attempt):
        yield


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_delete_at_every_attempt(lab: Lab, version: str) -> None:
    table = create(lab, version, "", **{"write.delete.granularity": "partition"})
    lab.sql(f"delete from {table} where id = 1")

    def another(number: int) -> None:
        if number % 2:
            lab.sql(f"delete from {table} where id in ({number * 10}, 70)")
        else:
            strike(lab, table, number * 10, 71)
            lab.sql(f"insert into {table} values (71, 1, 'again')")

    with before_each_attempt(another, times=4):
        run = lab.lw.run(JOB, table)
    assert run.state is RunState.DONE, run.reason
    ids = sorted(row[0] for row in lab.rows(table))
    assert ids == sorted([*(set(range(80)) - {1, 10, 20, 30, 40, 70, 71}), 71])
    assert leftovers(lab, table) == set()
    rewritten(lab, table, JOB)
    debt_is_paid(lab, table)


def test_a_delete_in_another_partition_is_no_concern(lab: Lab) -> None:
    table = create(lab)
    lab.sql(f"delete from {table} where id = 2")
    with lab.before_commit(lambda: lab.sql(f"delete from {table} where id = 3")):
        run = lab.lw.run(JOB, table)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["deletes_carried_over"] == 0
    assert len(lab.rows(table)) == 78
    rewritten(lab, table, JOB)
    debt_is_paid(lab, table)


@pytest.mark.parametrize("version", ["2", "3"])
def test_deletes_that_arrive_for_a_file_being_split(lab: Lab, version: str) -> None:
    """Its rows go to several outputs; each delete has to find its own."""
    table = create(lab, version, "", rows=0, **{"write.delete.granularity": "partition"})
    append(lab, table, 0, 3000, files=1)
    (size,) = lab.sql(f"select file_size_in_bytes from {table}.files")[0]
    policy = {"rewrite_max_bytes": size - 1, "rewrite_target_bytes": size // 3, "rewrite_small_bytes": 1}
    expected: list[list[str]] = []

    def arriving() -> None:
        lab.sql(f"delete from {table} where id in (0, 999, 1000, 1500, 2999)")
        strike(lab, table, 998, 1001, 2000)
        expected.append(everything(lab, table))

    with lab.before_commit(arriving):
        run = lab.lw.run("compact", table, policy=policy)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["files_added"] > 2
    assert run.counters["deletes_carried_over"] == 8
    assert expected == [everything(lab, table)]
    assert leftovers(lab, table) == set()


@pytest.mark.parametrize("version", ["2", "3"])
def test_deletes_that_arrive_for_groups_that_share_a_commit(lab: Lab, version: str) -> None:
    table = create(lab, version, **{"write.delete.granularity": "partition"})
    expected: list[list[str]] = []

    def arriving() -> None:
        lab.sql(f"delete from {table} where id in (4, 5, 70)")
        expected.append(everything(lab, table))

    with lab.before_commit(arriving):
        run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2, "rewrite_max_commits": 1})
    assert run.state is RunState.DONE, run.reason
    assert run.counters["commits"] == 1
    assert expected == [everything(lab, table)]
    assert leftovers(lab, table) == set()


def test_keys_of_a_column_that_older_files_do_not_have(lab: Lab, tmp_path: Path) -> None:
    """There it is null, and null is a key like any other: met while reading, in little memory, and on arrival."""
    table = create(lab, "2", "")
    lab.sql(f"alter table {table} add column late string")
    lab.sql(f"insert into {table} select id, 0, 's', if(id % 2 = 0, null, 'late') from range(80, 100, 1, 1)")
    start = lab.snapshots(table)[-1].snapshot_id
    many = pa.table({"late": pa.array([None, *(f"x{n}" for n in range(8000))])})
    few = pa.table({"late": pa.array([None], pa.string())})
    with little_memory(lab, tmp_path) as (small, _):
        for keys, lw in ((few, lab), (many, small)):
            add_equality_deletes(lab.spark, table, [keys])
            assert len(lab.rows(table)) == 10
            rewritten(lw, table, JOB)
            lab.sql(f"call {lab.catalog}.system.rollback_to_snapshot('{table}', {start})")
    with lab.before_commit(lambda: add_equality_deletes(lab.spark, table, [few])):
        run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.state is RunState.DONE, run.reason
    assert len(lab.rows(table)) == 10


def test_a_partition_that_is_dropped_meanwhile_is_lost_and_the_other_is_done(lab: Lab) -> None:
    table = create(lab)
    with lab.before_commit(lambda: lab.sql(f"delete from {table} where g = 0")):
        run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.state is RunState.PARTIAL, run.reason
    assert {row[1] for row in lab.rows(table)} == {1}
    assert len(lab.rows(table)) == 40
    assert leftovers(lab, table) == set()


def add_time_column(lab: Lab, table: str, *dropped: str) -> None:
    """A column of a type that Spark does not know; after this Spark can neither read nor rewrite the table."""
    jvm = lab.spark._jvm
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lab.spark._jsparkSession, table)
    change = loaded.updateSchema().addColumn("t", jvm.org.apache.iceberg.types.Types.TimeType.get())
    for name in dropped:
        change = change.deleteColumn(name)
    change.commit()


def rows_without_spark(lab: Lab, table: str) -> pa.Table:
    """The rows of a table that has no delete files any more."""
    loaded = StaticTable.from_metadata(lab.lw.view(table).metadata_location)
    assert loaded.inspect.delete_files().num_rows == 0
    return loaded.scan().to_arrow()


def test_a_table_with_a_time_column_loses_deletes_by_a_column_that_was_dropped(lab: Lab) -> None:
    table = lab.create("id bigint, s string", partition="")
    lab.sql(f"insert into {table} select id, concat('x', id) from range(0, 50, 1, 1)")
    add_equality_deletes(lab.spark, table, [pa.table({"id": pa.array([3, 7], pa.int64())})], "")
    add_time_column(lab, table, "id")
    run = lab.lw.run("compact-deletes", table, {"delete_compaction_min_deletes": 1})
    assert run.state is RunState.DONE, run.reason
    rows = rows_without_spark(lab, table)
    assert sorted(rows["s"].to_pylist()) == sorted(f"x{n}" for n in range(50) if n not in (3, 7))
    assert rows.column_names == ["s", "t"] and rows["t"].null_count == 48


def test_small_delete_files_of_a_table_with_a_time_column_are_applied(lab: Lab) -> None:
    """Where they would be merged: Iceberg's merge is Spark's."""
    table = by_position(lab, "partition")
    add_time_column(lab, table)
    run = lab.lw.run(JOB, table, policy=SKIPPING)
    assert run.state is RunState.DONE, run.reason
    rows = rows_without_spark(lab, table)
    assert sorted(rows["id"].to_pylist()) == sorted(set(range(80)) - {0, 2, 4, 41, 43, 45})


def test_what_neither_engine_can_apply_is_left_with_both_reasons(lab: Lab) -> None:
    """A dropped column that a file lacks: its default, if it had one, is no longer known. And Spark has no type for time."""
    table = lab.create("s string", partition="", **{"format-version": "3"})
    lab.sql(f"insert into {table} select 'x' from range(0, 50, 1, 1)")
    lab.sql(f"alter table {table} add column id bigint")
    add_equality_deletes(lab.spark, table, [pa.table({"id": pa.array([3], pa.int64())})], "")
    add_time_column(lab, table, "id")
    before = lab.on_disk()
    run = lab.lw.run("compact-deletes", table, {"delete_compaction_min_deletes": 1})
    assert run.state is RunState.PARTIAL, run.reason
    assert "that does not mean null" in run.reason and "does not support time" in run.reason
    assert lab.on_disk() == before
