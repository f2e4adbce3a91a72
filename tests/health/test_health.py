"""Health of real tables: numbers against what Spark counts, what a look costs, and that one bad table stops no other."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from unittest.mock import patch

import pytest

from lakewarden.health.build_table_details import MOST_BYTES
from lakewarden.health.table_details import TableDetails
from lakewarden.state.health import TableHealth
from lakewarden.tables.iceberg.format import Iceberg
from tests.support.lab import Lab
from tests.support.paimon import PaimonLab


def seen(lab: Lab | PaimonLab, table: str) -> TableHealth:
    found = lab.lw.health.of(table)
    assert found is not None
    return found


def portrait(lab: Lab | PaimonLab, table: str) -> TableDetails:
    found = lab.lw.health.portrait_of(table)
    assert found is not None
    return found


@pytest.mark.main
def test_the_numbers_are_those_spark_counts(lab: Lab) -> None:
    table = lab.messy(files=3, rows=20)
    lab.sql(f"alter table {table} set tblproperties ('write.delete.mode'='merge-on-read')")
    lab.sql(f"delete from {table} where id in (1, 2, 21)")
    sweep = lab.lw.health.look([table])
    assert (sweep.tables, sweep.changed, sweep.failed) == (1, 1, 0)
    numbers = seen(lab, table).numbers

    [(files, bytes_)] = lab.sql(f"select count(*), sum(file_size_in_bytes) from {table}.data_files")
    [(deletes, delete_bytes, rows)] = lab.sql(
        f"select count(*), sum(file_size_in_bytes), sum(record_count) from {table}.delete_files"
    )
    [(manifests, manifest_bytes)] = lab.sql(f"select count(*), sum(length) from {table}.manifests")
    assert (numbers.files, numbers.delete_files, numbers.bytes) == (files, deletes, bytes_ + delete_bytes)
    assert (numbers.manifests, numbers.manifest_bytes) == (manifests, manifest_bytes)
    assert numbers.snapshots == len(lab.snapshots(table))
    assert (numbers.deleted_rows, numbers.small_files) == (rows, files)
    assert numbers.delete_ratio == pytest.approx(max(deletes / files, 3 / 60), abs=1e-4)
    assert numbers.lineage_gaps == numbers.snapshots and not numbers.lineage_asked


def test_the_portrait_tells_why_each_snapshot_stays(lab: Lab) -> None:
    table = lab.messy(files=4, rows=5)
    first, *_ = (row.snapshot_id for row in lab.snapshots(table))
    lab.lw.set_policy(table, {"snapshot_retention_hours": "1h", "snapshot_min_retained": 2})
    with lab.lw.pin(table, first, holder="report", ttl="2h"):
        lab.lw.health.look([table])
        found = portrait(lab, table)
    assert found.location and found.partition_by == ("d",) and found.columns[0].name == "id"
    assert len(found.snapshots) == found.snapshots_total == 4
    by_id = {each.id: each for each in found.snapshots}
    assert by_id[first].kept.startswith("pinned by report") and by_id[first].expires_at is None
    newest, _second, third, _first = found.snapshots
    assert newest.current and newest.kept == "the current snapshot"
    assert third.kept.startswith("inside the window")
    assert third.expires_at == third.at + timedelta(hours=1)
    assert third.added_files == 2 and third.added_rows == 5
    assert [each.kind for each in found.holds if each.kind == "pin"] == ["pin"]
    assert {each.job: each.exact for each in found.due}["expire"] is True
    assert next(each for each in found.policy if each.key == "snapshot_retention_hours").origin == "table"
    assert found.partitions_total == 2 and found.partitions[0].small_files == 4
    assert sum(each.cost for each in found.score_parts) == pytest.approx(100 - seen(lab, table).score, abs=1)
    assert len(json.dumps(found.to_dict())) < MOST_BYTES
    assert TableDetails.read(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.main
def test_an_unchanged_table_costs_one_call_and_keeps_its_numbers(lab: Lab) -> None:
    table = lab.messy(files=2, rows=5)
    lab.lw.health.look([table])
    before = seen(lab, table)
    with patch.object(Iceberg, "view", side_effect=AssertionError("an unchanged table was read")):
        sweep = lab.lw.health.look([table])
    after = seen(lab, table)
    assert (sweep.changed, sweep.failed) == (0, 0)
    assert after.numbers == before.numbers and after.portrait == before.portrait and after.at > before.at

    lab.lw.set_policy(table, {"rewrite_small_bytes": 1})
    assert lab.lw.health.look([table]).changed == 1
    assert seen(lab, table).numbers.small_files == 0

    lab.append(table, 1, start=1000)
    lab.lw.health.collector._memory[table].seconds = 60.0
    assert lab.lw.health.look([table], routine=True).tables == 0, (
        "a look that takes a minute is not repeated every minute"
    )
    assert lab.lw.health.look([table]).changed == 1
    assert seen(lab, table).numbers.snapshots == 3


def test_one_bad_table_stops_no_other_and_says_why(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    good = lab.messy(files=1, rows=5)
    bad = lab.table("broken")
    lab.sql(f"create table {bad} (id bigint) using iceberg")
    lab.sql(f"insert into {bad} values (1)")
    lab.lw.health.look([good, bad])
    assert not seen(lab, bad).error
    metadata = lab.warehouse / "db" / "broken" / "metadata"
    kept = {each: each.read_bytes() for each in metadata.iterdir() if each.name.endswith(".metadata.json")}
    for each in kept:
        each.write_text("{ broken")
    with caplog.at_level(logging.INFO, "lakewarden.health.warnings"):
        sweep = lab.lw.health.look([good, bad])
        assert not lab.lw.health.warnings(bad), "a look that failed once may have been chance"
        lab.lw.health.look([good, bad])
        lab.lw.health.look([good, bad])
    assert (sweep.tables, sweep.failed) == (2, 1)
    assert not seen(lab, good).error
    broken = seen(lab, bad)
    assert broken.error and broken.score == 0 and broken.numbers.files == 1 and broken.portrait
    assert [each.kind for each in lab.lw.health.warnings(bad)] == ["unreadable"]
    logged = [each for each in caplog.records if "unreadable" in each.getMessage()]
    assert [each.levelname for each in logged] == ["WARNING"], "a new warning is logged once"

    for each, content in kept.items():
        each.write_bytes(content)
    with caplog.at_level(logging.INFO, "lakewarden.health.warnings"):
        lab.lw.health.look([good, bad])
    assert not seen(lab, bad).error and not lab.lw.health.warnings(bad)
    assert caplog.records[-1].getMessage() == f"{bad}: unreadable is over"


def test_a_dropped_table_is_forgotten(lab: Lab) -> None:
    table = lab.messy(files=1, rows=5)
    lab.lw.health.look()
    assert [each.table for each in lab.lw.health.all()] == [table]
    lab.sql(f"drop table {table}")
    assert lab.lw.health.look().forgotten == 1
    assert lab.lw.health.all() == ()


def test_trashed_files_count_without_reading_the_table_again(lab: Lab) -> None:
    table = lab.messy(files=4, rows=5)
    lab.lw.set_policy(
        table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1, "delete_grace_hours": "1h"}
    )
    lab.lw.health.look([table])
    assert seen(lab, table).numbers.overdue_snapshots == 3
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    lab.lw.run("expire", table)
    lab.lw.health.look([table])
    numbers = seen(lab, table).numbers
    assert numbers.overdue_snapshots == 0
    assert numbers.trashed_files == len(lab.trash(table)) > 0
    assert numbers.due_trashed_files == 0
    with patch.object(Iceberg, "view", side_effect=AssertionError("an unchanged table was read")):
        lab.lw.restore(table, everything=True)
        lab.lw.health.look([table])
    assert seen(lab, table).numbers.trashed_files == 0
    # Its page does not say one thing in its numbers and another in what each job would do.
    [purge] = [each for each in portrait(lab, table).due if each.job == "purge"]
    assert (purge.due, purge.reason) == (False, "no file is in the trash")


def test_what_a_hold_costs(lab: Lab) -> None:
    table = lab.messy(files=2, rows=200)
    first = lab.snapshots(table)[0].snapshot_id
    lab.lw.set_policy(table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    lab.sql(f"delete from {table} where true")
    lab.lw.holds.tag(table, "audit", first, forever=True)
    lab.lw.health.look([table])
    numbers, found = seen(lab, table).numbers, portrait(lab, table)
    [tag] = [each for each in found.holds if each.kind == "tag"]
    told = {hold.name: cost for hold, cost in lab.lw.holds.costs(table)}
    assert tag.bytes == told["audit"] and tag.bytes
    assert numbers.held_bytes == numbers.held_forever_bytes == tag.bytes


def test_what_many_holds_cost_is_known_to_the_next_leader_and_forgotten_with_them(lab: Lab) -> None:
    table = lab.messy(files=7, rows=50, days=1)
    snapshots = [row.snapshot_id for row in lab.snapshots(table)]
    lab.lw.set_policy(table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    lab.sql(f"delete from {table} where true")
    for number, each in enumerate(snapshots):
        lab.lw.holds.tag(table, f"audit-{number}", each, forever=True)
    lab.lw.health.look([table])
    assert sum(each.bytes is not None for each in portrait(lab, table).holds if each.kind == "tag") == 5

    lab.append(table, 1, start=1000)
    lab.lw.health.look([table])
    tags = [each for each in portrait(lab, table).holds if each.kind == "tag"]
    held = seen(lab, table).numbers.held_bytes
    assert held == sum(each.bytes or 0 for each in tags) > 0 and all(each.bytes is not None for each in tags)

    lab.lw.health._collector = None  # another process leads now
    lab.append(table, 1, start=2000)
    lab.lw.health.look([table])
    assert seen(lab, table).numbers.held_bytes == held, "a takeover does not start from nothing"

    for number in range(1, 7):
        lab.lw.holds.untag(table, f"audit-{number}")
    lab.lw.health.look([table])
    [(_, known)] = lab.lw.health.collector._held._known.values()
    assert [name for _, name, *_ in known] == ["audit-0"], "what is held no more is not remembered"


def test_maintenance_that_is_off_is_looked_at_all_the_same(lab: Lab) -> None:
    table = lab.messy(files=9, rows=5, days=1)
    lab.lw.set_policy(
        table, {"maintenance_enabled": False, "snapshot_expiry_enabled": False, "snapshot_retention_hours": 0}
    )
    lab.lw.health.look([table])
    assert seen(lab, table).numbers.overdue_snapshots == 4
    assert seen(lab, table).debt > 0


def test_what_if_from_the_database_alone(lab: Lab) -> None:
    table = lab.messy(files=10, rows=20, days=1)
    lab.lw.health.look([table])
    answer = lab.lw.health.what_if(table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 2})
    assert answer.old.snapshots == 10 and answer.new.snapshots == 2 and answer.commits == 10
    assert {each.key for each in answer.changes} == {"snapshot_retention_hours", "snapshot_min_retained"}
    assert len(answer.new.moments) > 1 and json.dumps(answer.to_dict())


@pytest.mark.main
def test_paimon_tables_have_the_same_numbers(paimon: PaimonLab) -> None:
    plain, keyed = paimon.create(), paimon.create("keyed", keyed=True)
    paimon.append(plain, 3)
    paimon.append(keyed, 3)
    sweep = paimon.lw.health.look([plain, keyed])
    assert (sweep.tables, sweep.failed) == (2, 0), [each.error for each in paimon.lw.health.all()]
    found = portrait(paimon, plain)
    view = paimon.lw.health.counted(paimon.lw.view(plain))
    numbers = seen(paimon, plain).numbers
    assert (numbers.files, numbers.snapshots) == (view.counters.data_files, view.counters.snapshots)
    assert found.format == "paimon" and portrait(paimon, keyed).primary_keys
