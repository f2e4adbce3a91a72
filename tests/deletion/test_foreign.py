"""Files in a table's own folders that may be another's: older than the table, or where another table's writer may write."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lakewarden.jobs.sweep.execute import began, without_foreign
from lakewarden.jobs.sweep.plan import FileOutcome, SortedListing, StoreListing
from lakewarden.model.table import Snapshot, TableRef
from lakewarden.storage.objects import LISTING, Objects
from lakewarden.tables.places import Places, names_of
from tests.support.tables import NOW, view

UUID = "0b6c1f3a-5d0e-4f1c-9a53-2f6f0c7f5b11"
MINE = replace(view(), uuid="mine", location="/lake/t")
CREATED = NOW - timedelta(days=20)


def judged(*files: tuple[str, datetime]) -> SortedListing:
    rows = [{"path": path, "size": 1, "modified": at, "stamp": None} for path, at in files]
    found = pa.Table.from_pylist(rows, schema=LISTING)
    return SortedListing(
        9, {**dict.fromkeys(FileOutcome, (0, 0)), FileOutcome.ORPHAN: (len(rows), len(rows))}, found
    )


def left(found: SortedListing) -> list[str]:
    return [str(path) for path in found.orphans["path"].to_pylist()]


@pytest.mark.parametrize(
    "name",
    [
        "part-00000-0b6c1f3a-5d0e-4f1c-9a53-2f6f0c7f5b11-c000.snappy.parquet",
        "d=2024-03-01/000000_0.orc",
        "data/report.avro",
        f"{UUID}.parquet",
        f"20240101_101112_00012_abcde_{UUID}.parquet",
    ],
)
def test_a_file_that_is_older_than_the_table_is_not_its_orphan(name: str) -> None:
    path = f"/lake/t/{name}"
    before = judged((path, CREATED - timedelta(seconds=1)))
    found = without_foreign(before, MINE, [], Places(), lambda: CREATED)
    assert (
        left(found) == []
        and found.fates[FileOutcome.EARLIER] == (1, 1)
        and found.fates[FileOutcome.ORPHAN] == (0, 0)
    )
    assert "own_places=/lake/t" in found.why[FileOutcome.EARLIER].text
    assert left(without_foreign(before, MINE, [], Places(confirmed=("/lake",)), lambda: CREATED)) == [path]
    assert left(without_foreign(judged((path, CREATED)), MINE, [], Places(), lambda: CREATED)) == [path]


@pytest.mark.parametrize(
    "name",
    [
        f"data/d=1/00000-12-{UUID}-0-00001.parquet",
        f"data/00007-0-{UUID}-00003-deletes.parquet",
        f"data/00000-0-{UUID}.parquet",
        f"data/20240101_101112_00012_abcde-{UUID}.parquet",
        "data/lakewarden-20260101-101112-0a1b2c-0-1.parquet",
        f"metadata/{UUID}-m0.avro",
        f"metadata/snap-6342913400512931861-1-{UUID}.avro",
        f"metadata/00000-{UUID}.metadata.json",
    ],
)
def test_what_a_writer_of_tables_has_named_is_its_orphan_at_any_age(name: str) -> None:
    """Metadata of an old table may tell only of its last days: its oldest orphans are swept all the same."""
    path = f"/lake/t/{name}"
    assert names_of(MINE).ours.search(path)
    before = judged((path, CREATED - timedelta(days=900)))
    assert left(without_foreign(before, MINE, [], Places(), lambda: CREATED)) == [path]


def test_when_the_table_was_surely_there(tmp_path: Path) -> None:
    """By the store's times of files that only this table can have written; what metadata says of itself does not count."""

    def put(name: str, days: int, content: str = "x") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        then = (NOW - timedelta(days=days)).timestamp()
        os.utime(path, (then, then))
        return str(path)

    def of(uuid: str) -> str:
        told = {
            "table-uuid": uuid,
            "location": str(tmp_path),
            "last-updated-ms": 1,
            "last-sequence-number": 1,
        }
        return json.dumps({"format-version": 2, **told})

    def asked(days_seen: int) -> timedelta:
        files = pa.Table.from_batches(list(Objects({}).list(str(tmp_path))), LISTING)
        listing = StoreListing(files, NOW, (str(tmp_path),))
        return NOW - began(listing, table, Objects({}), NOW - timedelta(days=days_seen))

    table = replace(MINE, location=str(tmp_path), snapshots=())
    put("data/a.parquet", 90)
    put("metadata/0.metadata.json", 80, of("another"))
    put("metadata/other.avro", 70)
    assert asked(3) == timedelta(days=3)
    listed = put("metadata/snap-1.avro", 20)
    table = replace(table, snapshots=(Snapshot(1, None, 1, NOW - timedelta(days=99), "append", {}, listed),))
    assert asked(3) == timedelta(days=20) and asked(60) == timedelta(days=60)
    put("metadata/1.metadata.json", 30, of("mine"))
    put("metadata/2.metadata.json", 25, of("mine"))
    assert asked(3) == timedelta(days=30)


def test_nothing_is_read_where_no_age_is_in_question() -> None:
    def never() -> datetime:
        raise AssertionError("asked")

    paths = [(f"/lake/t/data/00000-0-{UUID}-00001.parquet", CREATED)]
    assert left(without_foreign(judged(*paths), MINE, [], Places(), never)) == [paths[0][0]]
    assert left(without_foreign(judged(), MINE, [], Places(), never)) == []


def test_a_folder_that_another_tables_writer_names_is_left_alone_and_no_other() -> None:
    named = {"write.data.path": "file:/lake/t/data/inner"}
    evil = replace(MINE, ref=TableRef.parse("lake.db.evil"), uuid="evil", location="/far", properties=named)
    own, theirs = "/lake/t/data/a.parquet", "/lake/t/data/inner/b.parquet"
    found = without_foreign(judged((own, NOW), (theirs, NOW)), MINE, [evil], Places(), lambda: CREATED)
    assert left(found) == [own] and found.fates[FileOutcome.SHARED] == (1, 1)
    assert "lake.db.evil by write.data.path" in found.why[FileOutcome.SHARED].text
