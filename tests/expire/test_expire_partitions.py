"""expire-partitions on real Iceberg and Paimon tables, alone and beside writers that get in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lakewarden import clock
from lakewarden.cli import main
from lakewarden.errors import PolicyError, Refused
from lakewarden.model.run import Run, RunState
from lakewarden.tables.iceberg.writer import IcebergWriter
from lakewarden.tables.jvm import bridge
from lakewarden.tables.paimon.writer import PaimonWriter
from tests.support.lab import Lab
from tests.support.paimon import PaimonLab

JOB = "expire-partitions"
ON: dict[str, object] = {"partition_expiry_enabled": True, "partition_ttl_hours": "30d"}
TODAY = f"{clock.now():%Y-%m-%d}"
SHAPES = Path(__file__).parents[1] / "support" / "PaimonShapes.java"


@contextmanager
def before_drop(writer: type[Any], do: Callable[[], None], times: int = 1) -> Iterator[None]:
    """Run `do` at the worst moment: the plan is made and journaled, its commit has not begun."""
    real, left = writer.drop_partitions, [times]

    def drop(self: Any, *rest: Any) -> Any:
        if left[0]:
            left[0] -= 1
            do()
        return real(self, *rest)

    with patch.object(writer, "drop_partitions", drop):
        yield


def done(run: Run, partitions: int) -> Run:
    assert run.state is RunState.DONE, run.reason
    assert run.counters["partitions_dropped"] == partitions
    return run


# ------------------------------------------------------------ Iceberg


def events(lab: Lab, partition: str = "dt", **properties: str) -> str:
    """Ten rows on each of five days, of which today is the last."""
    table = lab.create(
        "id bigint, ts timestamp_ntz, d date, dt string, region string", partition, **properties
    )
    fill(lab, table, 0, ["2024-02-28", "2024-02-29", "2024-03-01", "2023-12-31", TODAY])
    return table


def fill(lab: Lab, table: str, start: int, days: list[str]) -> None:
    """One commit, with one file for each partition."""
    named = ", ".join(f"'{day}'" for day in days)
    lab.sql(
        f"insert into {table} select id, to_timestamp_ntz(day || ' 23:10:00'), to_date(day), day, region from "
        f"(select id, array({named})[int((id - {start}) / 10)] day, if(id % 2 = 0, 'eu', 'us') region "
        f"from range({start}, {start + 10 * len(days)}, 1, 1)) order by region, day"
    )


def days_of(lab: Lab, table: str) -> dict[str, int]:
    return {row[0]: row[1] for row in lab.sql(f"select dt, count(*) from {table} group by dt")}


@pytest.mark.parametrize(
    ("partition", "policy"),
    [
        ("dt", {}),
        ("d", {}),
        ("ts", {}),
        ("hours(ts)", {}),
        ("months(ts)", {}),
        ("years(ts)", {}),
        ("region, days(ts)", {}),
        ("bucket(4, id), region, dt", {"partition_time_column": "dt"}),
        ("region, dt", {"partition_time_pattern": "$dt", "partition_time_formatter": "yyyy-MM-dd"}),
    ],
)
def test_partitions_whose_time_is_over_leave_the_table(
    lab: Lab, partition: str, policy: dict[str, object]
) -> None:
    table = events(lab, partition)
    rows, disk, head = lab.rows(table), lab.on_disk(), lab.snapshots(table)[-1].snapshot_id
    policy = {**ON, **policy}
    plan = lab.lw.plan(JOB, table, policy)
    assert lab.on_disk() == disk

    run = done(lab.lw.run(JOB, table, policy), len(plan.actions))
    assert lab.rows(table) == [row for row in rows if row[3] == TODAY]
    assert run.counters["rows_dropped"] == 40
    assert run.counters["files_dropped"] == sum(action.files for action in plan.actions)  # type: ignore[union-attr]

    newest = lab.snapshots(table)[-1]
    assert run.snapshot_ids == (newest.snapshot_id,)
    assert newest.operation == "delete"
    assert newest.summary["lineage.operation"] == "partition-expiry"
    assert newest.summary["lineage.run_id"] == run.id
    assert newest.summary["input.snapshot_ids"] == str(head)
    touched = {Path(path).name for path, _ in disk.items() - lab.on_disk().items()}
    assert touched <= {"version-hint.text", ".version-hint.text.crc"}, "no other file is touched"
    assert lab.rows(table, f"version as of {head}") == rows
    assert lab.lw.run(JOB, table, policy).state is RunState.NOTHING_TO_DO
    assert lab.lw.fsck(table).healthy


@pytest.mark.main
def test_rows_that_come_meanwhile_stay(lab: Lab) -> None:
    table = events(lab)
    with before_drop(IcebergWriter, lambda: fill(lab, table, 900, ["2024-02-28"])):
        run = done(lab.lw.run(JOB, table, ON), 4)
    assert days_of(lab, table) == {"2024-02-28": 10, TODAY: 10}
    assert run.counters["rows_dropped"] == 40
    done(lab.lw.run(JOB, table, ON), 1)
    assert days_of(lab, table) == {TODAY: 10}


def test_after_a_compaction_the_plan_is_made_again(lab: Lab) -> None:
    table = events(lab)
    fill(lab, table, 100, ["2024-02-28"])

    def compact() -> None:
        assert lab.lw.run("compact", table, {"rewrite_min_input_files": 2}).state is RunState.DONE

    with before_drop(IcebergWriter, compact):
        run = done(lab.lw.run(JOB, table, ON), 4)
    assert days_of(lab, table) == {TODAY: 10}
    steps = [step.name for step in lab.lw.run_by_id(run.id)[1]]
    assert steps == ["committing", "discarded", "committing", "committed"]
    assert lab.snapshots(table)[-1].summary["lineage.group"] == "1"


def test_whoever_is_always_later_loses_and_changes_nothing(lab: Lab) -> None:
    table = events(lab)

    def overwrite() -> None:
        lab.sql(f"insert overwrite {table} select * from {table} where dt = '2024-02-28'")

    lab.sql("set spark.sql.sources.partitionOverwriteMode=dynamic")
    try:
        with before_drop(IcebergWriter, overwrite, times=9):
            run = lab.lw.run(JOB, table, ON)
    finally:
        lab.sql("reset spark.sql.sources.partitionOverwriteMode")
    assert run.state is RunState.LOST_RACE
    assert run.state.exit_code == 13
    assert len(days_of(lab, table)) == 5


def test_the_planned_snapshot_of_iceberg_expires_meanwhile(lab: Lab) -> None:
    table = events(lab)

    def expire() -> None:
        fill(lab, table, 900, [TODAY])
        lab.lw.run("expire", table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
        lab.lw.run("purge", table, {"delete_grace_hours": 0})

    with before_drop(IcebergWriter, expire):
        done(lab.lw.run(JOB, table, ON), 4)
    assert days_of(lab, table) == {TODAY: 20}


def test_somebody_else_dropped_them_first(lab: Lab) -> None:
    table = events(lab)
    with before_drop(IcebergWriter, lambda: lab.sql(f"delete from {table} where dt < '2025'")):
        run = lab.lw.run(JOB, table, ON)
    assert run.state is RunState.NOTHING_TO_DO
    assert days_of(lab, table) == {TODAY: 10}


def test_files_of_an_older_spec_without_the_column_stay(lab: Lab) -> None:
    table = events(lab, "region")
    lab.sql(f"alter table {table} add partition field days(ts)")
    fill(lab, table, 500, ["2024-02-28", TODAY])
    plan = lab.lw.plan(JOB, table, ON)
    assert len(plan.actions) == 2
    skipped = {each.reason: each.count for each in plan.skipped}
    assert sum("partition spec 0, which has no ts" in reason for reason in skipped) == 1
    done(lab.lw.run(JOB, table, ON), 2)
    assert days_of(lab, table)["2024-02-28"] == 10  # those of the older spec


@pytest.mark.parametrize("version", ["2", "3"])
def test_deletes_leave_with_their_files(lab: Lab, version: str) -> None:
    more = {"format-version": version, "write.delete.mode": "merge-on-read"}
    table = events(lab, "dt", **more)
    lab.sql(f"delete from {table} where id % 10 < 3")
    before = lab.rows(table)
    done(lab.lw.run(JOB, table, ON), 4)
    assert lab.rows(table) == [row for row in before if row[3] == TODAY]
    assert len(lab.rows(table)) == 7
    if version == "3":  # a vector goes with its data file; compact-deletes drops what is left of others
        assert len(lab.sql(f"select * from {table}.delete_files")) == 1
    assert not [each for each in lab.lw.fsck(table).findings if each.severity == "error"]


def test_the_last_change_counts_where_the_policy_says_so(lab: Lab) -> None:
    table = events(lab)
    policy = {**ON, "partition_expiry_strategy": "update-time", "partition_ttl_hours": 1}
    assert lab.lw.plan(JOB, table, policy).empty
    later = clock.now() + timedelta(hours=2)
    with patch.object(clock, "now", lambda: later):
        with pytest.raises(Refused, match="all 5 partitions would expire"):
            lab.lw.run(JOB, table, policy)
        done(lab.lw.run(JOB, table, {**policy, "partition_drop_all": True}), 5)
    assert lab.rows(table) == []


def test_by_list_and_by_filter(lab: Lab) -> None:
    table = events(lab, "region, days(ts), dt")
    listed = {"partition_list": f"dt={TODAY}, region=eu/ts_day=2024-02-28"}
    assert len(lab.lw.plan(JOB, table, listed).actions) == 3
    done(lab.lw.run(JOB, table, listed), 3)
    assert lab.lw.run(JOB, table, listed).reason == "no partition of the list exists"

    with pytest.raises(PolicyError, match="partition columns region, ts_day, dt"):
        lab.lw.plan(JOB, table, {"partition_where": "nope = 1"})
    with pytest.raises(PolicyError, match="partition_where"):
        lab.lw.plan(JOB, table, {"partition_where": "region ="})
    done(lab.lw.run(JOB, table, {"partition_where": "ts_day < date'2024-03-01' and region in ('us')"}), 3)
    assert days_of(lab, table) == {"2024-02-29": 5, "2024-03-01": 10, "2023-12-31": 5}


def test_a_table_without_partitions_or_rows(lab: Lab) -> None:
    table = lab.create("id bigint", "")
    assert lab.lw.plan(JOB, table, ON).reason == "the table is empty"
    lab.sql(f"insert into {table} values (1)")
    assert lab.lw.plan(JOB, table, ON).reason == "the table is not partitioned"
    assert lab.lw.plan(JOB, table).reason == "switched off: partition_expiry_enabled=false (default)"


def test_a_pass_begins_with_it_where_the_policy_asks(lab: Lab) -> None:
    table = events(lab)
    assert JOB not in [run.job for run in lab.lw.maintain(table)]
    lab.lw.set_policy(table, ON)
    runs = lab.lw.maintain(table)
    assert (runs[0].job, runs[0].state) == (JOB, RunState.DONE)
    assert runs[-1].job == "compact-history"
    assert days_of(lab, table) == {TODAY: 10}


def test_the_command_line(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    config = tmp_path / "lakewarden.toml"
    config.write_text(
        f'[state]\nurl = "sqlite:///state.db"\n[catalogs.{lab.catalog}]\ntype = "hadoop"\n'
        f'warehouse = "{lab.warehouse}"\n[policy]\npartition_expiry_enabled = true\npartition_ttl_hours = "30d"\n'
    )
    table = events(lab)

    def said(*words: str) -> tuple[int, str, str]:
        code = main(["--config", str(config), *words], spark=lab.spark)
        return code, *capsys.readouterr()

    code, out, _ = said("plan", JOB, table)
    assert code == 0
    assert "dt=2024-02-29" in out
    assert "would drop" in out and "4 partitions, 4 files, 40 rows" in out
    code, out, _ = said("plan", JOB, table, "--json")
    document = json.loads(out)
    assert document["totals"] | {"bytes": 0} == {
        "actions": 4, "input_bytes": 0, "partitions": 4, "files": 4, "rows": 40, "bytes": 0,
    }  # fmt: skip
    first = document["actions"][0]
    assert (first["action"], first["partition"], first["at"]) == (
        "drop-partition",
        "dt=2023-12-31",
        "2024-01-01T00:00:00+00:00",
    )
    code, _, err = said("run", JOB, table, "--set", "partition_where=true", "--json")
    assert code == 12
    assert json.loads(err)["message"].startswith("refusing to expire partitions of")
    code, out, _ = said("run", JOB, table)
    assert code == 0
    assert "4 partitions dropped, 4 files, 40 rows" in out
    code, out, _ = said("run", JOB, table, "--json")
    assert (code, json.loads(out)["state"]) == (0, "nothing-to-do")
    code, out, _ = said("runs", table, "--json")
    states = [each["state"] for each in json.loads(out)["runs"]]
    assert states == ["nothing-to-do", "done", "refused"]


# ------------------------------------------------------------ Paimon

KINDS = [
    pytest.param(False, {}, id="append"),
    pytest.param(False, {"bucket": "2", "bucket-key": "id"}, id="append, fixed buckets"),
    pytest.param(True, {}, id="primary key"),
    pytest.param(True, {"deletion-vectors.enabled": "true"}, id="primary key, deletion vectors"),
]


def orders(paimon: PaimonLab, *, keyed: bool = False, **options: str) -> str:
    table = paimon.create(keyed=keyed, **options)
    for number, day in enumerate(["2024-01-01", "2024-01-02", "2024-01-03", TODAY, "2024-01-01"]):
        write(paimon, table, number * 20, day)
    return table


def write(paimon: PaimonLab, table: str, start: int, day: str | None, rows: int = 20) -> None:
    paimon.maker.write(paimon.load(table), start, rows, day, False)


def days_in(paimon: PaimonLab, table: str) -> dict[str, int]:
    days = [row.split(" ")[2] for row in paimon.rows(table)]
    return {day: days.count(day) for day in days}


@pytest.mark.main
@pytest.mark.parametrize(("keyed", "options"), KINDS)
def test_partitions_leave_a_paimon_table(paimon: PaimonLab, keyed: bool, options: dict[str, str]) -> None:
    table = orders(paimon, keyed=keyed, **options)
    rows, disk = paimon.rows(table), paimon.on_disk(table)
    plan = paimon.lw.plan(JOB, table, ON)
    run = done(paimon.lw.run(JOB, table, ON), 3)
    assert paimon.rows(table) == [row for row in rows if row.endswith(TODAY)]
    assert run.counters["rows_dropped"] == 80
    assert run.counters["files_dropped"] == sum(action.files for action in plan.actions)  # type: ignore[union-attr]

    view = paimon.lw.view(table)
    newest = view.snapshots[-1]
    assert (newest.operation, run.snapshot_ids) == ("overwrite", (newest.id,))
    assert newest.summary["lineage.operation"] == "partition-expiry"
    assert newest.summary["lineage.run_id"] == run.id
    assert newest.summary["commit-user"] == "lakewarden"
    assert view.snapshots[0].id == 1, "a commit of ours expires nothing"
    assert disk <= paimon.on_disk(table)
    assert paimon.rows(table, newest.id - 1) == rows
    assert paimon.lw.run(JOB, table, ON).state is RunState.NOTHING_TO_DO

    paimon.lw.run("expire", table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    paimon.lw.run("purge", table, {"delete_grace_hours": 0})
    assert not [path for path in paimon.on_disk(table) if path.startswith("dt=2024")]
    assert paimon.rows(table) == [row for row in rows if row.endswith(TODAY)]


@pytest.mark.main
@pytest.mark.parametrize(("keyed", "options"), KINDS[:3])
def test_rows_that_come_to_a_paimon_table_meanwhile_stay(
    paimon: PaimonLab, keyed: bool, options: dict[str, str]
) -> None:
    table = orders(paimon, keyed=keyed, **options)
    with before_drop(PaimonWriter, lambda: write(paimon, table, 5, "2024-01-01", rows=3)):
        done(paimon.lw.run(JOB, table, ON), 3)
    assert days_in(paimon, table) == {"2024-01-01": 3, TODAY: 20}
    done(paimon.lw.run(JOB, table, ON), 1)
    assert days_in(paimon, table) == {TODAY: 20}


@pytest.mark.parametrize("keyed", [False, True])
def test_after_a_compaction_of_a_paimon_table_the_plan_is_made_again(paimon: PaimonLab, keyed: bool) -> None:
    table = orders(paimon, keyed=keyed, **{"compaction.min.file-num": "2"})
    with before_drop(PaimonWriter, lambda: paimon.maker.compact(paimon.load(table))):
        run = done(paimon.lw.run(JOB, table, ON), 3)
    assert days_in(paimon, table) == {TODAY: 20}
    steps = [step.name for step in paimon.lw.run_by_id(run.id)[1]]
    assert steps == ["committing", "discarded", "committing", "committed"]


def test_a_paimon_partition_that_is_gone_already(paimon: PaimonLab) -> None:
    table = orders(paimon)
    with before_drop(PaimonWriter, lambda: paimon.maker.dropPartition(paimon.load(table), "2024-01-02")):
        done(paimon.lw.run(JOB, table, ON), 2)
    assert days_in(paimon, table) == {TODAY: 20}


@pytest.mark.parametrize("keyed", [False, True])
def test_the_planned_snapshot_expires_meanwhile(paimon: PaimonLab, keyed: bool) -> None:
    """With Paimon's own expiry its manifests are gone at once: nothing is guessed, the plan is made again."""
    table = orders(paimon, keyed=keyed)

    def expire() -> None:
        paimon.maker.compact(paimon.load(table))
        write(paimon, table, 900, TODAY)
        assert paimon.maker.ownExpire(paimon.load(table), 1) > 0

    with before_drop(PaimonWriter, expire):
        done(paimon.lw.run(JOB, table, ON), 3)
    assert days_in(paimon, table) == {TODAY: 40}


@pytest.mark.parametrize("keyed", [False, True])
def test_deletion_vectors_leave_with_their_partition(paimon: PaimonLab, keyed: bool) -> None:
    options = {"bucket": "1"} if keyed else {"bucket": "-1"}
    table = shape(paimon, {"dt": "string"}, keyed=keyed, deletion_vectors__enabled="true", **options)
    for day in ("2024-01-01", TODAY):
        put(paimon, table, [[number, day] for number in range(10)])
        strike(paimon, table, day, keyed=keyed)
    assert json.loads(shapes(paimon).indexFiles(paimon.load(table))) == ["DELETION_VECTORS 1"] * 2
    rows = shape_rows(paimon, table)
    assert len(rows) == (20 if keyed else 18)

    def meanwhile() -> None:
        strike(paimon, table, "2024-01-01", keyed=keyed, row=3)

    with before_drop(PaimonWriter, meanwhile):
        run = done(paimon.lw.run(JOB, table, ON), 1)
    assert "discarded" in [step.name for step in paimon.lw.run_by_id(run.id)[1]]
    assert shape_rows(paimon, table) == [row for row in rows if TODAY in row]
    assert json.loads(shapes(paimon).indexFiles(paimon.load(table))) == ["DELETION_VECTORS 1"]


def strike(paimon: PaimonLab, table: str, day: str, *, keyed: bool, row: int = 0) -> None:
    """A row gets a deletion vector: by a newer version of it, or because it is deleted."""
    if keyed:
        put(paimon, table, [[row, day]])
    else:
        shapes(paimon).strike(paimon.load(table), day, row)


def test_a_hash_index_that_new_rows_need_is_not_dropped(paimon: PaimonLab) -> None:
    """Paimon drops the index of a bucket whatever is in it: a key written meanwhile would be put into a second bucket."""
    table = shape(paimon, {"dt": "string"}, keyed=True, bucket="-1")
    put(paimon, table, [[1, "2024-01-01"], [2, "2024-01-01"]], bucket=0)
    put(paimon, table, [[3, TODAY]], bucket=0)
    assert json.loads(shapes(paimon).indexFiles(paimon.load(table))) == ["HASH 1", "HASH 2"]
    with before_drop(PaimonWriter, lambda: put(paimon, table, [[4, "2024-01-01"]], bucket=0)):
        run = done(paimon.lw.run(JOB, table, ON), 1)
    assert "discarded" in [step.name for step in paimon.lw.run_by_id(run.id)[1]]
    assert shape_rows(paimon, table) == [f"[3, {TODAY}]"]
    assert json.loads(shapes(paimon).indexFiles(paimon.load(table))) == ["HASH 1"]


def test_types_patterns_and_values_that_are_no_time(paimon: PaimonLab) -> None:
    table = shape(paimon, {"region": "string", "day": "date"}, name="typed")
    put(paimon, table, [[1, "eu", "2024-02-29"], [2, "eu", TODAY], [3, "us", None]])
    plan = paimon.lw.plan(JOB, table, ON)
    assert [action.to_dict()["at"] for action in plan.actions] == ["2024-03-01T00:00:00+00:00"]
    done(paimon.lw.run(JOB, table, ON), 1)
    assert len(shape_rows(paimon, table)) == 2

    table = shape(paimon, {"y": "int", "m": "int"}, name="spread")
    put(paimon, table, [[1, 2024, 2], [2, int(TODAY[:4]), 12], [3, 2024, 77]])
    plan = paimon.lw.plan(JOB, table, {**ON, "partition_time_pattern": "$y-$m-01"})
    assert [action.to_dict()["partition"] for action in plan.actions] == ["y=2024/m=2"]
    assert [each.reason for each in plan.skipped if "y=2024/m=77" in each.reason]

    table = paimon.create("odd")
    for number, day in enumerate(["2024-01-01", "notadate", None, TODAY]):
        write(paimon, table, number * 10, day, rows=10)
    plan = paimon.lw.plan(JOB, table, ON)
    assert any("dt=notadate" in each.reason for each in plan.skipped)
    assert any("dt=__DEFAULT_PARTITION__" in each.reason for each in plan.skipped)
    done(paimon.lw.run(JOB, table, ON), 1)
    assert set(days_in(paimon, table)) == {"notadate", "", TODAY}  # the maker reads null as nothing
    done(paimon.lw.run(JOB, table, {"partition_where": "dt is null"}), 1)
    assert set(days_in(paimon, table)) == {"notadate", TODAY}
    done(paimon.lw.run(JOB, table, {"partition_list": "dt=notadate"}), 1)
    with pytest.raises(Refused, match="its only partition would expire"):
        paimon.lw.run(JOB, table, {"partition_list": f"dt={TODAY}"})


def test_the_options_of_a_paimon_table_only_keep_more(paimon: PaimonLab) -> None:
    options = {
        "partition__expiration-time": "7 d",
        "partition__timestamp-formatter": "yyyyMMdd",
        "partition__expiration-max-num": "1",
    }
    table = paimon.create(**options)
    for number, day in enumerate(["20240102", "20240101", TODAY.replace("-", "")]):
        write(paimon, table, number * 10, day, rows=10)
    with pytest.raises(PolicyError, match=r"partition.expiration-time.* is ignored"):
        paimon.lw.plan(JOB, table, {"partition_expiry_enabled": True})
    policy = {
        "partition_expiry_enabled": True,
        "partition_ttl_hours": 168,
        "partition_time_formatter": "yyyyMMdd",
    }
    plan = paimon.lw.plan(JOB, table, policy)
    assert [action.to_dict()["partition"] for action in plan.actions] == ["dt=20240101"]
    assert "partition_expire_limit=1 (table option partition.expiration-max-num)" in plan.cut_short


def test_the_last_change_of_a_paimon_partition(paimon: PaimonLab) -> None:
    table = orders(paimon)
    policy = {
        "partition_expiry_enabled": True,
        "partition_ttl_hours": 1,
        "partition_expiry_strategy": "update-time",
    }
    assert paimon.lw.plan(JOB, table, policy).empty
    later = clock.now() + timedelta(hours=2)
    with patch.object(clock, "now", lambda: later):
        assert len(paimon.lw.plan(JOB, table, {**policy, "partition_drop_all": True}).actions) == 4


def shapes(paimon: PaimonLab) -> Any:
    return bridge(paimon.spark, SHAPES, "lakewarden.tests.PaimonShapes")


def shape(
    paimon: PaimonLab, columns: dict[str, str], *, name: str = "shape", keyed: bool = False, **options: str
) -> str:
    told = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    shapes(paimon).create(
        paimon._opened, name, json.dumps([[key, each] for key, each in columns.items()]), keyed, told
    )
    return f"{paimon.catalog}.db.{name}"


def put(paimon: PaimonLab, table: str, rows: list[list[Any]], bucket: int = -1) -> None:
    shapes(paimon).write(paimon.load(table), json.dumps(rows), bucket)


def shape_rows(paimon: PaimonLab, table: str) -> list[str]:
    found: list[str] = json.loads(shapes(paimon).rows(paimon.load(table)))
    return found
