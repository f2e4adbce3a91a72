"""Which unnamed files a sweep leaves alone because of whose they may be, or because nothing tells their age."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakewarden.config.aliases import Aliases
from lakewarden.deletion.holds import Holds
from lakewarden.jobs.sweep.execute import _as_they_are_now, uncommitted
from lakewarden.jobs.sweep.plan import FileOutcome, SortedListing, StoreListing, judge
from lakewarden.model.table import Snapshot, TableView
from lakewarden.storage.objects import LISTING
from lakewarden.tables.places import names_of
from lakewarden.tables.streaming_writers import Uncommitted, uncommitted_since
from tests.support.tables import NOW, view

OLD = NOW - timedelta(days=400)
JOB = "0123456789abcdef0123456789abcdef"
MANIFEST = f"/lake/t/metadata/{JOB}-feca28aff5a3958840bee985ee7de4d3-00000-0-17-00001.avro"


def fate(
    path: str,
    modified: datetime | None,
    uncommitted: Uncommitted = Uncommitted(),  # noqa: B008  frozen
    format_: str = "iceberg",
) -> FileOutcome:
    files = pa.Table.from_pylist(
        [{"path": path, "size": 1, "modified": modified, "stamp": None}], schema=LISTING
    )
    judged = judge(
        StoreListing(files, NOW, ("/lake/t",)),
        named=np.zeros(1, dtype=bool),
        restored=lambda _: False,
        trashed=lambda _: False,
        holds=Holds(),
        open_runs=(),
        young_since=NOW - timedelta(days=7),
        names=names_of(replace(view(), format=format_)),
        uncommitted=uncommitted,
    )
    (found,) = (each for each, (count, _) in judged.fates.items() if count)
    return found


@pytest.mark.parametrize(
    "modified", [None, datetime(1970, 1, 1, tzinfo=UTC), datetime(1989, 12, 31, tzinfo=UTC)]
)
def test_a_file_whose_age_is_unknown_is_young(modified: datetime | None) -> None:
    assert fate("/lake/t/data/a.parquet", modified) is FileOutcome.YOUNG
    assert fate("/lake/t/data/a.parquet", OLD) is FileOutcome.ORPHAN


def test_a_file_whose_age_the_store_does_not_tell_now_is_no_orphan_of_an_inventory() -> None:
    def row(modified: datetime) -> pa.Table:
        told = {"path": "/lake/t/data/a.parquet", "size": 1, "modified": modified, "stamp": None}
        return pa.Table.from_pylist([told], schema=LISTING)

    class Store:
        def __init__(self, modified: datetime) -> None:
            self.modified = modified

        def look(self, _: list[str]) -> pa.Table:
            return row(self.modified)

    judged = SortedListing(1, dict.fromkeys(FileOutcome, (0, 0)), row(OLD))
    for modified, left in ((OLD, 1), (NOW, 0), (datetime(1970, 1, 1, tzinfo=UTC), 0)):
        found = _as_they_are_now(Store(modified), judged, NOW - timedelta(days=7))  # type: ignore[arg-type]
        assert found.orphans.num_rows == left, modified


def with_commits(
    *commits: tuple[int, dict[str, str]], format_: str = "iceberg", **properties: str
) -> TableView:
    """Commits so many days ago, with these summaries."""
    snapshots = tuple(
        Snapshot(number, None, number, NOW - timedelta(days=days), "append", summary)
        for number, (days, summary) in enumerate(commits)
    )
    return replace(view(properties=properties), format=format_, snapshots=snapshots)


FLINK = {"flink.job-id": JOB, "flink.operator-id": "op", "flink.max-committed-checkpoint-id": "16"}
KAFKA = {"kafka.connect.offsets.connect.group": "{}"}
PAIMON = {"commit-user": "u1", "commit-identifier": "16"}
MONTH = timedelta(days=30)


def test_an_uncommitted_manifest_of_a_known_flink_job_is_no_orphan(tmp_path: Path) -> None:
    """One that cannot be read is kept too, and so is every file since the job's last commit."""
    manifest = tmp_path / MANIFEST.rsplit("/", 1)[1]
    manifest.write_bytes(b"Obj")
    other = str(tmp_path / "other.avro")
    found = uncommitted(with_commits((9, FLINK)), [str(manifest), other], MONTH, NOW, Aliases())
    assert fate(str(manifest), OLD, found) is FileOutcome.STREAM
    assert fate(str(manifest), OLD) is FileOutcome.ORPHAN
    assert fate(other, OLD, found) is FileOutcome.ORPHAN
    assert fate("/lake/t/data/a.parquet", NOW - timedelta(days=8), found) is FileOutcome.STREAM
    unknown = uncommitted(with_commits((9, {})), [str(manifest)], MONTH, NOW, Aliases())
    assert unknown == Uncommitted()


def test_a_file_since_the_last_commit_of_a_writer_that_restarts_is_no_orphan() -> None:
    """Kafka Connect and Paimon keep the names of uncommitted files where they cannot be read."""
    eight = NOW - timedelta(days=8)
    for found in (
        with_commits((20, KAFKA), (9, KAFKA)),
        with_commits((9, PAIMON), format_="paimon"),
        with_commits((9, FLINK), **{"flink.manifests.location": "/elsewhere"}),
    ):
        since = uncommitted_since(found, (), MONTH, NOW)
        assert since == NOW - timedelta(days=10)
        assert fate("/lake/t/data/a.parquet", eight, Uncommitted(since=since)) is FileOutcome.STREAM
        assert (
            fate("/lake/t/data/a.parquet", NOW - timedelta(days=11), Uncommitted(since=since))
            is FileOutcome.ORPHAN
        )
        assert uncommitted_since(found, (), timedelta(days=5), NOW) is None, (
            "the writer is waited for no more"
        )


def test_a_manifest_that_cannot_be_read_holds_files_back_while_its_job_may_restart() -> None:
    (job,) = (value for key, value in FLINK.items() if key == "flink.job-id")
    found = with_commits((9, FLINK))
    assert uncommitted_since(found, (job,), MONTH, NOW) == NOW - timedelta(days=10)
    assert uncommitted_since(found, (job,), timedelta(days=5), NOW) is None


def test_writers_whose_uncommitted_files_are_known_hold_back_no_others() -> None:
    ended = {**FLINK, "flink.max-committed-checkpoint-id": str(2**63 - 1)}
    spark = {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "1"}
    batch = {"commit-user": "u2", "commit-identifier": str(2**63 - 1)}
    assert uncommitted_since(with_commits((9, FLINK), (9, spark)), (), MONTH, NOW) is None
    elsewhere = {"flink.manifests.location": "/elsewhere"}
    assert uncommitted_since(with_commits((9, FLINK), (8, ended), **elsewhere), (), MONTH, NOW) is None
    assert uncommitted_since(with_commits((9, batch), format_="paimon"), (), MONTH, NOW) is None


def test_what_paimon_left_half_written_is_swept() -> None:
    left = "/lake/t/snapshot/.snapshot-7.0f6e0b5c-9f2d-4c0e-8f3a-1b2c3d4e5f60.tmp"
    assert fate(left, OLD, format_="paimon") is FileOutcome.ORPHAN
    assert fate(left, NOW, format_="paimon") is FileOutcome.YOUNG
    assert fate("/lake/t/snapshot/.notes.tmp", OLD, format_="paimon") is FileOutcome.HIDDEN
    assert fate(left, OLD) is FileOutcome.HIDDEN


def test_a_file_inside_the_grace_is_young_whatever_the_store_listed() -> None:
    assert fate("/lake/t/data/a.parquet", NOW - timedelta(days=6)) is FileOutcome.YOUNG
    assert fate("/lake/t/data/a.parquet", NOW - timedelta(days=8)) is FileOutcome.ORPHAN
