"""Hand-off of Paimon tables: what expires stays readable in another catalog, by Paimon's own reader, when the live files are gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.model import RunState, Snapshot
from tests.support.paimon import COLD, PaimonLab, paimon_lab

KEEP: dict[str, object] = {
    "snapshot_retention_hours": 0,
    "snapshot_min_retained": 1,
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
    table = lab.typed(kind, deletion_vectors__enabled="true", snapshot__time_retained="1 ms")
    lab.write(table, 3)
    struck(lab, table)
    lab.change(table, "evolve")
    lab.write(table, 2, start=1_000)
    lab.maker.compact(lab.load(table))
    struck(lab, table)
    lab.change(table, "drop")
    lab.write(table, 2, start=2_000)
    return table


@pytest.mark.parametrize("kind", ["plain", "flat"])
def test_every_snapshot_reads_the_same_when_the_live_files_are_gone(lab: PaimonLab, kind: str) -> None:
    table = eventful(lab, kind)
    lab.maker.tag(lab.load(table), "struck", 4)
    lab.maker.tagFor(lab.load(table), "soon/gone", 2, 1)
    snapshots = lab.lw.view(table).snapshots
    rows = {each.id: lab.texts_at(table, snapshot_id=each.id) for each in snapshots}
    assert len({len(each) for each in rows.values()}) > 4, "they differ"
    assert lab.lw.run("expire", table, KEEP).state is RunState.NOTHING_TO_DO, "expire waits for the hand-off"

    counters = done(lab, "handoff", table)
    assert counters["snapshots_handed_off"] == len(rows) - 1
    assert lab.lw.run("handoff", table, KEEP).state is RunState.NOTHING_TO_DO
    done(lab, "expire", table)
    age(lab.warehouse)
    reaped = done(lab, "reap", table)
    assert reaped["files_erased"] > 0 and not reaped["files_held"]
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
