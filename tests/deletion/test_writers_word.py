"""Attacks by someone who may write one table: its properties and commits must not reach beyond that table's own folder."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from lakewarden.errors import PolicyError, Refused, UsageError
from lakewarden.jobs.fsck import manifests
from lakewarden.jobs.fsck.findings import Fault
from lakewarden.model.location import normal
from lakewarden.model.run import RunState
from lakewarden.storage.objects import Objects
from tests.support.lab import Lab, lakewarden
from tests.support.spark import jdbc_warehouse, remove_catalog

OLD = 10 * 86_400
# What the attacker sets besides, so that nothing waits and nothing is too much.
EAGER = {
    "lakewarden.orphan_sweep_enabled": "true",
    "lakewarden.orphan_max_percent": "100",
    "lakewarden.delete_grace_hours": "0",
    "lakewarden.snapshot_retention_hours": "0",
    "lakewarden.snapshot_min_retained": "1",
    "lakewarden.purge_outside_location": "true",
}
# What an operator may ask for, so that only the place itself is in question.
AT_ONCE: dict[str, Any] = {
    "orphan_max_percent": 100,
    "delete_grace_hours": 0,
    "snapshot_retention_hours": 0,
    "snapshot_min_retained": 1,
}


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """With a catalog whose tables can be moved, as a folder's cannot."""
    made = jdbc_warehouse(spark, tmp_path)
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, made.catalog, made.path, lw)
    remove_catalog(spark, made.catalog)


def victim(lab: Lab, tmp_path: Path, count: int = 6) -> Path:
    """A folder of Parquet files that are no table's, old enough for every grace."""
    place = tmp_path / "payroll"
    lab.spark.range(count, numPartitions=count).selectExpr(
        "id", "'x' as s", "date'2024-03-01' as d"
    ).write.parquet(str(place))
    for path in [place, *place.iterdir()]:
        os.utime(path, (time.time() - OLD, time.time() - OLD))
    return place


def files_in(place: Path) -> set[str]:
    return {str(path) for path in place.rglob("*.parquet")}


def set_properties(lab: Lab, table: str, **properties: str) -> None:
    told = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
    lab.sql(f"alter table {table} set tblproperties ({told})")


@pytest.mark.main
def test_properties_neither_delete_sooner_nor_more(lab: Lab) -> None:
    """Every property of the attack is ignored, and said to be."""
    table = lab.messy(files=4, days=1, **EAGER)
    orphan = lab.warehouse / "db/events/data/orphan.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (time.time() - OLD, time.time() - OLD))
    snapshots = len(lab.snapshots(table))
    assert lab.lw.run("expire", table).state is RunState.NOTHING_TO_DO
    assert lab.lw.run("sweep", table).state is RunState.DONE
    assert lab.lw.run("purge", table).state is RunState.NOTHING_TO_DO
    assert orphan.exists() and len(lab.snapshots(table)) == snapshots
    policy = lab.lw.policy(table)
    assert {f"lakewarden.{each.key}" for each in policy.ignored} == set(EAGER)
    assert policy["orphan_sweep_enabled"] is False


def test_properties_name_no_other_catalog_and_carry_no_expression(lab: Lab) -> None:
    endless = "levenshtein(repeat(''a'', 100000000), repeat(''b'', 100000000)) > 1"
    table = lab.messy(
        files=4,
        days=1,
        **{
            "lakewarden.handoff_enabled": "true",
            "lakewarden.handoff_catalog": "other",
            "lakewarden.rewrite_where": endless.replace("''", "\\'"),
            "lakewarden.rewrite_target_bytes": "1",
            "lakewarden.rewrite_min_input_files": "2",
        },
    )
    run = lab.lw.run("compact", table)
    assert run.state is RunState.DONE, run.reason
    assert len(lab.data_files(table)) == 1, "a file for each row was asked for"
    policy = lab.lw.policy(table)
    assert (policy["handoff_enabled"], policy["handoff_catalog"]) == (False, None)
    ignored = {each.key for each in policy.ignored}
    assert ignored == {"handoff_enabled", "handoff_catalog", "rewrite_where", "rewrite_target_bytes"}
    assert policy["rewrite_min_input_files"] == 2, "what tunes a rewrite counts"


ENDLESS = "levenshtein(repeat('a', 100000000), repeat('b', 100000000)) > 1"


def test_a_filter_that_would_keep_the_driver_busy_is_refused_at_once(lab: Lab) -> None:
    """A token that may only read asks `row_filter`; an operator's `rewrite_where` is held to the same."""
    table = lab.messy(files=2, days=1)
    lab.lw.history.ingested(table, row_filter="d = date'2024-03-01' and id < 5")
    began = time.monotonic()
    with pytest.raises(UsageError, match="'levenshtein' at letter 1 is called as a function"):
        lab.lw.history.ingested(table, row_filter=ENDLESS)
    with pytest.raises(PolicyError, match="'levenshtein' at letter 1 is called as a function"):
        lab.lw.plan("compact", table, {"rewrite_where": ENDLESS})
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("where", "days"),
    [
        ("d = '2024-03-01'", 1),
        ("d >= date '2024-03-02'", 2),
        ("D <> date'2024-03-02'", 2),
        ("not d in ('2024-03-01', date'2024-03-02')", 1),
        ("d between date'2024-03-01' and date'2024-03-02' and s is not null", 2),
        ("s like 'name-%' or d is null", 3),
        ("s like 'zzz%'", 0),
        ("id > 10000", 0),
    ],
)
def test_filters_choose_the_files_that_can_match(lab: Lab, where: str, days: int) -> None:
    table = lab.messy(files=1, days=3)
    plan = lab.lw.plan("compact", table, {"rewrite_where": where})
    assert sum(each.count for each in plan.skipped if each.what == "file") == days, plan.skipped


@contextmanager
def listed() -> Iterator[list[str]]:
    """The folders that are listed."""
    found: list[str] = []
    real = Objects.list

    def spied(self: Objects, folder: str) -> Any:
        found.append(folder)
        return real(self, folder)

    with patch.object(Objects, "list", spied):
        yield found


def test_a_data_path_that_names_another_folder_is_neither_listed_nor_swept(lab: Lab, tmp_path: Path) -> None:
    place = victim(lab, tmp_path)
    before = files_in(place)
    table = lab.messy(files=2, days=1)
    set_properties(lab, table, **EAGER, **{"write.data.path": f"file:{place}"})
    with listed() as folders:
        plan = lab.lw.plan("sweep", table, AT_ONCE)
        assert plan.empty, plan.trash
        assert lab.lw.run("sweep", table, AT_ONCE).state is RunState.NOTHING_TO_DO
        lab.lw.run("purge", table, AT_ONCE)
    # Whether another tool's metadata lies in it is asked all the same, before a rewrite too: three short listings.
    assert not [each for each in folders if each.rstrip("/").endswith("payroll")]
    assert files_in(place) == before
    told = [each.reason for each in plan.skipped if each.what == "place"]
    assert len(told) == 1 and "write.data.path" in told[0] and "own_places" in told[0]
    confirmed = lab.lw.plan("sweep", table, {**AT_ONCE, "own_places": [str(place)]})
    assert {normal(each.path) for each in confirmed.trash} == before, (
        "the operator may say that it is the table's"
    )


def test_fsck_of_a_data_path_with_much_else_in_it_stops_early(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be a whole bucket: what the table names there is looked for, the rest is neither listed nor reported."""
    monkeypatch.setattr(manifests, "_STRANGERS", 10)
    place = tmp_path / "bucket"
    (place / "schema").mkdir(parents=True)
    for number in range(30_000):
        (place / "schema" / f"a-{number}").touch()
    table = lab.create(partition="")
    set_properties(lab, table, **{"write.data.path": f"file:{place}"})
    lab.append(table, 2)
    seen: dict[str, int] = {}
    real = Objects.list

    def spied(self: Objects, folder: str) -> Any:
        found = 0
        for batch in real(self, folder):
            found += batch.num_rows
            seen[folder] = max(found, seen.get(folder, 0))
            yield batch

    with patch.object(Objects, "list", spied):
        checkup = lab.lw.fsck(table)
        assert lab.lw.run("compact", table).state in (RunState.DONE, RunState.NOTHING_TO_DO)
    assert checkup.healthy and not any(each.fault is Fault.ORPHANS for each in checkup.findings)
    assert max(seen.values()) < 30_000, f"whoever may set a property has a whole bucket listed: {seen}"


def test_one_commit_does_not_make_another_folder_the_tables_own(lab: Lab, tmp_path: Path) -> None:
    """Files of others that the table takes in and drops again: named by it, trashed by expire, and never erased."""
    place = victim(lab, tmp_path)
    before = files_in(place)
    table = lab.create(partition="")
    set_properties(lab, table, **EAGER, **{"write.data.path": f"file:{place}"})
    lab.sql(
        f"call {lab.catalog}.system.add_files(table => 'db.events', source_table => '`parquet`.`{place}`')"
    )
    lab.sql(f"delete from {table}")
    lab.lw.run("expire", table, AT_ONCE)
    assert before <= lab.trash(table)
    run = lab.lw.run("purge", table, AT_ONCE)
    assert before <= files_in(place), "files of others were erased"
    assert "outside the table's own places" in run.reason


def test_a_link_in_the_tables_folder_makes_no_other_folder_its_own(lab: Lab, tmp_path: Path) -> None:
    """The paths that the table names lie in its folder, and what they lead to does not."""
    place = victim(lab, tmp_path)
    before = files_in(place)
    table = lab.create(partition="")
    set_properties(lab, table, **EAGER)
    lab.append(table, 1)
    link = Path(normal(lab.data_files(table)[0])).with_name("evil")
    link.symlink_to(place)
    lab.sql(
        f"call {lab.catalog}.system.add_files(table => 'db.events', source_table => '`parquet`.`{link}`')"
    )
    lab.sql(f"delete from {table}")
    lab.lw.run("expire", table, AT_ONCE)
    assert any("/evil/" in each for each in lab.trash(table))
    run = lab.lw.run("purge", table, AT_ONCE)
    assert before <= files_in(place), "files of others were erased"
    assert run.counters["files_erased"] > 0 and "outside the table's own places" in run.reason


def take_in(lab: Lab, files: set[str], table: str = "events") -> None:
    """The table names files of others, which stay where they are."""
    for path in sorted(files):
        lab.sql(
            f"call {lab.catalog}.system.add_files(table => 'db.{table}', source_table => '`parquet`.`{path}`')"
        )


@pytest.mark.parametrize("before", ["seen", "not seen", "renamed"])
def test_a_new_uuid_and_a_new_location_in_one_commit(lab: Lab, tmp_path: Path, before: str) -> None:
    """All files of others but one are taken in, so that the one is no large share of what is listed. The policy is the default."""
    place = victim(lab, tmp_path, count=8)
    files = files_in(place)
    table = lab.create(partition="")
    lab.append(table, 2)
    if before != "not seen":
        assert lab.lw.run("sweep", table).state is RunState.NOTHING_TO_DO
    take_in(lab, set(sorted(files)[1:]))
    jvm = lab.spark._jvm
    assert jvm is not None
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lab.spark._jsparkSession, table)
    base = loaded.operations().current()
    change = jvm.org.apache.iceberg.TableMetadata.buildFrom(base).assignUUID(str(uuid.uuid4()))
    loaded.operations().commit(base, change.setLocation(f"file:{place}").build())
    lab.sql(f"refresh table {table}")
    if before == "renamed":
        lab.sql(f"alter table {table} rename to db.fresh")
        table = lab.table("fresh")
    if before == "seen":
        with pytest.raises(Refused, match="first seen") as refused:
            lab.lw.run("sweep", table)
        assert f"own_places=file:{place}" in refused.value.hint
    else:
        plan = lab.lw.plan("sweep", table)
        assert plan.empty and any("older than the table" in each.reason for each in plan.skipped), (
            plan.skipped
        )
        assert lab.lw.run("sweep", table).state is RunState.NOTHING_TO_DO
    lab.lw.run("purge", table, {"delete_grace_hours": 0})
    assert files_in(place) >= files


def test_a_new_table_in_a_folder_of_others(lab: Lab, tmp_path: Path) -> None:
    """What is older than the table is not its orphan; what it left there itself is."""
    place = victim(lab, tmp_path, count=8)
    files = files_in(place)
    lab.create(partition="")  # the namespace
    table = lab.table("fresh")
    lab.sql(f"create table {table} (id bigint, s string, d date) using iceberg location 'file:{place}'")
    take_in(lab, set(sorted(files)[1:]), "fresh")
    own = place / "data" / "00000-1-0b6c1f3a-5d0e-4f1c-9a53-2f6f0c7f5b11-0-00001.parquet"
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(b"x")
    os.utime(own, (time.time() - OLD, time.time() - OLD))
    plan = lab.lw.plan("sweep", table)
    assert [normal(each.path) for each in plan.trash] == [str(own)]
    assert any("older than the table" in each.reason and each.count == 1 for each in plan.skipped)
    said = lab.lw.plan("sweep", table, {**AT_ONCE, "own_places": str(place)})
    assert {normal(each.path) for each in said.trash} == {str(own), min(files)}


def test_a_table_that_is_dropped_and_created_again_is_swept(lab: Lab) -> None:
    for number in range(3):
        table = lab.create(partition="")
        lab.append(table, 1)
        orphan = lab.warehouse / f"db/events/data/orphan-{number}.parquet"
        orphan.write_bytes(b"x")
        os.utime(orphan, (time.time() - OLD, time.time() - OLD))
        lab.lw.run("sweep", table, AT_ONCE)
        assert str(orphan) in lab.trash(table)
        lab.sql(f"drop table {table} purge")
        shutil.rmtree(lab.warehouse / "db/events")


@pytest.mark.main
def test_a_location_that_changed_is_not_swept_until_the_operator_says_so(lab: Lab, tmp_path: Path) -> None:
    place = victim(lab, tmp_path)
    before = files_in(place)
    table = lab.messy(files=2, days=1)
    lab.lw.view(table)
    lab.sql(f"alter table {table} set location 'file:{place}'")
    lab.append(table, 1, start=5_000)
    with listed() as folders, pytest.raises(Refused) as refused:
        lab.lw.run("sweep", table, AT_ONCE)
    assert not [each for each in folders if each.rstrip("/").endswith("payroll")]
    for words in ("payroll", "warehouse/db/events", "own_places"):
        assert words in f"{refused.value.message} {refused.value.hint}"
    confirmed = lab.lw.plan("sweep", table, {**AT_ONCE, "own_places": f"file:{place}"})
    assert {normal(each.path) for each in confirmed.trash} == before


def test_a_table_that_puts_its_metadata_into_another_one_s_folder_is_named(lab: Lab) -> None:
    """Its writer can write there: whose the other files in the folder are is not known."""
    table, other = lab.messy(files=2, days=1), lab.table("other")
    lab.sql(f"create table {other} (id bigint) using iceberg")
    lab.lw.view(other)
    set_properties(lab, other, **{"write.metadata.path": f"file:{lab.warehouse}/db/events/data/inner"})
    with pytest.raises(Refused, match=r"data/inner/.*\.metadata\.json is the metadata of"):
        lab.lw.plan("sweep", table, AT_ONCE)


def test_a_table_that_claims_a_folder_inside_of_another_stops_no_other(lab: Lab) -> None:
    how, table = "write.data.path", lab.messy(files=2, days=1)
    orphans = [
        lab.warehouse / f"db/events/data/{name}" for name in ("orphan.parquet", "inner/orphan.parquet")
    ]
    orphans[1].parent.mkdir()
    for orphan in orphans:
        orphan.write_bytes(b"x")
        os.utime(orphan, (time.time() - OLD, time.time() - OLD))
    other = lab.table("other")
    lab.sql(f"create table {other} (id bigint) using iceberg")
    lab.lw.view(other)
    set_properties(lab, other, **{how: f"file:{orphans[1].parent}"})
    plan = lab.lw.plan("sweep", table, AT_ONCE)
    assert any(f"db.other by {how}" in each.reason and each.count == 1 for each in plan.skipped), plan.skipped
    assert lab.lw.run("sweep", table, AT_ONCE).state is RunState.DONE
    assert lab.lw.run("purge", table, AT_ONCE).state is RunState.DONE
    assert [each.exists() for each in orphans] == [False, True]


@pytest.mark.parametrize("how", ["write.data.path", "write.metadata.path", "location"])
def test_a_table_that_claims_the_warehouse_stops_no_other(lab: Lab, how: str) -> None:
    table = lab.messy(files=2, days=1)
    orphan = lab.warehouse / "db/events/data/orphan.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (time.time() - OLD, time.time() - OLD))
    other = lab.table("other")
    lab.sql(f"create table {other} (id bigint) using iceberg")
    lab.lw.view(other)
    if how == "location":
        lab.sql(f"alter table {other} set location 'file:{lab.warehouse}'")
    else:
        set_properties(lab, other, **{how: f"file:{lab.warehouse}"})
    assert lab.lw.run("sweep", table, AT_ONCE).state is RunState.DONE
    assert lab.lw.run("purge", table, AT_ONCE).state is RunState.DONE
    assert not orphan.exists()
    with pytest.raises(Refused, match=r"other|first seen"):
        lab.lw.run("sweep", other, {**AT_ONCE, "own_places": str(lab.warehouse)})


def test_whose_place_it_is_is_asked_before_anything_is_listed(lab: Lab) -> None:
    table = lab.messy(files=2, days=1)
    other = lab.table("inner")
    lab.sql(
        f"create table {other} (id bigint) using iceberg location 'file:{lab.warehouse}/db/events/data/inner'"
    )
    with listed() as folders, pytest.raises(Refused, match="shares a place"):
        lab.lw.run("sweep", table, AT_ONCE)
    assert [each for each in folders if each.rstrip("/").endswith("events")] == []


def test_a_place_that_holds_no_file_of_the_table_is_not_swept(lab: Lab, tmp_path: Path) -> None:
    """First seen at a place where none of its files lie: what lies there is somebody else's."""
    place = victim(lab, tmp_path)
    before = files_in(place)
    table = lab.messy(files=2, days=1)
    lab.sql(
        f"alter table {table} set tblproperties ('write.metadata.path'='file:{lab.warehouse}/db/events/metadata', "
        f"'write.data.path'='file:{lab.warehouse}/db/events/data')"
    )
    lab.sql(f"alter table {table} set location 'file:{place}'")
    with pytest.raises(Refused, match="no file of the table"):
        lab.lw.run("sweep", table, AT_ONCE)
    assert files_in(place) == before
