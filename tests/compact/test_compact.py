"""compact on real Iceberg tables: rows equal, one commit per partition, nothing lost in a race, nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakewarden import Run
from lakewarden.errors import LakewardenError, PolicyError
from lakewarden.model.run import RunState
from tests.support.lab import Lab, lakewarden


def compact(lab: Lab, table: str, **policy: object) -> Run:
    return lab.lw.run("compact", table, policy=policy, trigger={"type": "manual", "operator": "ana"})


@pytest.mark.main
def test_small_files_become_one_per_partition_and_rows_stay(lab: Lab) -> None:
    table = lab.messy(files=10, days=3)
    before = lab.rows(table)
    run = compact(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["files_compacted"] == 30
    assert run.counters["files_added"] == 3
    assert len(run.snapshot_ids) == 3
    assert lab.rows(table) == before
    assert len(lab.data_files(table)) == 3
    assert lab.strays(table) == set()


def test_old_snapshots_stay_readable(lab: Lab) -> None:
    table = lab.messy(files=8)
    old = lab.snapshots(table)[-1].snapshot_id
    before = lab.rows(table)
    compact(lab, table)
    assert lab.rows(table, f"version as of {old}") == before


def test_outputs_follow_the_target_size(lab: Lab) -> None:
    table = lab.messy(files=24, rows=2000, days=1)
    total = sum(row.s for row in lab.sql(f"select file_size_in_bytes s from {table}.files"))
    target = total // 4
    run = compact(lab, table, rewrite_target_bytes=target)
    assert abs(run.counters["files_added"] - -(-total // target)) <= 1
    assert run.counters["commits"] == 1


@pytest.mark.main
def test_every_commit_carries_its_lineage(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    base = lab.snapshots(table)[-1].snapshot_id
    run = lab.lw.run(
        "compact", table, trigger={"type": "incident-response", "operator": "ana", "ticket": "INC-7"}
    )
    newest = lab.snapshots(table)[-1]
    assert newest.operation == "replace"
    kept = {
        key: newest.summary[key]
        for key in newest.summary
        if key.split(".")[0] in ("writer", "input", "trigger", "lineage")
    }
    assert kept.pop("writer.host")
    assert kept.pop("writer.commit_hash").startswith("0.")
    assert len(kept.pop("lineage.policy")) == 12
    assert int(kept.pop("input.bytes_compressed")) > 0
    assert kept.pop("lineage.digest").startswith("rows-v1:1600:")
    assert (kept.pop("lineage.proof"), kept.pop("lineage.settled")) == ("rows", "t134217728")
    assert kept == {
        "writer.id": "lakewarden",
        "writer.invocation_id": run.id,
        "input.snapshot_ids": str(base),
        "input.row_count": "1600",
        "trigger.type": "incident-response",
        "trigger.operator": "ana",
        "trigger.ticket": "INC-7",
        "lineage.operation": "compaction",
        "lineage.run_id": run.id,
        "lineage.group": "0",
    }


def test_a_second_run_at_once_has_nothing_to_do_and_makes_no_snapshot(lab: Lab) -> None:
    table = lab.messy(files=9)
    compact(lab, table)
    before = lab.on_disk()
    again = compact(lab, table)
    assert again.state is RunState.NOTHING_TO_DO
    assert again.reason == "nothing is worth rewriting"
    assert again.snapshot_ids == ()
    assert lab.on_disk() == before


@pytest.mark.main
def test_a_plan_never_changes_a_byte(lab: Lab) -> None:
    table = lab.messy(files=9)
    before = lab.on_disk()
    made = lab.lw.plan("compact", table)
    assert not made.empty
    lab.lw.plan("rewrite-manifests", table, policy={"manifest_rewrite_min_manifests": 2})
    assert lab.on_disk() == before


@pytest.mark.main
def test_rows_appended_meanwhile_stay_and_the_data_work_is_not_repeated(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    written: list[set[str]] = []

    def append() -> None:
        written.append(lab.strays(table))
        lab.append(table, 1, rows=50, days=1, start=1_000_000)

    before = lab.rows(table)
    with lab.before_commit(append):
        run = compact(lab, table)
    assert run.state is RunState.DONE
    assert len(lab.rows(table)) == len(before) + 50
    assert set(before) < set(lab.rows(table))
    assert written[0] <= set(lab.data_files(table)), (
        "the outputs written before the append are the ones committed"
    )


@pytest.mark.main
def test_of_two_compactions_of_the_same_files_one_wins_and_the_other_leaves_nothing(
    lab: Lab, tmp_path: Path
) -> None:
    table = lab.messy(files=8, days=2)
    before = lab.rows(table)
    other = lakewarden(lab.spark, f"sqlite:///{tmp_path}/other.db")
    with lab.before_commit(lambda: other.run("compact", table)):
        run = compact(lab, table)
    assert run.state is RunState.LOST_RACE
    assert run.state.exit_code == 13
    assert "Missing required files" in run.reason
    assert other.runs()[0].state is RunState.DONE
    assert lab.rows(table) == before
    assert lab.strays(table) == set()
    other.close()


@pytest.mark.main
@pytest.mark.parametrize("version", ["2", "3"])
def test_a_delete_that_arrives_meanwhile_is_not_lost(lab: Lab, version: str) -> None:
    table = lab.messy(files=8, days=1, **{"format-version": version, "write.delete.mode": "merge-on-read"})
    with lab.before_commit(lambda: lab.sql(f"delete from {table} where id = 7")):
        run = compact(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["deletes_carried_over"] == 1
    assert [row for row in lab.rows(table) if row[0] == 7] == []
    assert len(lab.rows(table)) == 8 * 200 - 1
    assert lab.strays(table) == set()


@pytest.mark.main
def test_a_missing_file_is_named_and_only_its_partition_is_skipped(lab: Lab) -> None:
    table = lab.messy(files=8, days=2)
    victim = next(path for path in lab.data_files(table) if "d=2024-03-02" in path)
    kept = lab.rows(table, "where d = '2024-03-01'")
    Path(victim).unlink()
    run = compact(lab, table)
    assert run.state is RunState.PARTIAL
    assert run.state.exit_code == 3
    assert victim in run.reason
    assert run.counters["groups_done"] == 1
    assert lab.rows(table, "where d = '2024-03-01'") == kept
    assert victim in lab.data_files(table), "the table still says what it is missing"
    assert lab.strays(table) == set()


def test_a_run_that_cannot_even_be_planned_is_in_the_journal_and_leads_to_fsck(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    (manifest, *_) = (row.path for row in lab.sql(f"select path from {table}.manifests"))
    Path(manifest).unlink()
    with pytest.raises(LakewardenError) as raised:
        compact(lab, table)
    assert Path(manifest).name in raised.value.message and "lakewarden fsck" in raised.value.hint
    (run,) = lab.lw.runs(table)
    assert (run.state, run.reason) == (RunState.FAILED, raised.value.message)
    told = {each.job: each.state for each in lab.lw.maintain(table)}
    assert told["compact"] == told["compact-deletes"] == RunState.FAILED, "the others go on"


def test_the_only_partition_at_fault_changes_nothing(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    victim = lab.data_files(table)[0]
    Path(victim).unlink()
    count = len(lab.snapshots(table))
    run = compact(lab, table)
    assert run.state is RunState.PARTIAL
    assert victim in run.reason
    assert len(lab.snapshots(table)) == count
    assert lab.strays(table) == set()


@pytest.mark.main
def test_both_engines_give_the_same_rows(lab: Lab) -> None:
    table = lab.messy(files=8, days=2)
    before = lab.rows(table)
    start = lab.snapshots(table)[-1].snapshot_id
    for engine in ("arrow", "iceberg"):
        run = compact(lab, table, rewrite_engine=engine)
        assert run.state is RunState.DONE, run.reason
        assert run.counters["files_added"] == 2
        assert lab.rows(table) == before
        lab.sql(f"call {lab.catalog}.system.rollback_to_snapshot('{table}', {start})")


@pytest.mark.parametrize(
    "strategy",
    [
        {"rewrite_strategy": "zorder", "rewrite_zorder_columns": "id,s"},
        {"rewrite_sort_columns": "s desc nulls last, id"},
    ],
)
def test_iceberg_orders_rows_when_it_is_asked_to(lab: Lab, strategy: dict[str, str]) -> None:
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    run = compact(lab, table, rewrite_engine="iceberg", **strategy)
    assert run.state is RunState.DONE, run.reason
    assert "by Iceberg's own writer: rewrite_engine=iceberg" in run.reason
    assert lab.rows(table) == before
    assert compact(lab, table, rewrite_engine="iceberg", **strategy).state is RunState.NOTHING_TO_DO
    if "rewrite_sort_columns" in strategy:
        names = [row.s for row in lab.sql(f"select s from {table}")]
        assert names == sorted(names, reverse=True)


def test_a_branch_is_compacted_and_main_is_untouched(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    lab.sql(f"alter table {table} create branch dev")
    main = lab.data_files(table)
    before = lab.rows(table, "version as of 'dev'")
    run = compact(lab, table, rewrite_branch="dev")
    assert run.state is RunState.DONE, run.reason
    assert lab.data_files(table) == main
    assert lab.rows(table, "version as of 'dev'") == before
    assert len({row.f for row in lab.sql(f"select _file f from {table} version as of 'dev'")}) == 1


def test_a_filter_selects_files_and_never_rows(lab: Lab) -> None:
    table = lab.messy(files=8, days=2)
    before = lab.rows(table)
    run = compact(lab, table, rewrite_where="d = '2024-03-01'")
    assert run.counters["groups_done"] == 1
    assert lab.rows(table) == before
    with pytest.raises(PolicyError, match="nosuch"):
        compact(lab, table, rewrite_where="nosuch = 1")


def test_the_tables_write_properties_are_respected(lab: Lab) -> None:
    table = lab.messy(
        files=8,
        days=1,
        **{"write.parquet.compression-codec": "gzip", "write.metadata.metrics.column.s": "none"},
    )
    compact(lab, table)
    (path,) = lab.data_files(table)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    assert chunk.compression == "GZIP"
    (row,) = lab.sql(f"select lower_bounds, upper_bounds, value_counts from {table}.files")
    assert set(row.lower_bounds) == {1, 3}, "column s keeps no bounds, as its metrics mode says"


def test_what_the_kernel_cannot_write_goes_to_iceberg_with_the_reason(lab: Lab) -> None:
    table = lab.messy(files=8, days=1, **{"write.parquet.bloom-filter-enabled.column.id": "true"})
    before = lab.rows(table)
    run = compact(lab, table)
    assert run.state is RunState.DONE
    assert "bloom-filter-enabled.column.id" in run.reason
    assert lab.rows(table) == before


@pytest.mark.parametrize("format_", ["orc", "avro"])
def test_other_file_formats_are_compacted_by_iceberg(lab: Lab, format_: str) -> None:
    table = lab.messy(files=8, days=1, **{"write.format.default": format_})
    before = lab.rows(table)
    run = compact(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert len(lab.data_files(table)) == 1
    assert lab.rows(table) == before


@pytest.mark.main
def test_row_lineage_of_v3_tables_is_kept(lab: Lab) -> None:
    table = lab.messy(files=8, days=1, **{"format-version": "3"})
    query = f"select id, _row_id, _last_updated_sequence_number from {table} order by id"
    before = lab.sql(query)
    assert before[0]._row_id is not None
    run = compact(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert len(lab.data_files(table)) == 1
    assert lab.sql(query) == before
    lab.append(table, 8, days=1, start=5000)
    mixed = lab.sql(query)
    compact(lab, table, rewrite_min_input_files=2)
    assert lab.sql(query) == mixed


@pytest.mark.main
def test_partition_evolution_moves_old_files_into_the_current_spec(lab: Lab) -> None:
    table = lab.create(partition="")
    lab.append(table, 8)
    before = lab.rows(table)
    lab.sql(f"alter table {table} add partition field d")
    run = compact(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert "rows move from partition spec 0 to 1" in run.reason
    assert lab.rows(table) == before
    assert {row.spec_id for row in lab.sql(f"select spec_id from {table}.files")} == {1}


def test_files_from_before_a_schema_change_come_out_in_the_current_schema(lab: Lab) -> None:
    table = lab.create("id int, s string, gone double, d date", partition="d")
    for n in range(4):
        lab.sql(f"insert into {table} values ({n}, 'a', 1.5, date'2024-03-01')")
    lab.sql(f"alter table {table} rename column s to label")
    lab.sql(f"alter table {table} alter column id type bigint")
    lab.sql(f"alter table {table} drop column gone")
    lab.sql(f"alter table {table} add column gone string")
    for n in range(4):
        lab.sql(f"insert into {table} values ({2**40 + n}, 'b', date'2024-03-01', 'new')")
    before = lab.rows(table)
    run = compact(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert lab.rows(table) == before


TYPES = """
    b boolean, i int, l bigint, f float, x double, p decimal(9,2), q decimal(18,4), r decimal(38,10),
    dt date, ts timestamp, tn timestamp_ntz, s string, bin binary,
    li array<int>, m map<string, double>, st struct<a: int, n: struct<c: string, e: array<struct<z: bigint>>>>
"""


def test_every_type_comes_back_as_it_was(lab: Lab) -> None:
    table = lab.create(TYPES, partition="")
    for n in range(8):
        lab.sql(
            f"insert into {table} values (true, {n}, {2**40 + n}, float('nan'), -0.0D, 1.25, -7.5001, 123456789012345678901234567.89, "
            f"date'1969-12-31', timestamp'1969-12-31 23:59:59.999999', timestamp_ntz'2024-03-01 00:00:00.000001', 'ünï\\u0000', X'00FF', "
            "array(1, null, 3), map('k', null, 'j', double('inf')), named_struct('a', 1, 'n', named_struct('c', null, 'e', array(named_struct('z', 5L), null))))"
        )
        lab.sql(f"insert into {table} values ({', '.join(['null'] * 16)})")
    before = lab.rows(table)
    run = compact(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert run.reason == "", "the Arrow kernel did it"
    # As text: a NaN is not equal to itself, and -0.0 is equal to 0.0.
    assert repr(lab.rows(table)) == repr(before)


def test_a_file_over_the_maximum_is_split(lab: Lab) -> None:
    table = lab.create(partition="")
    lab.append(table, 1, rows=50_000)
    before = lab.rows(table)
    (size,) = lab.sql(f"select file_size_in_bytes from {table}.files")[0]
    run = compact(
        lab, table, rewrite_max_bytes=size - 1, rewrite_target_bytes=size // 3, rewrite_small_bytes=1
    )
    assert run.state is RunState.DONE, run.reason
    assert run.counters["files_added"] == -(-size // (size // 3))
    assert lab.rows(table) == before


def test_files_that_lack_their_partition_column_keep_its_value(lab: Lab, tmp_path: Path) -> None:
    """Imported Hive files know it from their folder alone; read as null it would be pruned away."""
    for n in range(8):
        lab.spark.range(n * 10, n * 10 + 10).selectExpr("id").coalesce(1).write.mode("append").parquet(
            f"{tmp_path}/hive/p=x"
        )
    table = lab.create("id bigint, p string", partition="p")
    lab.sql(f"call {lab.catalog}.system.add_files('{table}', '`parquet`.`{tmp_path}/hive`')")
    assert len(lab.rows(table, "where p = 'x'")) == 80
    run = compact(lab, table)
    assert run.state is RunState.DONE, run.reason
    assert len(lab.rows(table, "where p = 'x'")) == 80
    assert len(lab.data_files(table)) == 1


def test_a_layout_without_partition_folders_is_cleaned_up_and_settled_too(lab: Lab, tmp_path: Path) -> None:
    layout = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
    table = lab.messy(files=8, days=1, **layout)
    other = lakewarden(lab.spark, f"sqlite:///{tmp_path}/other.db")
    with lab.before_commit(lambda: other.run("compact", table)):
        assert compact(lab, table).state is RunState.LOST_RACE
    assert lab.strays(table) == set()
    assert compact(lab, table, rewrite_min_input_files=1).state is RunState.NOTHING_TO_DO
    other.close()


def test_commits_can_be_shared(lab: Lab) -> None:
    table = lab.messy(files=8, days=4)
    run = compact(lab, table, rewrite_max_commits=2)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["commits"] == 2
    assert run.counters["groups_done"] == 4


def test_a_limited_run_is_partial_and_the_next_goes_on(lab: Lab) -> None:
    table = lab.messy(files=8, days=2)
    run = compact(lab, table, rewrite_max_bytes_per_run=1)
    assert run.state is RunState.PARTIAL
    assert "rewrite_max_bytes_per_run=1 (call)" in run.reason
    assert compact(lab, table).counters["groups_done"] == 1


def _loaded(lab: Lab, table: str) -> Any:
    return lab.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        lab.spark._jsparkSession, table
    )


def test_a_file_that_metadata_names_twice_is_left_by_name_and_the_others_are_compacted(lab: Lab) -> None:
    table = lab.messy(files=9, days=1)
    loaded = _loaded(lab, table)
    file = loaded.newScan().planFiles().iterator().next().file()
    loaded.newFastAppend().appendFile(file).commit()
    before = lab.rows(table)
    run = lab.lw.run("compact", table)
    assert run.state is RunState.DONE, run.reason
    assert lab.rows(table) == before
    left = [row.file_path for row in lab.sql(f"select file_path from {table}.files")]
    assert len(left) == 3 and left.count(file.location()) == 2
    plan = lab.lw.plan("compact", table)
    assert plan.empty and any(file.location() in each.reason for each in plan.skipped)


def test_a_spec_that_is_asked_for_moves_a_single_file(lab: Lab) -> None:
    table = lab.messy(files=1, days=2)
    lab.sql(f"alter table {table} add partition field bucket(2, id)")
    before = lab.rows(table)
    assert lab.lw.plan("compact", table).empty
    run = lab.lw.run("compact", table, {"rewrite_output_spec_id": "current"})
    assert run.state is RunState.DONE, run.reason
    assert {row.spec_id for row in lab.sql(f"select spec_id from {table}.files")} == {1}
    assert lab.rows(table) == before
    assert lab.lw.plan("compact", table, {"rewrite_output_spec_id": "current"}).empty


def test_ordering_by_a_struct_is_refused_by_name(lab: Lab) -> None:
    table = lab.create("id bigint, st struct<a: bigint>", "")
    lab.sql(f"insert into {table} select id, named_struct('a', id) from range(0, 10, 1, 4)")
    with pytest.raises(PolicyError, match="'st'; it is a struct") as error:
        lab.lw.run("compact", table, {"rewrite_strategy": "zorder", "rewrite_zorder_columns": ["id", "st"]})
    assert error.value.parts["key"] == "rewrite_zorder_columns"


def test_manifests_of_a_table_with_a_time_column_are_rewritten(lab: Lab) -> None:
    """Spark has no such type, and its own action reads manifests with the table's types."""
    table = lab.messy(files=6, days=1)
    before, loaded = lab.rows(table), _loaded(lab, table)
    loaded.updateSchema().addColumn(
        "t", lab.spark._jvm.org.apache.iceberg.types.Types.TimeType.get()
    ).commit()
    run = lab.lw.run("rewrite-manifests", table, {"manifest_rewrite_min_manifests": 2})
    assert run.state is RunState.DONE, run.reason
    assert (run.counters["manifests_before"], run.counters["manifests_after"]) == (6, 1)
    again = lab.lw.run("rewrite-manifests", table, {"manifest_rewrite_min_manifests": 1})
    assert again.state is RunState.NOTHING_TO_DO
    loaded.refresh()
    loaded.updateSchema().deleteColumn("t").commit()
    assert lab.rows(table) == before


def test_manifests_of_deletes_that_are_not_folded_are_no_success(lab: Lab) -> None:
    """Without Spark's action the library folds manifests of data files only. A run that folds none is no progress."""
    merging = {"format-version": "2", "write.delete.mode": "merge-on-read"}
    table = lab.create("id bigint, s string", "", **merging)
    lab.sql(f"insert into {table} select id, 'x' from range(0, 80, 1, 8)")
    for key in range(8):
        lab.sql(f"delete from {table} where id = {key * 10}")
    loaded = _loaded(lab, table)
    loaded.updateSchema().addColumn(
        "t", lab.spark._jvm.org.apache.iceberg.types.Types.TimeType.get()
    ).commit()
    snapshots = len(lab.snapshots(table))
    run = lab.lw.run("rewrite-manifests", table, {"manifest_rewrite_min_manifests": 2})
    assert (run.state, run.reason) == (
        RunState.NOTHING_TO_DO,
        "the format's library folded none of these manifests",
    )
    assert len(lab.snapshots(table)) == snapshots
