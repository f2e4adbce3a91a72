"""Hand-off of Paimon tables: what expires stays readable in another catalog, by Paimon's own reader, when the live files are gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from lakewarden.errors import CommitUnknown, PolicyError, Refused
from lakewarden.model.run import RunState
from lakewarden.model.table import Snapshot
from lakewarden.state.cold import ColdSnapshots
from lakewarden.tables.paimon.cold import PaimonColdWriter
from tests.support.paimon import COLD, PaimonLab, lakewarden, paimon_lab
from tests.support.witness import later

KEEP: dict[str, object] = {
    "snapshot_retention_hours": 0,
    "snapshot_min_retained": 1,
    "snapshot_restart_hours": 0,
    "delete_grace_hours": 0,
    "handoff_enabled": True,
    "handoff_catalog": COLD,
}


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[PaimonLab]:
    with paimon_lab(spark, tmp_path, cold=True) as made:
        yield made


def age(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))


def millis(snapshot: Snapshot) -> int:
    return round(snapshot.committed_at.timestamp() * 1000)


def done(lab: PaimonLab, job: str, table: str) -> dict[str, int]:
    run = lab.lw.run(job, table, KEEP)
    assert run.state is RunState.DONE, f"{run.state}: {run.reason}"
    return dict(run.counters)


def struck(lab: PaimonLab, table: str) -> None:
    """Deletes some rows of one live file, by a deletion vector."""
    lab.types.strike(lab.load(table), lab.files(table)[0]["name"], 3, 5)


def eventful(lab: PaimonLab, kind: str) -> str:
    """Appends, deletion vectors, a change of columns, a compaction, more of each."""
    table = lab.typed(kind, **{"deletion-vectors.enabled": "true", "snapshot.time-retained": "1 ms"})
    lab.write(table, 3)
    struck(lab, table)
    lab.change(table, "evolve")
    lab.write(table, 2, start=1_000)
    lab.maker.compact(lab.load(table))
    struck(lab, table)
    lab.change(table, "drop")
    lab.write(table, 2, start=2_000)
    return table


@pytest.mark.main
@pytest.mark.parametrize("kind", ["plain", "flat"])
def test_every_snapshot_reads_the_same_when_the_live_files_are_gone(lab: PaimonLab, kind: str) -> None:
    table = eventful(lab, kind)
    lab.maker.tag(lab.load(table), "struck", 4)
    lab.maker.tagFor(lab.load(table), "soon/gone", 2, 1)
    snapshots = lab.lw.view(table).snapshots
    rows = {each.id: lab.texts_at(table, snapshot_id=each.id) for each in snapshots}
    assert len(rows[3]) - len(rows[4]) == 5 and rows[5] != rows[4], "rows were deleted, and columns changed"
    assert lab.lw.run("expire", table, KEEP).state is RunState.NOTHING_TO_DO, "expire waits for the hand-off"

    counters = done(lab, "handoff", table)
    assert counters["snapshots_handed_off"] == len(rows) - 1
    assert lab.lw.run("handoff", table, KEEP).state is RunState.NOTHING_TO_DO
    done(lab, "expire", table)
    age(lab.warehouse)
    purged = done(lab, "purge", table)
    assert purged["files_erased"] > 0 and not purged["files_held"]
    *gone, head = snapshots
    assert lab.texts(table) == rows[head.id]
    assert lab.texts_at(table, tag_name="struck") == rows[4], "a tag keeps its rows in the live table too"

    shutil.move(lab.warehouse, lab.warehouse.with_name("away"))
    for each in gone:
        assert lab.cold_texts(table, snapshot_id=each.id) == rows[each.id], each.id
        assert lab.cold_texts(table, timestamp_millis=millis(each)) == rows[each.id], each.committed_at
    assert lab.cold_texts(table, tag_name="struck") == rows[4]
    assert lab.cold_texts(table, tag_name="soon/gone") == rows[2]
    assert lab.cold_texts(table) == rows[gone[-1].id]
    assert list((lab.cold / "db.db/typed/index").iterdir()), "deletion vectors are among them"


def cold_ids(lab: PaimonLab, table: str) -> set[int]:
    return {each.id for each in lab.lw.view(table.replace(lab.catalog, COLD, 1)).snapshots}


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def past(lab: PaimonLab, table: str) -> dict[int, list[str]]:
    return {each.id: lab.texts_at(table, snapshot_id=each.id) for each in lab.lw.view(table).snapshots}


def test_three_hand_offs_add_up_and_none_copies_twice(lab: PaimonLab) -> None:
    table = lab.create()
    rows: dict[int, list[str]] = {}
    for turn in range(3):
        lab.append(table, 3, start=1_000 * turn)
        lab.maker.compact(lab.load(table))
        rows |= past(lab, table)
        ids, there = cold_ids(lab, table) if turn else set(), files(lab.cold)
        run = done(lab, "handoff", table)
        assert cold_ids(lab, table) > ids
        new = files(lab.cold)
        assert {path: new[path] for path in there} == there, "what was there stays as it is"
        named = ("schema-", "snapshot-", "consumer-")
        assert (
            len([path for path in new.keys() - there if not path.name.startswith(named)])
            == run["files_copied"]
        )
        assert lab.lw.run("handoff", table, KEEP).state is RunState.NOTHING_TO_DO
        done(lab, "expire", table)
    age(lab.warehouse)
    assert not done(lab, "purge", table)["files_held"]
    assert cold_ids(lab, table) == set(rows) - {lab.lw.view(table).current_snapshot_id}
    for id_ in cold_ids(lab, table):
        assert lab.cold_texts(table, snapshot_id=id_) == rows[id_]


def test_a_gap_is_a_gap_and_both_sides_of_it_are_found(lab: PaimonLab) -> None:
    """Others expired what was between: what is on either side is read by id and by time, and nobody makes up the rest."""
    table = lab.create()
    lab.append(table, 3)
    rows, snapshots = past(lab, table), list(lab.lw.view(table).snapshots)
    done(lab, "handoff", table)
    lab.append(table, 7, start=500)
    rows, snapshots = rows | past(lab, table), [*snapshots, *lab.lw.view(table).snapshots]
    lab.maker.tagFor(lab.load(table), "kept", 6, 3_600_000)
    lab.maker.ownExpire(lab.load(table), 3)

    def both_sides(handed: set[int], gap: set[int]) -> None:
        assert cold_ids(lab, table) == handed
        for each in snapshots:
            for scan in ({"snapshot_id": each.id}, {"timestamp_millis": millis(each)}):
                if each.id in handed:
                    assert lab.cold_texts(table, **scan) == rows[each.id], scan
                elif each.id in gap:
                    with pytest.raises(Exception, match="expired-before-it-was-handed-off"):
                        lab.cold_texts(table, **scan)

    done(lab, "handoff", table)
    both_sides({1, 2, 8, 9}, {3, 4, 5, 6, 7})
    done(lab, "expire", table)
    with later(days=1):  # now the tag's time is over, and with it goes the last copy of its snapshot
        assert lab.lw.run("expire", table, KEEP).state is RunState.NOTHING_TO_DO, "it waits for the hand-off"
        done(lab, "handoff", table)
        done(lab, "expire", table)
    both_sides({1, 2, 6, 8, 9}, {3, 4, 5, 7})
    assert lab.cold_texts(table, tag_name="kept") == rows[6]
    assert not [ref for ref in lab.lw.view(table).refs if ref.kind == "tag"]
    checkup = lab.lw.fsck(table.replace(lab.catalog, COLD, 1), deep=True)
    assert checkup.findings == ()
    age(lab.warehouse)
    assert not done(lab, "purge", table)["files_held"]


@pytest.mark.main
def test_a_cold_table_is_read_only_and_nothing_leaves_it(lab: PaimonLab) -> None:
    few = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1", "tag.num-retained-max": "1"}
    table = lab.create(**few)
    lab.append(table, 4)
    done(lab, "handoff", table)
    frozen = table.replace(lab.catalog, COLD, 1)
    for job in ("compact", "expire", "rewrite-manifests", "sweep", "expire-partitions", "handoff"):
        with pytest.raises(Refused, match="read only"):
            lab.lw.run(job, frozen, KEEP)
    assert lab.lw.run("purge", frozen, KEEP).state is RunState.NOTHING_TO_DO
    with pytest.raises(Refused, match="read only"):
        lab.lw.holds.tag(frozen, "x", forever=True)
    there = files(lab.cold)
    loaded = lab.maker.load(lab.maker.open({"warehouse": str(lab.cold)}), "events")
    lab.maker.ownExpireByOptions(loaded)
    lab.maker.ownExpire(loaded, 1)
    now = {path: at for path, at in files(lab.cold).items() if path.name != "EARLIEST"}
    assert now == there, "nor by Paimon's own expiry"


def test_where_and_cost(lab: PaimonLab, spark: SparkSession, tmp_path: Path) -> None:
    table = lab.create()
    lab.append(table, 4)
    snapshots = lab.lw.view(table).snapshots
    sizes = sum(path.stat().st_size for path in lab.folder(table).rglob("*.parquet"))
    for job in ("handoff", "expire"):
        done(lab, job, table)
    of_lake = {"policy": {"handoff_catalog": COLD, "handoff_enabled": True}}
    with lakewarden(spark, tmp_path, cold=True, more=of_lake, warehouse=str(lab.warehouse)) as lw:
        for each in snapshots[:3]:
            for found in (
                lw.tiers.where(table, snapshot_id=each.id),
                lw.tiers.where(table, as_of=each.committed_at),
            ):
                assert (found.tier, str(found.table), found.snapshot_id) == (
                    "cold",
                    f"{COLD}.db.events",
                    each.id,
                )
                assert found.query == f"SELECT * FROM {COLD}.db.events VERSION AS OF {each.id}"
        assert lw.tiers.where(table, snapshot_id=snapshots[3].id).tier == "live"
        cost = lw.tiers.cost(table)
        assert [each.tier for each in cost.tiers] == ["live", "cold"] and cost.snapshots == 0
        own = {"schema", "snapshot", "tag", "consumer"}
        copies = [path for path in files(lab.cold) if path.parent.name not in own]
        assert cost.tiers[1].bytes == sum(path.stat().st_size for path in copies)
        assert cost.tiers[0].bytes > sizes


def test_what_cannot_be_handed_off_is_refused_with_the_reason(lab: PaimonLab, tmp_path: Path) -> None:
    elsewhere = {"data-file.external-paths": f"file://{tmp_path}/elsewhere"}
    table = lab.create(**elsewhere, **{"data-file.external-paths.strategy": "round-robin"})
    lab.append(table, 2)
    with pytest.raises(Refused, match="is named by its full path"):
        lab.lw.run("handoff", table, KEEP)
    plain = lab.create("plain")
    lab.append(plain, 2)
    adopted = str(
        lab.folder(plain) / "dt=2024-01-02/bucket-0/of-another-day.parquet"
    )  # where only its name tells
    shutil.copy(next(lab.folder(plain).glob("dt=2024-01-01/bucket-0/*.parquet")), adopted)
    lab.lw.holds.stage_adopt(lab.lw.holds.stage_begin(plain, "ana", paths=(adopted,)).id)
    lab.append(plain, 1, start=500)
    with pytest.raises(Refused, match=r"of-another-day\.parquet is named by its full path"):
        lab.lw.run("handoff", plain, KEEP)
    with pytest.raises(PolicyError, match="no Paimon catalog nowhere is configured; configured: pm, pm_cold"):
        lab.lw.run("handoff", plain, {**KEEP, "handoff_catalog": "nowhere"})
    with pytest.raises(Refused, match="it is an independent table"):
        lab.lw.run("handoff", plain, {**KEEP, "handoff_catalog": lab.catalog})


def test_a_table_that_was_rolled_back_does_not_mix_its_pasts(lab: PaimonLab) -> None:
    table = lab.create()
    lab.append(table, 4)
    rows = past(lab, table)
    done(lab, "handoff", table)
    lab.maker.rollback(lab.load(table), 2)
    lab.append(table, 3, start=7_000)
    assert lab.lw.run("expire", table, KEEP).counters["snapshots_expired"] == 2, (
        "the new 3 and 4 are not handed off"
    )
    with pytest.raises(Refused, match="its snapshot 3 differs from"):
        lab.lw.run("handoff", table, KEEP)
    assert lab.cold_texts(table, snapshot_id=3) == rows[3]


def test_a_registration_that_stopped_half_way_is_finished(lab: PaimonLab) -> None:
    """Snapshots come one by one: those that are there can be read, and the next run brings the rest and copies nothing."""
    table = lab.create()
    lab.append(table, 5)
    lab.maker.tag(lab.load(table), "then", 3)
    rows = past(lab, table)
    done(lab, "handoff", table)
    folder = lab.cold / "db.db/events/snapshot"
    for id_ in (3, 4):
        (folder / f"snapshot-{id_}").unlink()
    assert lab.cold_texts(table, snapshot_id=2) == rows[2]
    assert lab.lw.run("expire", table, KEEP).counters["snapshots_expired"] == 2, "the others wait"
    again = done(lab, "handoff", table)
    assert (again["snapshots_handed_off"], again["files_copied"]) == (2, 0)
    assert {id_: lab.cold_texts(table, snapshot_id=id_) for id_ in (1, 2, 3, 4)} == {
        id_: rows[id_] for id_ in (1, 2, 3, 4)
    }


def test_a_tag_that_was_moved_is_the_newer_snapshots_and_the_older_keeps_it_with_its_id(
    lab: PaimonLab,
) -> None:
    table = lab.create()
    lab.append(table, 3)
    rows = past(lab, table)
    lab.maker.tag(lab.load(table), "then", 2)
    done(lab, "handoff", table)
    assert lab.cold_texts(table, tag_name="then") == rows[2]
    lab.load(table).deleteTag("then")
    lab.append(table, 2, start=500)
    rows = past(lab, table)
    lab.maker.tag(lab.load(table), "then", 4)
    done(lab, "handoff", table)
    assert lab.cold_texts(table, tag_name="then") == rows[4]
    assert lab.cold_texts(table, tag_name="then-2") == rows[2]


def test_when_each_came_is_known_although_the_run_never_said_so(lab: PaimonLab) -> None:
    """Those that were there when it stopped are not handed off again: nobody else would write it down."""
    table = lab.create()
    lab.append(table, 5)
    put = PaimonColdWriter._put

    def half(tier: PaimonColdWriter, home: Any, made: Any, filled: Any) -> None:
        if not made[0][0].startswith("snapshot/"):
            put(tier, home, made, filled)
            return
        put(tier, home, made[:2], filled)
        raise CommitUnknown(table=home.ref, reason="the store went away")

    with patch.object(PaimonColdWriter, "_put", half):
        assert lab.lw.run("handoff", table, KEEP).state is RunState.UNKNOWN
    with later(hours=1):
        assert done(lab, "handoff", table)["snapshots_handed_off"] == 2
    handed = ColdSnapshots(lab.lw.state).handed(lab.lw.view(table).uuid)
    assert set(handed) == {1, 2, 3, 4} and handed[1] == handed[2] < handed[3] == handed[4]


PRIMARY_KEYS = {
    "dynamic buckets": {"bucket": "-1"},
    "deletion vectors": {"deletion-vectors.enabled": "true"},
    "changelogs that outlive snapshots": {
        "changelog-producer": "input", "snapshot.num-retained.min": "1", "changelog.num-retained.min": "3",
        "changelog.time-retained": "1 ms",
    },
}  # fmt: skip


@pytest.mark.parametrize("options", PRIMARY_KEYS.values(), ids=PRIMARY_KEYS)
def test_tables_with_primary_keys_read_the_same(lab: PaimonLab, options: dict[str, str]) -> None:
    table = lab.busy(keyed=True, **options)
    lab.delete(table, 2_000, 5)
    lab.append(table, 1, start=2_010)
    rows = past(lab, table)
    for job in ("handoff", "expire"):
        done(lab, job, table)
    age(lab.warehouse)
    assert not done(lab, "purge", table)["files_held"]
    head = max(rows)
    assert lab.texts(table) == rows[head]
    shutil.move(lab.warehouse, lab.warehouse.with_name("away"))
    for id_ in rows.keys() - {head}:
        assert lab.cold_texts(table, snapshot_id=id_) == rows[id_], id_
