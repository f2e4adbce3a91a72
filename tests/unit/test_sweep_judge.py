"""Which unnamed files a sweep leaves alone because of whose they may be, or because nothing tells their age."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from lakewarden.engine.objects import LISTING
from lakewarden.formats.names import names_of
from lakewarden.jobs.sweep import Fate, Listing, judge
from lakewarden.safety.holds import Holds
from tests.support.tables import NOW, view

OLD = NOW - timedelta(days=400)
JOB = "0123456789abcdef0123456789abcdef"
MANIFEST = f"/lake/t/metadata/{JOB}-feca28aff5a3958840bee985ee7de4d3-00000-0-17-00001.avro"


def fate(path: str, modified: datetime | None, *jobs: str, format_: str = "iceberg") -> Fate:
    files = pa.Table.from_pylist(
        [{"path": path, "size": 1, "modified": modified, "stamp": None}], schema=LISTING
    )
    judged = judge(
        Listing(files, NOW, ("/lake/t",)),
        named=np.zeros(1, dtype=bool),
        restored=lambda _: False,
        doomed=lambda _: False,
        holds=Holds(),
        open_runs=(),
        young_since=NOW - timedelta(days=7),
        names=names_of(replace(view(), format=format_)),
        flink_jobs=jobs,
    )
    (found,) = (each for each, (count, _) in judged.fates.items() if count)
    return found


@pytest.mark.parametrize(
    "modified", [None, datetime(1970, 1, 1, tzinfo=UTC), datetime(1989, 12, 31, tzinfo=UTC)]
)
def test_a_file_whose_age_is_unknown_is_young(modified: datetime | None) -> None:
    assert fate("/lake/t/data/a.parquet", modified) is Fate.YOUNG
    assert fate("/lake/t/data/a.parquet", OLD) is Fate.ORPHAN


def test_an_uncommitted_manifest_of_a_known_flink_job_is_no_orphan() -> None:
    assert fate(MANIFEST, OLD, JOB) is Fate.STREAM
    assert fate(MANIFEST, OLD) is Fate.ORPHAN
    assert fate("/lake/t/metadata/other.avro", OLD, JOB) is Fate.ORPHAN


def test_what_paimon_left_half_written_is_swept() -> None:
    left = "/lake/t/snapshot/.snapshot-7.0f6e0b5c-9f2d-4c0e-8f3a-1b2c3d4e5f60.tmp"
    assert fate(left, OLD, format_="paimon") is Fate.ORPHAN
    assert fate(left, NOW, format_="paimon") is Fate.YOUNG
    assert fate("/lake/t/snapshot/.notes.tmp", OLD, format_="paimon") is Fate.HIDDEN
    assert fate(left, OLD) is Fate.HIDDEN
