"""Expire, sweep and purge on real Paimon tables, against what Paimon's own tools do to a copy of the same table."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from lakewarden import Lakewarden
from lakewarden.errors import CommitLost, LakewardenError, Refused, Unreachable
from lakewarden.model.run import RunState
from tests.support.guard import Unasked
from tests.support.paimon import PaimonLab, files_below

NOW = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
AT_ONCE = {"delete_grace_hours": 0}
KINDS = [
    pytest.param(False, {}, id="append"),
    pytest.param(False, {"bucket": "2", "bucket-key": "id"}, id="append, fixed buckets"),
    pytest.param(True, {}, id="primary key"),
    pytest.param(True, {"changelog-producer": "input"}, id="primary key, changelog"),
    pytest.param(True, {"deletion-vectors.enabled": "true"}, id="primary key, deletion vectors"),
]


def expire(lab: PaimonLab, table: str, **policy: object) -> None:
    assert lab.lw.run("expire", table, {**NOW, **policy}).state is RunState.DONE


def purge(lab: PaimonLab, table: str) -> None:
    run = lab.lw.run("purge", table, AT_ONCE)
    assert run.state is RunState.DONE, run.reason


def age(folder: Path) -> None:
    """Everything in it was written two months ago."""
    then = time.time() - 60 * 86_400
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def hints(paths: set[str]) -> set[str]:
    return {path for path in paths if not path.endswith(("EARLIEST", "LATEST"))}


@pytest.mark.parametrize(("keyed", "options"), KINDS)
@pytest.mark.parametrize("keep", [1, 4])
def test_the_same_files_go_as_by_paimons_own_expiry(
    paimon: PaimonLab, keyed: bool, options: dict[str, str], keep: int
) -> None:
    table = paimon.busy(keyed=keyed, **options)
    rows = paimon.rows(table)
    with paimon.twin(table) as (twin, folder):
        assert paimon.maker.ownExpire(twin, keep) > 0
        expected = files_below(folder)
    expire(paimon, table, snapshot_min_retained=keep)
    assert paimon.rows(table) == rows
    purge(paimon, table)
    assert hints(paimon.on_disk(table)) == hints(expected)
    assert paimon.rows(table) == rows


@pytest.mark.parametrize(("keyed", "options"), KINDS)
def test_every_file_of_a_busy_table_is_known(paimon: PaimonLab, keyed: bool, options: dict[str, str]) -> None:
    table = paimon.busy(keyed=keyed, **options)
    paimon.maker.tag(paimon.load(table), "then", 3)
    paimon.load(table).createBranch("side", "then")
    age(paimon.folder(table))
    plan = paimon.lw.plan("sweep", table)
    assert plan.empty, plan.trash
    told = {each.reason: each.count for each in plan.skipped if each.count}
    assert set(told) == {"named by the table's metadata"}, told


@pytest.mark.main
def test_orphans_are_those_that_paimon_finds(paimon: PaimonLab) -> None:
    table = paimon.busy()
    folder = paimon.folder(table)
    before = paimon.on_disk(table)
    planted = {
        "dt=2024-01-01/bucket-0/data-11111111-1111-1111-1111-111111111111-0.parquet",
        "dt=2024-09-09/bucket-0/data-22222222-2222-2222-2222-222222222222-0.parquet",
        "manifest/manifest-33333333-3333-3333-3333-333333333333-0",
        "manifest/manifest-list-33333333-3333-3333-3333-333333333333-0",
        "manifest/index-manifest-33333333-3333-3333-3333-333333333333-0",
        "index/index-33333333-3333-3333-3333-333333333333-0",
        "statistics/stat-33333333-3333-3333-3333-333333333333-0",
    }
    unknown = {
        "dt=2024-01-01/notes.txt",
        "dt=2024-01-01/bucket-0/data.parquet",
        "snapshot/snapshot-xyz.tmp",
        "snapshot/.snapshot-9.1234.tmp",
        "elsewhere/data-44444444-4444-4444-4444-444444444444-0.parquet",
    }
    for name in planted | unknown:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    age(folder)
    (folder / "snapshot/snapshot-xyz.tmp").rename(
        folder.parent / "aside"
    )  # Paimon's own cleaning fails on it
    theirs = paimon.own_orphans(table)
    (folder.parent / "aside").rename(folder / "snapshot/snapshot-xyz.tmp")
    run = paimon.lw.run("sweep", table, {"orphan_max_percent": 90})
    assert run.state is RunState.DONE
    assert paimon.trash(table) == planted
    assert planted <= theirs
    # Paimon takes everything in a bucket's folder, and temporary files of snapshots; these names are not a writer's to us.
    assert theirs - planted == {"dt=2024-01-01/bucket-0/data.parquet", "snapshot/.snapshot-9.1234.tmp"}
    purge_now = paimon.lw.run("purge", table, AT_ONCE)
    assert paimon.on_disk(table) >= before
    assert purge_now.state in (RunState.DONE, RunState.NOTHING_TO_DO)


@pytest.mark.parametrize(("tag", "branch"), [("then", "side"), ("release/1", "feature/x")])
def test_a_branch_made_from_a_tag_survives_expiry_and_the_tags_deletion(
    paimon: PaimonLab, tag: str, branch: str
) -> None:
    """Paimon loses its files here: its expiry and its tags' deletion look at no other branch."""
    table = paimon.busy(keyed=True)
    paimon.maker.tag(paimon.load(table), tag, 4)
    paimon.load(table).createBranch(branch, tag)
    rows, side = paimon.rows(table), paimon.branch_rows(table, branch)
    assert side
    expire(paimon, table)
    purge(paimon, table)
    assert paimon.rows(table, tag=tag) == side
    paimon.lw.holds.untag(table, tag)
    paimon.append(table, 2, start=9_000)
    rows = paimon.rows(table)
    expire(paimon, table)
    purge(paimon, table)
    assert paimon.branch_rows(table, branch) == side
    assert paimon.rows(table) == rows


def test_what_only_a_tag_needed_goes_when_its_time_is_over(paimon: PaimonLab) -> None:
    table = paimon.busy()
    paimon.maker.tagFor(paimon.load(table), "brief", 3, 4_000)
    expire(paimon, table)
    purge(paimon, table)
    kept = paimon.rows(table, tag="brief")
    assert kept
    time.sleep(4)
    run = paimon.lw.run("expire", table, NOW)
    assert run.counters["refs_expired"] == 1
    assert run.counters["data_files_trashed"] > 0
    purge(paimon, table)
    assert "tag/tag-brief" not in paimon.on_disk(table)
    age(paimon.folder(table))
    assert paimon.lw.plan("sweep", table).empty


@pytest.mark.main
def test_a_consumer_is_a_floor(paimon: PaimonLab) -> None:
    table = paimon.busy()
    paimon.maker.consumer(paimon.load(table), "etl", 5)
    expire(paimon, table)
    assert next(each.id for each in paimon.lw.view(table).snapshots) == 5
    plan = paimon.lw.plan("expire", table, NOW)
    assert plan.empty
    assert any("consumer etl" in each.reason for each in plan.skipped)


@pytest.mark.main
def test_a_pin_is_a_floor_and_its_reader_reads_every_row(paimon: PaimonLab) -> None:
    table = paimon.busy()
    rows = paimon.rows(table, snapshot=6)
    with paimon.lw.pin(table, snapshot_id=6, ttl="1h", holder="reader", purpose="test"):
        expire(paimon, table)
        purge(paimon, table)
        assert paimon.rows(table, snapshot=6) == rows
    assert next(each.id for each in paimon.lw.view(table).snapshots) == 6


def test_the_tables_own_options_keep_more_until_ours_says_otherwise(paimon: PaimonLab) -> None:
    options = {
        "snapshot.num-retained.min": "3",
        "snapshot.num-retained.max": "3",
        "snapshot.time-retained": "100 d",
    }
    table = paimon.busy(**options)
    plan = paimon.lw.plan("expire", table)
    assert plan.empty
    assert any("table option snapshot.time-retained" in each.reason for each in plan.skipped)
    ignored = {each.key: str(each.origin) for each in paimon.lw.policy(table).ignored}
    assert ignored["snapshot_max_retained"] == "table option snapshot.num-retained.max"
    assert (
        paimon.lw.run("expire", table, {"snapshot_min_retained": 3, "snapshot_max_retained": 3}).state
        is RunState.DONE
    )
    assert len(paimon.lw.view(table).snapshots) == 3
    assert (
        paimon.lw.run("expire", table, {"snapshot_min_retained": 2, "snapshot_max_retained": 2}).state
        is RunState.DONE
    )
    assert len(paimon.lw.view(table).snapshots) == 2


def test_a_gap_ends_the_history_and_remnants_are_left_alone(paimon: PaimonLab) -> None:
    table = paimon.busy()
    (paimon.folder(table) / "snapshot/snapshot-4").unlink()
    view = paimon.lw.view(table)
    assert next(each.id for each in view.snapshots) == 5
    rows = paimon.rows(table, snapshot=2)
    expire(paimon, table)
    purge(paimon, table)
    assert {"snapshot/snapshot-1", "snapshot/snapshot-2", "snapshot/snapshot-3"} <= paimon.on_disk(table)
    assert paimon.rows(table, snapshot=2) == rows


@pytest.mark.parametrize("job", ["expire", "sweep"])
@pytest.mark.parametrize("what", ["manifest-list-", "manifest-"])
def test_a_manifest_that_is_missing_stops_everything_and_is_named(
    paimon: PaimonLab, job: str, what: str
) -> None:
    table = paimon.busy()
    lost = min(
        path
        for path in (paimon.folder(table) / "manifest").iterdir()
        if path.name.startswith(what) and ("list" in path.name) == ("list" in what)
    )
    lost.unlink()
    before = paimon.on_disk(table)
    with pytest.raises(LakewardenError, match=lost.name):
        paimon.lw.run(job, table, NOW if job == "expire" else {})
    assert paimon.on_disk(table) == before


@pytest.mark.main
def test_a_rollback_is_not_an_expiry(paimon: PaimonLab) -> None:
    """Ids are used again: what was planned for snapshot 9 must not happen to another 9."""
    table = paimon.busy()
    paimon.maker.rollback(paimon.load(table), 6)
    paimon.append(table, 4, start=5_000)
    rows = paimon.rows(table)
    expire(paimon, table)
    purge(paimon, table)
    assert paimon.rows(table) == rows
    age(paimon.folder(table))
    theirs = paimon.own_orphans(table)  # what was rolled back
    assert paimon.lw.run("sweep", table, {"orphan_max_percent": 90}).state is RunState.DONE
    assert paimon.trash(table) == theirs


def test_a_table_made_anew_is_another_one(paimon: PaimonLab) -> None:
    table = paimon.busy()
    expire(paimon, table)
    shutil.rmtree(paimon.folder(table))
    paimon.busy()
    before = paimon.on_disk(table)
    with pytest.raises(Refused, match="another table of that name"):
        paimon.lw.run("purge", table, AT_ONCE)
    assert paimon.on_disk(table) == before


@pytest.mark.main
def test_an_expiry_beside_a_sweep_loses_nothing(paimon: PaimonLab) -> None:
    options = {"snapshot.num-retained.max": "1", "snapshot.num-retained.min": "1"}
    table = paimon.busy(**options)
    rows = paimon.rows(table)
    age(paimon.folder(table))
    real = paimon.lw.lake.format_for

    def expiring_meanwhile(ref: object) -> object:
        paimon.maker.ownExpire(paimon.load(table), 1)
        return real(ref)  # type: ignore[arg-type]

    paimon.lw.lake.format_for = expiring_meanwhile  # type: ignore[method-assign, assignment]
    try:
        run = paimon.lw.run("sweep", table, {"orphan_max_percent": 90})
    except LakewardenError:
        run = paimon.lw.run("sweep", table, {"orphan_max_percent": 90})
    finally:
        paimon.lw.lake.format_for = real  # type: ignore[method-assign]
    assert run.state in (RunState.DONE, RunState.NOTHING_TO_DO)
    paimon.lw.run("purge", table, AT_ONCE)
    assert paimon.rows(table) == rows


def test_a_tag_for_ever_is_for_ever_whatever_the_tables_default(paimon: PaimonLab) -> None:
    table = paimon.busy(**{"tag.default-time-retained": "1 s"})
    paimon.lw.holds.tag(table, "kept", snapshot_id=3, forever=True)
    (kept,) = [ref for ref in paimon.lw.view(table).refs if ref.name == "kept"]
    assert kept.ends_at is None


def test_a_tag_that_was_given_anew_is_not_dropped(paimon: PaimonLab) -> None:
    table = paimon.busy()
    paimon.maker.tagFor(paimon.load(table), "brief", 3, 1)
    view = paimon.lw.view(table)
    time.sleep(0.1)
    paimon.lw.holds.untag(table, "brief")
    paimon.maker.tag(paimon.load(table), "brief", 5)
    with pytest.raises(CommitLost, match="tag brief was replaced by another one"):
        paimon.lw.lake.format_for(view.ref).writer(Unasked()).expire(view, (), {"brief": 3})
    assert "tag/tag-brief" in paimon.on_disk(table)


def test_a_rolled_back_table_loses_no_snapshot_to_an_older_plan(paimon: PaimonLab) -> None:
    table = paimon.busy()
    view = paimon.lw.view(table)
    paimon.maker.rollback(paimon.load(table), 4)
    rows = paimon.rows(table)
    with pytest.raises(CommitLost, match="its newest snapshot is 4 now"):
        paimon.lw.lake.format_for(view.ref).writer(Unasked()).expire(view, tuple(range(1, 8)), {})
    assert paimon.rows(table) == rows


def test_a_pin_outlives_a_rename(paimon: PaimonLab) -> None:
    table = paimon.busy()
    with paimon.lw.pin(table, snapshot_id=6, ttl="1h", holder="reader", purpose="test"):
        renamed = paimon.rename(table, "called_otherwise")
        expire(paimon, renamed)
        assert next(each.id for each in paimon.lw.view(renamed).snapshots) == 6


def test_a_strange_name_in_its_folders_is_passed_over(paimon: PaimonLab) -> None:
    """Paimon itself does not read it, so nothing depends on it; and it is not ours to delete."""
    table = paimon.busy()
    strange = paimon.folder(table) / "snapshot" / "snapshot-seven"
    strange.write_text("{}")
    os.utime(strange, (1_000_000_000, 1_000_000_000))
    before = len(paimon.lw.view(table).snapshots)
    expire(paimon, table)
    (told,) = (each for each in paimon.lw.plan("sweep", table).skipped if each.reason.startswith("foreign"))
    assert told.count == 1
    paimon.lw.run("sweep", table)
    assert len(paimon.lw.view(table).snapshots) < before
    assert strange.exists()


@pytest.mark.parametrize(
    ("keyed", "options"), [KINDS[0].values, KINDS[2].values], ids=["append", "primary key"]
)
@pytest.mark.parametrize("odd", [False, True], ids=["as written", "a base from elsewhere"])
def test_all_snapshots_need_what_each_of_them_needs(
    paimon: PaimonLab, keyed: bool, options: dict[str, str], odd: bool
) -> None:
    """Of neighbours only what the later one added is read, unless its lists say that it did not take over the rest."""
    merging = {"manifest.merge-min-count": "3"}
    table = paimon.busy(keyed=keyed, **options, **merging)
    if odd:  # the sixth stands on what another table had, as no writer would have it
        other = paimon.create("other", keyed=keyed, **options)
        paimon.append(other, 2)
        ours, theirs = (paimon.folder(each) / "snapshot" for each in (table, other))
        told, base = (json.loads(each.read_text()) for each in (ours / "snapshot-6", theirs / "snapshot-2"))
        (ours / "snapshot-6").write_text(
            json.dumps({**told, **{key: value for key, value in base.items() if key.startswith("base")}})
        )
        shutil.copytree(
            paimon.folder(other),
            paimon.folder(table),
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("snapshot", "schema"),
        )
    view = paimon.lw.view(table)
    format_ = paimon.lw.lake.format_for(view.ref)
    files = [str(paimon.folder(table) / each) for each in sorted(paimon.on_disk(table)) if "/bucket-" in each]
    each_alone = [format_.reached(view, [each.id]).names(files) for each in view.snapshots]
    assert len(each_alone) > 10
    assert (format_.reached(view).names(files) == np.logical_or.reduce(each_alone)).all()


def swept(lab: PaimonLab, table: str) -> None:
    """Everything old, swept and purged; every snapshot has its rows still."""
    ids = [each.id for each in lab.lw.view(table).snapshots]
    before = {each: lab.rows(table, snapshot=each) for each in ids}
    age(lab.folder(table))
    lab.lw.run("sweep", table, {"orphan_max_percent": 90})
    lab.lw.run("purge", table, AT_ONCE)
    assert {each: lab.rows(table, snapshot=each) for each in ids} == before


def test_a_branch_with_a_history_of_its_own_becomes_main(paimon: PaimonLab) -> None:
    """The fifth snapshot stands on as many files as the fourth had, and on none of them."""
    table = paimon.create()
    paimon.append(table, 6, days=1)
    paimon.load(table).createBranch("own")
    branch = paimon.load(table).switchToBranch("own")
    for number in range(5):
        paimon.maker.write(branch, 1_000 + number * 20, 20, "2024-01-01", False)
    paimon.maker.dropPartition(branch, "2024-01-01")
    paimon.maker.write(branch, 5_000, 20, "2024-01-01", False)
    assert paimon.maker.ownExpire(branch, 3)
    paimon.load(table).branchManager().fastForward("own")
    paimon.load(table).deleteBranch("own")
    assert len(paimon.lw.view(table).snapshots) == 7
    swept(paimon, table)


def test_a_writer_builds_on_a_snapshot_that_was_rolled_back(paimon: PaimonLab) -> None:
    """It remembers the third snapshot; meanwhile there is another third."""
    table = paimon.create()
    options = {"warehouse": str(paimon.warehouse)}
    late = paimon.maker.openWith(options)

    def write(first: int) -> None:
        paimon.maker.write(paimon.maker.load(late, "events"), first, 20, "2024-01-01", False)

    for first in (0, 100, 200):
        write(first)
    paimon.maker.load(late, "events").snapshotManager().latestSnapshot()
    paimon.maker.rollback(paimon.load(table), 2)
    paimon.append(table, 1, start=300, days=1)
    write(400)
    paimon.maker.dropPartition(paimon.load(table), "2024-01-01")
    paimon.append(table, 1, start=500, days=1)
    assert paimon.rows(table, snapshot=4)[0].startswith("0 ")
    swept(paimon, table)


@pytest.mark.parametrize("name", ["baseManifestList", "deltaManifestList"])
def test_a_list_that_was_cut_short_is_not_believed_nor_remembered(paimon: PaimonLab, name: str) -> None:
    table = paimon.create()
    paimon.append(table, 6, days=1)
    paimon.maker.ownExpire(paimon.load(table), 1)
    folder, rows = paimon.folder(table), paimon.rows(table)
    path = folder / "manifest" / json.loads((folder / "snapshot/snapshot-6").read_text())[name]
    content = path.read_bytes()
    header = content.index(content[-16:]) + 16  # the mark that ends the header ends every block
    path.write_bytes(content[:header])
    age(folder)
    with pytest.raises(LakewardenError, match=path.name):
        paimon.lw.run("sweep", table, {"orphan_max_percent": 90})
    path.write_bytes(content)
    age(folder)
    assert paimon.lw.plan("sweep", table).empty
    assert paimon.rows(table) == rows


def test_a_table_that_was_rolled_back_to_a_tag_is_cleaned(paimon: PaimonLab) -> None:
    """Its snapshot is back, and the changelog that went with it is not."""
    table = paimon.create(keyed=True, **{"changelog-producer": "input"})
    paimon.append(table, 6, days=1)
    paimon.maker.tag(paimon.load(table), "then", 3)
    assert paimon.maker.ownExpire(paimon.load(table), 1)
    paimon.load(table).rollbackTo("then")
    paimon.append(table, 2, start=5_000, days=1)
    swept(paimon, table)
    expire(paimon, table)
    purge(paimon, table)
    assert len(paimon.rows(table, tag="then")) == 60


def test_a_warehouse_that_is_not_there_is_named_and_not_made(paimon: PaimonLab, tmp_path: Path) -> None:
    missing = tmp_path / "mistyped"
    config = {
        "state": {"url": f"sqlite:///{tmp_path}/other.db"},
        "catalogs": {"pm": {"format": "paimon", "warehouse": str(missing)}},
    }
    with Lakewarden(config, spark=paimon.spark, environ={}) as lw, pytest.raises(Unreachable) as refused:
        lw.tables("pm")
    assert str(missing) in str(refused.value) and "warehouse" in refused.value.hint
    assert not missing.exists()
