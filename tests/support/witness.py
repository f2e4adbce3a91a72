"""Remembers a table, and says afterwards whether anything is lost: whatever died, failed or met in between.

What a table needs is asked of Iceberg's own metadata tables, never of the code under test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from lakewarden import clock
from lakewarden.jobs.fsck.findings import Severity
from lakewarden.model.location import normal
from lakewarden.model.run import Job, Run, RunState
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import BatchState, FileState
from lakewarden.storage.generation_file import WITNESS
from lakewarden.storage.objects import Objects
from tests.support.lab import Lab

EXPIRE = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
PURGE = {"delete_grace_hours": 0}
SWEEP = {"orphan_max_percent": 100, "orphan_grace_hours": 24}
# What lies beside a table's files without being one: a Hadoop catalog's hint, and Hadoop's checksums.
_BESIDE = ("version-hint.text", ".crc", WITNESS, f"{WITNESS}.part")


@contextmanager
def later(**more: float) -> Iterator[None]:
    """Lakewarden's clock, so much further on (or back) than the table's and the store's."""
    real, ahead = clock.now, timedelta(**more)
    with patch.object(clock, "now", lambda: real() + ahead):
        yield


@dataclass
class Witness:
    """`io` are the properties of the store the table is on; none for this machine's disk."""

    lab: Lab
    table: str
    io: Mapping[str, str] = field(default_factory=dict)
    rows: dict[int, list[Any]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Remember what every snapshot says and every file there is. To be called after each change that is meant."""
        self.rows |= {each: self._rows(each) for each in self.snapshots() if each not in self.rows}
        self.look_at_files()

    def look_at_files(self) -> None:
        """Only what is there: quick."""
        self.seen |= self.stored()

    # ------------------------------------------------------------ what there is

    def snapshots(self) -> list[int]:
        return [row.snapshot_id for row in self.lab.snapshots(self.table)]

    def _rows(self, snapshot_id: int) -> list[Any]:
        return self.lab.rows(self.table, f"version as of {snapshot_id}")

    def stored(self) -> set[str]:
        """Every file in the table's folder."""
        folder = self.lab.lw.view(self.table).location
        listed = (path for batch in Objects(self.io).list(folder) for path in batch["path"].to_pylist())
        return {normal(path) for path in listed if not path.endswith(_BESIDE)}

    def needed(self) -> set[str]:
        """What Iceberg says any snapshot of the table needs, and its own metadata files."""
        asked = {
            "all_files": "file_path",
            "all_manifests": "path",
            "snapshots": "manifest_list",
            "metadata_log_entries": "file",
        }
        found = [
            row[0]
            for name, column in asked.items()
            for row in self.lab.sql(f"select distinct {column} from {self.table}.{name}")
        ]
        return {normal(path) for path in found}

    def files(self, *states: FileState) -> list[str]:
        found = TrashedFiles(self.lab.lw.state).list(self.table, states or tuple(FileState), 1_000_000)
        return [normal(each.path) for each in found]

    # ------------------------------------------------------------ what must be true

    def nothing_lost(self) -> None:
        """At any time: every snapshot reads as it did, what is gone was not needed, and has one receipt."""
        for each in self.snapshots():
            assert self._rows(each) == self.rows.get(each, self._rows(each)), (
                f"snapshot {each} reads differently"
            )
        stored = self.stored()
        assert self.needed() - stored == set(), "files that a snapshot needs are missing"
        held = {pin.snapshot_id for pin in self.lab.lw.holds.pins(self.table)}
        assert held <= set(self.snapshots()), "a pinned snapshot is gone"
        errors = [each for each in self.lab.lw.fsck(self.table).findings if each.severity is Severity.ERROR]
        assert errors == []
        self._receipts_tell(self.seen - stored)

    def _receipts_tell(self, gone: set[str]) -> None:
        receipts = self.files(FileState.ERASED, FileState.MISSING)
        assert [path for path, count in Counter(receipts).items() if count > 1] == [], "told twice"
        # A file that is being erased has its receipt when the next run finds it gone.
        under_way = set(self.files(FileState.ERASING))
        assert gone - under_way <= set(receipts), "gone without a receipt"
        assert set(receipts) <= gone, "a receipt for a file that is there"

    def nothing_open(self) -> None:
        """No run, batch or file is left between two states."""
        assert [run for run in self.lab.lw.runs(self.table, 1000) if run.ended_at is None] == []
        assert self.files(FileState.ERASING) == []
        batches = TrashedFiles(self.lab.lw.state).batches(self.table)
        assert [each for each in batches if each.batch.state is BatchState.PENDING] == []

    def told_truly(self, job: str) -> None:
        """A run that ended as done or failed says of its deletion batch what is so."""
        for each in self.lab.lw.runs(self.table, 1000):
            batch = TrashedFiles(self.lab.lw.state).batch(each.id)
            if each.job != job or batch is None:
                continue
            in_force = batch.state is BatchState.ACTIVE
            assert in_force is (each.state is RunState.DONE), f"{each.state}: {each.reason}, {batch.state}"

    def converges(self) -> None:
        """Given time, everything that nobody needs goes, and nothing else; then there is nothing to do."""
        self.look()
        run(self.lab, self.table, Job.EXPIRE)
        with later(days=10):
            run(self.lab, self.table, Job.SWEEP)
        with later(days=12):
            purged = self.lab.lw.run("purge", self.table)
            assert purged.state in (RunState.DONE, RunState.NOTHING_TO_DO), purged.reason
        self.nothing_lost()
        self.nothing_open()
        kept = self.needed() | set(self.files(FileState.RESTORED)) | self._loads()
        assert self.stored() - kept == set(), "nobody needs these, and they stay"
        with later(days=30):
            again = [run(self.lab, self.table, each) for each in (Job.EXPIRE, Job.SWEEP, Job.PURGE)]
        assert {each.state for each in again} == {RunState.NOTHING_TO_DO}

    def _loads(self) -> set[str]:
        return {normal(path) for hold in self.lab.lw.holds.of(self.table).holds for path in hold.paths}


def run(lab: Lab, table: str, job: str, **policy: object) -> Run:
    """The job, wanting as much as it may; it must end well."""
    done = lab.lw.run(job, table, {**wanted(job), **policy})
    assert done.state in (RunState.DONE, RunState.NOTHING_TO_DO), f"{job} {done.state}: {done.reason}"
    return done


def wanted(job: str) -> dict[str, object]:
    return dict({Job.EXPIRE: EXPIRE, Job.PURGE: PURGE, Job.SWEEP: SWEEP}.get(Job(job), {}))
