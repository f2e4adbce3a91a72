"""One of our jobs on a Paimon table, and somebody else who changes the table at the worst moment of it, by Paimon's own library.

Every table is a copy of one that was made once. What must be in it afterwards is told by another copy, to which only the others
did something.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lakewarden.errors import CommitLost, LakewardenError
from lakewarden.jobs.purge.execute import Purger
from lakewarden.jobs.sweep import execute
from lakewarden.model.run import RunState
from lakewarden.tables.paimon import rewrite, writer
from lakewarden.tables.paimon.writer import PaimonWriter
from tests.support.paimon import PaimonLab

OLD, OTHER, NEW = "2024-01-01", "2024-01-02", "2999-01-01"
DAYS = (OLD, OTHER, NEW)
AT_ONCE = {"delete_grace_hours": 0}
ANY = {"orphan_max_percent": 100}
ORPHAN = f"dt={OTHER}/bucket-0/data-00000000-0000-0000-0000-000000000000-0.parquet"


@dataclass(frozen=True)
class Kind:
    keyed: bool
    options: dict[str, str]


KINDS = {
    "append": Kind(False, {"compaction.min.file-num": "2"}),
    "fixed buckets": Kind(False, {"bucket": "2", "bucket-key": "id", "write-only": "true"}),
    "append with deletion vectors": Kind(
        False, {"deletion-vectors.enabled": "true", "compaction.min.file-num": "2"}
    ),
    "primary key": Kind(True, {"write-only": "true"}),
    "primary key with deletion vectors": Kind(
        True, {"deletion-vectors.enabled": "true", "write-only": "true"}
    ),
}


# ------------------------------------------------------------ what others do


def _append(lab: PaimonLab, table: str) -> None:
    lab.maker.write(lab.load(table), 900, 7, OLD, False)


def _delete(lab: PaimonLab, table: str) -> None:
    """Rows of a key get another value and others go; without keys a deletion vector strikes some."""
    if lab.load(table).primaryKeys():
        lab.maker.update(lab.load(table), 3, 4, OLD)
        lab.delete(table, 10, 3, OLD)
        return
    for each in lab.files(table):
        if OLD in each["place"]:
            lab.types.strike(lab.load(table), each["name"], 1, 3)


def _drop_partition(lab: PaimonLab, table: str) -> None:
    lab.maker.dropPartition(lab.load(table), OLD)


def _compact(lab: PaimonLab, table: str) -> None:
    lab.maker.compact(lab.load(table).copy({"write-only": "false"}))


def _expire(lab: PaimonLab, table: str) -> None:
    """Everything but the newest, which is one that was not there before."""
    lab.maker.write(lab.load(table), 950, 2, NEW, False)
    assert lab.maker.ownExpire(lab.load(table), 1) > 0


def _tag(lab: PaimonLab, table: str) -> None:
    """The first snapshot that is left."""
    first = lab.load(table).snapshotManager().earliestSnapshotId()
    lab.maker.tag(lab.load(table), "theirs", first)


def _roll_back(lab: PaimonLab, table: str) -> None:
    """Far back: what is left is among what an expiry would drop."""
    first = lab.load(table).snapshotManager().earliestSnapshotId()
    lab.maker.rollback(lab.load(table), max(first, 5))


OTHERS: dict[str, Callable[[PaimonLab, str], None]] = {
    "append": _append,
    "delete": _delete,
    "drop partition": _drop_partition,
    "compaction": _compact,
    "expiry": _expire,
    "tag": _tag,
    "rollback": _roll_back,
}


# ------------------------------------------------------------ our jobs, and the worst moment of each

_MOMENTS: dict[str, tuple[Any, str]] = {
    # The outputs are written, the commit has not begun.
    "compact": (PaimonWriter, "commit_rewrite"),
    "compact keyed": (rewrite, "commit"),
    "compact-deletes": (PaimonWriter, "commit_rewrite"),
    "rewrite-manifests": (rewrite, "commit"),
    # The plan is journaled. The second: the table was read again, too, and nothing but the dropping is left to do.
    "expire": (PaimonWriter, "expire"),
    "expire, last instant": (writer, "_check"),
    "expire-partitions": (PaimonWriter, "drop_partitions"),
    # Listed, and not yet read what is needed.
    "sweep": (execute, "_listing"),
    # Proven, and not yet deleted.
    "purge": (Purger, "_erase"),
    # Asked whether the snapshot is there.
    "tag": (writer, "create_tag"),
}
# The others come in when these are done; with the rest, before they begin.
_AFTER = ("expire, last instant", "sweep")


@contextmanager
def meanwhile(job: str, do: Callable[[], None]) -> Iterator[list[bool]]:
    """Run `do` once, at the job's worst moment; what is yielded is not empty when that was."""
    owner, name = _MOMENTS[job]
    real, done = getattr(owner, name), []
    merge, merged = rewrite.Keyed.merge, []

    def counted(*given: Any) -> Any:
        found = merge(*given)
        merged.append(True)
        return found

    def once() -> None:
        if not done:
            done.append(True)
            until = time.monotonic() + 60
            while job == "compact keyed" and len(merged) < len(DAYS) and time.monotonic() < until:
                time.sleep(0.01)  # partitions are merged at the same time: none of them later than this
            do()

    def called(*given: Any, **named: Any) -> Any:
        if job in _AFTER:
            found = real(*given, **named)
            once()
            return found
        once()
        return real(*given, **named)

    with patch.object(owner, name, called), patch.object(rewrite.Keyed, "merge", counted):
        yield done


_POLICIES: dict[str, dict[str, object]] = {
    "compact": {"rewrite_min_input_files": 2},
    "compact-deletes": {"delete_compaction_ratio": 0.01, "delete_compaction_min_deletes": 1},
    "rewrite-manifests": {"manifest_rewrite_min_manifests": 2},
    "expire": {"snapshot_retention_hours": 0, "snapshot_min_retained": 3},
    "expire-partitions": {"partition_expiry_enabled": True, "partition_ttl_hours": "30d"},
    "sweep": ANY,
    "purge": AT_ONCE,
}
_TAGGED = 4


def run(lab: PaimonLab, job: str, table: str) -> tuple[str, str]:
    """How our job ended, and why."""
    name = job.replace(" keyed", "").partition(",")[0]
    if name == "tag":
        try:
            lab.lw.holds.tag(table, "ours", snapshot_id=_TAGGED, forever=True)
        except CommitLost as error:
            return RunState.LOST_RACE.value, error.message
        return RunState.DONE.value, ""
    try:
        ended = lab.lw.run(name, table, _POLICIES[name])
    except LakewardenError as error:
        return "error", error.message
    return ended.state.value, ended.reason


# ------------------------------------------------------------ tables


@dataclass
class Told:
    """What a table is like that only the others changed."""

    rows: list[str]
    orphans: set[str]


@dataclass
class Originals:
    """A table of each kind, made once. They lie outside the lake: a copy of a table in it would be refused."""

    lab: PaimonLab
    _told: dict[tuple[str, str, bool], Told] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._home = self.lab.warehouse.parent / "originals"
        self._home.mkdir()

    @contextmanager
    def copied(self, kind: str, *, expired: bool = False) -> Iterator[str]:
        """A fresh copy, of which nothing is known; with files that are in the trash where asked."""
        original = self._original(kind)
        folder = self.lab.warehouse / "db.db" / "orders"
        shutil.copytree(original, folder)
        table = f"{self.lab.catalog}.db.orders"
        try:
            if expired:
                assert run(self.lab, "expire", table)[0] == "done"
            yield table
        finally:
            shutil.rmtree(folder)
            with self.lab.lw.state.write() as connection:
                for name in (
                    "trash",
                    "trash_batches",
                    "run_steps",
                    "runs",
                    "commit_locks",
                    "archived_snapshots",
                ):
                    connection.exec_driver_sql(f"DELETE FROM {name}")

    def told(self, kind: str, other: str = "", *, expired: bool = False) -> Told:
        """By Paimon alone, asked once for each; without a name, nobody did anything."""
        if (kind, other, expired) not in self._told:
            with self.copied(kind, expired=expired) as table:
                if other:
                    OTHERS[other](self.lab, table)
                age(self.lab, table)
                self._told[kind, other, expired] = Told(rows(self.lab, table), self.lab.own_orphans(table))
        return self._told[kind, other, expired]

    def _original(self, kind: str) -> Path:
        """Small files on three days, compacted once and then written again; a tag, and a file that nobody knows."""
        folder = self._home / kind
        if not folder.exists():
            made = KINDS[kind]
            table = self.lab.create("made", keyed=made.keyed, **made.options)
            for start in (0, 5):
                for day in DAYS:
                    self.lab.maker.write(self.lab.load(table), start, 20, day, False)
            _compact(self.lab, table)
            self.lab.maker.tag(self.lab.load(table), "kept", 3)
            for start in (30, 60):
                for day in DAYS:
                    self.lab.maker.write(self.lab.load(table), start, 20, day, False)
            if made.options.get("deletion-vectors.enabled"):
                self._deleted(table, made)
            (self.lab.folder(table) / ORPHAN).parent.mkdir(parents=True, exist_ok=True)
            (self.lab.folder(table) / ORPHAN).write_bytes(b"x")
            age(self.lab, table)
            self.lab.folder(table).rename(folder)
        return folder

    def _deleted(self, table: str, made: Kind) -> None:
        """Deletion vectors that are there from the beginning."""
        if made.keyed:
            self.lab.delete(table, 15, 3, OTHER)
            _compact(self.lab, table)
            for start in (80, 90):
                for day in DAYS:
                    self.lab.maker.write(self.lab.load(table), start, 15, day, False)
            return
        largest = {each["place"]: each for each in sorted(self.lab.files(table), key=lambda it: it["rows"])}
        for each in largest.values():
            self.lab.types.strike(self.lab.load(table), each["name"], 5, 5)


def age(lab: PaimonLab, table: str) -> None:
    """Everything was written two months ago: nothing is too young to be swept. What is old already stays as it is."""
    then = time.time() - 60 * 86_400
    for path in lab.folder(table).rglob("*"):
        if path.stat().st_mtime > then + 86_400:
            os.utime(path, (then, then))


def rows(lab: PaimonLab, table: str) -> list[str]:
    """All there is by Paimon's own reader; where that does not show what is not merged yet, of a copy that is merged."""
    loaded = lab.load(table)
    if not (loaded.primaryKeys() and loaded.coreOptions().deletionVectorsEnabled()):
        return lab.rows(table)
    with lab.twin(table) as (twin, _):
        lab.maker.compact(twin.copy({"write-only": "false"}))
        found: list[str] = json.loads(lab.maker.rows(twin, -1, None))
    return found


def readable(lab: PaimonLab, table: str) -> dict[str, list[str]]:
    """The rows of every snapshot and every tag, by Paimon's own reader."""
    loaded = lab.load(table)
    there = loaded.snapshotManager()
    ids = range(there.earliestSnapshotId(), there.latestSnapshotId() + 1)
    found = {f"snapshot {each}": lab.rows(table, each) for each in ids}
    tags = [each.removeprefix("tag/tag-") for each in lab.on_disk(table) if each.startswith("tag/tag-")]
    return found | {f"tag {name}": lab.rows(table, tag=name) for name in tags}


def race(lab: PaimonLab, table: str, job: str, other: str) -> tuple[str, str]:
    with meanwhile(job, partial(OTHERS[other], lab, table)) as happened:
        ended = run(lab, job, table)
    assert happened, "the moment never came"
    return ended
