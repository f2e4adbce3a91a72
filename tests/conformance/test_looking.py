"""What every format tells of its tables, and tells alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakewarden.errors import NoSuchTable, UsageError
from lakewarden.model.location import normal
from lakewarden.model.table import TableRef
from tests.conformance.lakes import DAYS, Lake
from tests.support.guard import Unasked


def test_an_empty_table(lake: Lake) -> None:
    lake.create()
    view = lake.view()
    assert view.current_snapshot_id is None and view.snapshots == () and view.head() is None
    assert view.counters.data_files == view.counters.records == 0
    for job in ("compact", "rewrite-manifests", "expire", "purge"):
        run = lake.run(job)
        assert run.state == "nothing-to-do" and run.reason, job


@pytest.mark.main
def test_a_table_is_listed_and_described(lake: Lake) -> None:
    lake.create()
    lake.append(4)
    assert lake.ref in lake.lw.tables(lake.catalog)
    view = lake.view()
    assert view.ref == lake.ref and view.uuid and view.format == lake.implementation.__name__.lower()
    assert Path(normal(view.location).removeprefix("file:")) == lake.folder
    assert [each.id for each in view.snapshots][-1] == view.current_snapshot_id == view.head()
    assert len(view.snapshots) == len({each.id for each in view.snapshots}) == 4
    assert sorted(view.snapshots, key=lambda each: each.committed_at) == list(view.snapshots)
    assert all(
        each.parent_id == before.id for before, each in zip(view.snapshots, view.snapshots[1:], strict=False)
    )
    assert view.counters.records == 80 and view.counters.snapshots == 4


@pytest.mark.main
def test_a_table_that_is_not_there(lake: Lake) -> None:
    lake.create()
    with pytest.raises(NoSuchTable) as raised:
        lake.format.view(TableRef(lake.catalog, ("db",), "nowhere"))
    assert "nowhere" in str(raised.value) and raised.value.hint


def test_a_renamed_table_is_the_same_and_one_made_anew_is_not(lake: Lake) -> None:
    lake.create()
    lake.append(1)
    first = lake.view().uuid
    lake.rename("renamed")
    assert lake.view().uuid == first
    lake.table = f"{lake.catalog}.db.events"
    lake.create()
    assert lake.view().uuid != first


def test_every_view_is_fresh(lake: Lake) -> None:
    lake.create()
    lake.append(1)
    before = lake.view()
    lake.append(1, first=100)
    assert lake.view().current_snapshot_id != before.current_snapshot_id
    assert lake.view().counters.records == 40


def test_the_version_changes_with_the_table_and_only_then(lake: Lake) -> None:
    lake.create()
    lake.append(1)
    ref = TableRef.parse(lake.table)
    format_ = lake.lw.lake.format_for(ref)
    seen = [format_.version(ref)]
    assert seen[0] == format_.version(ref) == lake.view().state_version
    lake.append(1, first=100)
    seen.append(format_.version(ref))
    lake.lw.holds.tag(lake.table, "audit", forever=True)
    seen.append(format_.version(ref))
    lake.lw.holds.untag(lake.table, "audit")
    lake.lw.run("expire", lake.table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    seen.append(format_.version(ref))
    assert seen[-1] == lake.view().state_version
    assert len(set(seen)) == 4


def test_health_counts_what_the_format_counts(lake: Lake) -> None:
    lake.busy()
    sweep = lake.lw.health.look([lake.table])
    assert (sweep.tables, sweep.changed, sweep.failed) == (1, 1, 0)
    found = lake.lw.health.of(lake.table)
    assert found is not None and not found.error
    told = lake.lw.health.counted(lake.view()).counters
    numbers = found.numbers
    assert (numbers.files, numbers.delete_files) == (told.data_files, told.delete_files)
    assert (numbers.records, numbers.snapshots) == (told.records, told.snapshots)
    assert numbers.bytes >= told.bytes > 0
    assert numbers.manifests == len(lake.lw.health.manifests(lake.view()))
    portrait = lake.lw.health.portrait_of(lake.table)
    assert portrait is not None and portrait.snapshots_total == told.snapshots
    assert portrait.partitions and sum(each.files for each in portrait.partitions) == numbers.files
    assert {each.id for each in portrait.snapshots} == {each.id for each in lake.view().snapshots}
    assert lake.lw.health.look([lake.table]).changed == 0


def test_live_files_are_all_of_them(lake: Lake) -> None:
    lake.busy()
    view = lake.view()
    for snapshot in view.snapshots:
        files = lake.format.files(lake.ref, snapshot.id, None)
        assert sum(files.files["records"].to_pylist()) == len(lake.rows(snapshot.id))
        for path in files.files["path"].to_pylist():
            assert Path(normal(path).removeprefix("file:")).is_file()
        assert len({each.path for each in files.partitions}) == len(files.partitions)
    live = lake.format.files(lake.ref, lake.head(), None).files
    counters = lake.lw.health.counted(view).counters
    assert len(live) == counters.data_files and counters.records == len(lake.rows())
    assert sum(live["bytes"].to_pylist()) == counters.bytes


def test_partitions_add_up(lake: Lake) -> None:
    lake.create()
    lake.append(5)
    found = lake.format.partitions(lake.view())
    assert found.snapshot_id == lake.head()
    rows = {each.path.split("=")[-1]: each.rows for each in found.partitions}
    assert rows == {DAYS[0]: 40, DAYS[1]: 40, DAYS[2]: 20}
    some = lake.format.partitions(lake.view(), f"dt < '{DAYS[2]}'")
    assert some.matching is not None and len(some.matching) == 2


def test_manifests_are_files_that_are_there(lake: Lake) -> None:
    lake.create()
    lake.append(3)
    found = lake.format.manifests(lake.ref, lake.head())
    assert found
    for each in found:
        assert Path(normal(each.path).removeprefix("file:")).stat().st_size == each.bytes


def test_tags_are_given_moved_and_taken_away(lake: Lake) -> None:
    lake.create()
    lake.append(3)
    first, rows = lake.view().snapshots[0].id, lake.rows(lake.view().snapshots[0].id)
    lake.lw.holds.tag(lake.table, "then", snapshot_id=first, forever=True)
    assert [(each.name, each.snapshot_id) for each in lake.view().refs if each.kind == "tag"] == [
        ("then", first)
    ]
    assert lake.rows(ref="then") == rows
    writer = lake.format.writer(Unasked())
    with pytest.raises(UsageError, match="then"):
        writer.create_tag(lake.ref, "then", first, None)
    with pytest.raises(UsageError, match="12345"):
        writer.create_tag(lake.ref, "other", 12345, None)
    lake.lw.holds.untag(lake.table, "then")
    assert not [each for each in lake.view().refs if each.kind == "tag"]
    with pytest.raises(UsageError, match="then"):
        writer.drop_tag(lake.ref, "then")
    with pytest.raises(UsageError, match="then"):
        writer.retain_tag(lake.ref, "then", None)


@pytest.mark.main
def test_plans_have_one_shape(lake: Lake) -> None:
    """What `--json` prints has the same keys for every format, so that a script need not know which one a table is."""
    lake.create()
    lake.append(4)
    for job in (
        "compact",
        "compact-deletes",
        "rewrite-manifests",
        "expire-partitions",
        "expire",
        "sweep",
        "purge",
    ):
        plan = lake.lw.plan(job, lake.table).to_dict()
        assert set(plan) >= SHAPE, job
        assert json.loads(json.dumps(plan)) == plan
        assert plan["reason"] or plan["actions"], job


SHAPE = {
    "job",
    "table",
    "made_at",
    "base_snapshot_id",
    "empty",
    "reason",
    "policy_hash",
    "actions",
    "skipped",
}
