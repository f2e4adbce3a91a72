"""Random histories of real Iceberg tables: the library itself says what each table needs, after every operation, and PyIceberg
what rows it has.

The same question as tests/histories asks of a model, with fewer and slower histories: seeds are their names. Besides, tables
are compacted while deletes arrive. Snapshots of others are read when they are made, and again when the history ends; one of
ours must have the rows of the snapshot below it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial, partialmethod
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakewarden.deletion.proof import Proof
from lakewarden.errors import LakewardenError
from lakewarden.lake import Lake
from lakewarden.model.run import RunState
from lakewarden.storage.local import LocalFiles
from lakewarden.tables.iceberg.rewrite import RewriteCommit
from lakewarden.tables.iceberg.writer import IcebergWriter
from lakewarden.tables.jvm import JavaError, bridge, is_java
from tests.histories.model import plain
from tests.histories.process import CONFIG, Crash, Database, Process
from tests.support.faulty_disk import FaultyDisk
from tests.support.other_reader import Rows, files_needed
from tests.support.spark import add_catalog

COUNT = int(os.environ.get("LAKEWARDEN_REAL_HISTORIES", "3"))
# The first two tables are of format versions 2 and 3.
FIRST = int(os.environ.get("LAKEWARDEN_FIRST_SEED", "4"))
NOW: dict[str, object] = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
JOBS: dict[str, dict[str, object]] = {
    "expire": NOW,
    "sweep": {"orphan_grace_hours": 24, "orphan_max_percent": 100},
    "purge": {"delete_grace_hours": 24},
    "compact": {"rewrite_min_input_files": 2},
    "compact-deletes": {},
}
REWRITES = ("compact", "compact-deletes")
# The rows of a data file, and how the numbers of two files' rows differ.
ROWS, APART = 4, 10
SCHEMA = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)


class RealHistory:
    """One table of the library's own, a Lakewarden beside it, and a clock that runs ahead of the real one."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.folder = folder / f"history-{seed}"
        self.warehouse = self.folder / "warehouse"
        self.warehouse.mkdir(parents=True)
        # In a session of its own: every table of every catalog of a session is read before anything is deleted.
        spark = spark.newSession()
        self.catalog = add_catalog(spark, self.a_catalog())
        self.name = f"{self.catalog}.db.events"
        self.version = self.rng.choice([2, 3])
        spark.sql(f"create namespace {self.catalog}.db")
        spark.sql(
            f"create table {self.name} (id bigint) using iceberg tblproperties ('format-version'='{self.version}', "
            "'write.metadata.previous-versions-max'='4')"
        )
        self.spark = spark
        self.java = bridge(spark, Path(__file__).with_name("RealHistory.java"), "tests.RealHistory")
        self.database = Database(self.folder)
        self.database.use(self.folder / "state.db")
        self.ahead = timedelta(0)
        self.files = 0
        self.pins: dict[str, tuple[int, datetime]] = {}
        self.restored: set[tuple[str, str]] = set()
        self.told: Counter[str] = Counter()
        self.seen: set[tuple[str, int]] = set()
        self.done: list[str] = []
        self.rows: dict[int, list[int]] = {}
        self.committed: set[str] = set()
        self.arrives: str | None = None
        # Faults have numbers of their own: without them a seed plays the same history.
        self.disk = FaultyDisk(Random(seed), self.now, self.told, self.wait)
        self.process = self.new_process()

    def a_catalog(self) -> dict[str, str]:
        """One that spells the table's location in one of the ways people do."""
        kind = self.rng.choice(["hadoop", "jdbc", "jdbc"])
        warehouse = self.rng.choice(
            [str(self.warehouse), f"file:{self.warehouse}", f"file://{self.warehouse}"]
        )
        named = {"type": kind, "warehouse": warehouse}
        uri = f"jdbc:sqlite:{self.folder / 'catalog.db'}"
        jdbc = {"uri": uri, "jdbc.schema-version": "V1", "clients": "1"}
        return named | jdbc if kind == "jdbc" else named

    def new_process(self) -> Process:
        return Process(self.database.engine, Lake(CONFIG, self.spark), "")

    # ------------------------------------------------------------ the table

    @property
    def table(self) -> Any:
        return self.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(  # type: ignore[union-attr]
            self.spark._jsparkSession, self.name
        )

    def ask(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = json.loads(self.java.needed(self.table))
        return found

    def new_file(self) -> str:
        """Written, in one of the ways to spell it."""
        self.files += 1
        return self.spelled(self.file(self.files))

    def file(self, number: int) -> str:
        """The data file of that number, written where it is not there. Its rows follow from its number."""
        name = self.name_of(f"{number:04d}")
        if not Path(name).exists():
            write(name, range(number * APART, number * APART + ROWS))
        return name

    def name_of(self, stem: str, suffix: str = "parquet") -> str:
        return f"{self.warehouse}/db/events/data/{stem}.{suffix}"

    def spelled(self, name: str) -> str:
        return self.rng.choice([name, f"file:{name}", f"file://{name}"])

    def wait(self, seconds: float) -> None:
        """So long by the clock, and a few milliseconds in truth: other threads go on."""
        self.ahead += timedelta(seconds=seconds)
        time.sleep(min(seconds / 30_000, 0.005))

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def age(self) -> None:
        """What was written just now was written at the moment our clock shows."""
        nanos = int(self.now().timestamp() * 1e9)
        for path in self.warehouse.rglob("*"):
            if path.is_file() and (str(path), path.stat().st_mtime_ns) not in self.seen:
                os.utime(path, ns=(nanos, nanos))
                self.seen.add((str(path), path.stat().st_mtime_ns))

    # ------------------------------------------------------------ the judge

    def deleting(
        self, files: LocalFiles, real: Callable[..., dict[str, str]], paths: Sequence[str]
    ) -> dict[str, str]:
        names = {plain(path): path for path in paths}
        needed = names.keys() & {plain(each) for each in self.ask()["needed"]}
        assert not needed, f"{min(needed)} is deleted, and the table needs it"
        failed: dict[str, str] = {}
        for name, path in names.items():
            self.check_batch(name, path)
            self.process.gates.at(crash_only=True)
            failed |= self.disk.delete(lambda paths: real(files, paths), path)
            self.told["files erased"] += path not in failed
        return failed

    def check_batch(self, name: str, path: str) -> None:
        rows = self.database.ask(
            "SELECT v.id, v.trashed_at FROM trash d JOIN trash_batches v ON v.id = d.batch_id "
            "WHERE d.state = 'erasing' AND v.state = 'active' AND d.path = ?",
            path,
        )
        if not rows and Path(name).name.startswith("lakewarden-") and name not in self.committed:
            self.told["outputs of lost rewrites erased"] += 1
            return
        assert len(rows) == 1, f"{name} is deleted under {len(rows)} batches"
        trashed_at = datetime.fromisoformat(rows[0][1]).replace(tzinfo=UTC)
        assert trashed_at + timedelta(hours=24) <= self.now(), f"{name} is deleted inside its grace"
        assert (rows[0][0], name) not in self.restored, f"{name} is deleted, and was restored"

    def check(self) -> None:
        found = self.ask()
        self.committed.update(plain(each) for each in found["needed"])
        for each in found["needed"]:
            assert Path(plain(each)).exists(), f"{each} is gone, and the table needs it"
        for each in files_needed(found["metadata"][0]):
            assert Path(plain(each)).exists(), f"{each} is gone, and PyIceberg says that the table needs it"
        for pin_id, (snapshot_id, until) in self.pins.items():
            gone = until > self.now() and snapshot_id not in found["snapshots"]
            assert not gone, f"snapshot {snapshot_id} is gone, and pin {pin_id} holds it"

    def look(self, *, ours: bool = False) -> None:
        """Read what is new. A rewrite has the rows of the snapshot below it, with everything that arrived meanwhile."""
        told = self.ask()
        if self.rows.keys() >= set(told["snapshots"]):
            return
        read = Rows(told["metadata"][0])
        for snapshot, parent in read.parents.items():
            if snapshot not in self.rows:
                found = read.of(snapshot)
                if ours:
                    assert parent is not None
                    assert found == self.rows[parent], f"{different(found, self.rows[parent])} by a rewrite"
                    self.told["rewrites"] += 1
                self.rows[snapshot] = found

    def judge(self) -> None:
        """Every snapshot has the rows that it had when it was made."""
        read = Rows(self.ask()["metadata"][0])
        for snapshot in read.parents:
            found = read.of(snapshot)
            assert found == self.rows[snapshot], f"{different(found, self.rows[snapshot])} since it was made"
            self.told["snapshots read again"] += 1

    # ------------------------------------------------------------ operations

    def append(self) -> None:
        branches = [ref.name for ref in self.view().refs if ref.kind == "branch" and ref.name != "main"]
        branch = self.rng.choice([*branches, "main", "main"])
        self.java.append(self.table, counted([self.new_file() for _ in range(2)]), branch, False)

    def stage(self) -> None:
        self.java.append(self.table, counted([self.new_file()]), "main", True)

    def delete(self) -> None:
        live = self.ask()["live"]
        if live:
            self.java.delete(
                self.table, json.dumps(self.rng.sample(live, self.rng.randrange(1, len(live) + 1)))
            )

    def rewrite(self) -> None:
        """By another tool: the output has what was left of the rows."""
        found = self.ask()
        live = found["live"]
        if len(live) > 1:
            gone = live[: self.rng.randrange(2, len(live) + 1)]
            read = Rows(found["metadata"][0])
            rows = [id_ for path, ids in read.by_file(read.current) if path in gone for id_ in ids]
            self.files += 1
            name = self.name_of(f"{self.files:04d}")
            write(name, rows)
            self.java.rewrite(self.table, json.dumps(gone), self.spelled(name), len(rows))

    def row_delta(self) -> None:
        """One row is deleted: by its key, by its position, or by a vector where the format version asks for one."""
        found = self.ask()
        keys = self.rng.random() < 0.3
        free = found["live"] if keys or self.version < 3 else sorted({*found["live"]} - {*found["struck"]})
        if not free:
            return
        target = self.rng.choice(free)
        ids = pq.read_table(plain(target))["id"].to_pylist()
        place = self.rng.randrange(len(ids))
        self.files += 1
        stem = f"{self.files:04d}-deletes"
        if self.version >= 3 and not keys:
            self.java.vector(self.table, self.spelled(self.name_of(stem, "puffin")), target, place)
            return
        name = self.name_of(stem)
        if keys:
            write(name, [ids[place]])
        else:
            pq.write_table(pa.table({"file_path": [target], "pos": [place]}, schema=POSITIONS), name)
        self.java.rowDelta(self.table, self.spelled(name), 1, keys)

    def rewrite_manifests(self) -> None:
        if self.view().current_snapshot_id is not None:
            self.java.rewriteManifests(self.table)

    def re_add(self) -> None:
        """A path that left the table, whose file is there or not, comes back."""
        live = {plain(each) for each in self.ask()["live"]}
        gone = [number for number in range(1, self.files + 1) if self.name_of(f"{number:04d}") not in live]
        if gone:
            again = self.spelled(self.file(self.rng.choice(gone)))
            self.java.append(self.table, counted([again]), "main", False)

    def make_ref(self) -> None:
        snapshot = self.a_snapshot()
        if snapshot is not None:
            name = f"ref-{len(self.done)}"
            self.java.manage(self.table, self.rng.choice(["tag", "branch"]), name, snapshot)

    def drop_ref(self) -> None:
        refs = [ref for ref in self.view().refs if ref.name != "main"]
        if refs:
            ref = self.rng.choice(refs)
            self.java.manage(self.table, "untag" if ref.kind == "tag" else "unbranch", ref.name, 0)

    def rollback(self) -> None:
        snapshot = self.a_snapshot()
        if snapshot is not None:
            self.java.manage(self.table, "rollback", "", snapshot)

    def cherry_pick(self) -> None:
        """Iceberg adds the picked files again though they are live. Its library cannot read a table where one has an older vector."""
        snapshot = self.a_snapshot()
        struck = self.version >= 3 and self.ask()["struck"]
        if snapshot is not None and not struck:
            self.java.manage(self.table, "cherry-pick", "", snapshot)

    def other_tool_expires(self) -> None:
        view = self.view()
        named = {ref.snapshot_id for ref in view.refs} | {snapshot for snapshot, _ in self.pins.values()}
        free = [each.id for each in view.snapshots if each.id not in named]
        if free:
            self.java.expire(self.table, json.dumps(self.rng.sample(free, 1)))

    def stray(self) -> None:
        self.new_file()

    def pin(self) -> None:
        snapshot = self.a_snapshot()
        if snapshot is not None:
            pin = self.process.lw.pin(self.name, snapshot, holder="reader", ttl="30h")
            assert pin.expires_at is not None
            self.pins[pin.id] = (snapshot, pin.expires_at)

    def restore(self) -> None:
        found = self.process.lw.trash(self.name).files
        if found:
            self.process.lw.restore(self.name, self.rng.choice(found).path, operator="ana")
        rows = self.database.ask("SELECT batch_id, path FROM trash WHERE state = 'restored'")
        self.restored.update((batch, plain(path)) for batch, path in rows)

    def a_day(self) -> None:
        self.ahead += timedelta(hours=25)

    def job(self, job: str) -> None:
        """The process may die on its way; another one goes on."""
        gates = self.process.gates
        gates.count, gates.crash_at = 0, self.rng.randrange(1, 50) if self.rng.random() < 0.3 else 0
        self.told["runs"] += 1
        if job in REWRITES and self.rng.random() < 0.7:
            self.arrives = self.rng.choice(ARRIVALS)
        try:
            self.process.lw.run(job, self.name, JOBS[job])
        except Crash:
            self.told["crashes"] += 1
            self.process = self.new_process()
        finally:
            gates.crash_at, self.arrives = 0, None
            self.look(ours=True)

    def arrive(self) -> None:
        """At the worst moment: the outputs of a rewrite are written, its commit has not begun."""
        name, self.arrives = self.arrives, None
        if name is not None:
            self.told[f"{name} while a rewrite was under way"] += 1
            other(self, name)
            self.look()

    def view(self) -> Any:
        return self.process.lw.view(self.name)

    def a_snapshot(self) -> int | None:
        snapshots = self.view().snapshots
        return self.rng.choice(snapshots).id if snapshots else None


def write(name: str, ids: Iterable[int]) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": list(ids)}, schema=SCHEMA), name)


def counted(paths: Sequence[str]) -> str:
    return json.dumps({path: pq.read_metadata(plain(path)).num_rows for path in paths})


def different(found: Sequence[int], wanted: Sequence[int]) -> str:
    lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    return f"PyIceberg reads other rows: {sorted(lost.elements())} lost, {sorted(more.elements())} added"


OTHERS = [
    "append",
    "append",
    "stage",
    "delete",
    "rewrite",
    "row_delta",
    "rewrite_manifests",
    "re_add",
    "re_add",
    "make_ref",
]
OTHERS += ["drop_ref", "rollback", "cherry_pick", "other_tool_expires", "stray", "pin", "restore", "a_day"]
# A rewrite that has something to do is more telling.
BEFORE = ["append", "append", "row_delta", "row_delta"]
ARRIVALS = ["row_delta", "row_delta", "row_delta", "append", "delete", "re_add", "rewrite"]


def operations(rng: Random) -> list[str]:
    """A past, then rewrites, marks and deletions with something in between."""
    chosen = ["append", "append", *rng.choices(OTHERS, k=3)]
    for _ in range(2):
        mark = rng.choice(["expire", "expire", "sweep"])
        chosen += [
            rng.choice([*OTHERS, *BEFORE]),
            rng.choice(REWRITES),
            rng.choice(OTHERS),
            mark,
            rng.choice(OTHERS),
            "a_day",
            rng.choice(OTHERS),
            "purge",
        ]
    return chosen


def perform(history: RealHistory, name: str) -> None:
    """One operation; what a user is told no to, and what Iceberg will not do, are part of life."""
    history.done.append(name)
    history.told["operations"] += 1
    try:
        if name in JOBS:
            history.job(name)
        else:
            other(history, name)
            history.look()
    except LakewardenError as error:
        history.told[type(error).__name__] += 1
    history.age()
    history.check()


def other(history: RealHistory, name: str) -> None:
    """What is not ours."""
    try:
        getattr(history, name)()
    except JavaError as error:
        if not is_java(error, "ValidationException", "CherrypickAncestorCommitException"):
            raise
        history.told["Iceberg says no"] += 1


def settle(history: RealHistory) -> None:
    """Time passes, nothing disturbs: what nobody needs is gone in the end."""
    history.disk.quiet = True
    history.ahead += timedelta(hours=50)
    history.pins.clear()
    for job in (*REWRITES, "expire", "sweep", "purge", "sweep", "purge"):
        history.ahead += timedelta(hours=25)
        history.process.lw.run(job, history.name, JOBS[job])
        history.look(ours=True)
        history.check()
    needed = {plain(each) for each in history.ask()["needed"]}
    back = {name for _, name in history.restored}
    here = {str(path) for path in history.warehouse.rglob("*") if path.is_file()}
    left = [each for each in here - needed - back if not Path(each).name.startswith((".", "_"))]
    assert [each for each in left if not each.endswith("version-hint.text")] == []


@contextmanager
def set_up(history: RealHistory) -> Iterator[None]:
    delete, list_, commit = LocalFiles.delete, LocalFiles.list, IcebergWriter.commit_rewrite

    def asked(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda files, *more: history.disk.ask(partial(real, files), *more)

    faulty: dict[str, Callable[..., Any]] = {
        "delete": lambda files, paths: history.deleting(files, delete, paths),
        "list": lambda files, folder: history.disk.list(partial(list_, files), folder),
        **{name: asked(getattr(LocalFiles, name)) for name in ("stat", "look", "read", "write")},
    }

    def late(iceberg: IcebergWriter, *more: Any) -> int | None:
        history.arrive()
        return commit(iceberg, *more)

    with ExitStack() as stack:
        stack.enter_context(patch("lakewarden.clock.now", history.now))
        stack.enter_context(patch.object(IcebergWriter, "commit_rewrite", late))
        for name, do in faulty.items():
            stack.enter_context(patch.object(LocalFiles, name, partialmethod(_call, do)))
        yield


def _call(files: LocalFiles, do: Callable[..., Any], *asked: Any) -> Any:
    return do(files, *asked)


def played(spark: SparkSession, folder: Path, seed: int) -> Counter[str]:
    history = RealHistory(spark, folder, seed)
    with set_up(history):
        try:
            for name in operations(history.rng):
                perform(history, name)
            history.judge()
            settle(history)
            history.judge()
        except Exception as error:
            raise AssertionError(f"seed {seed}, after {', '.join(history.done)}: {error}") from error
        finally:
            history.database.engine.dispose()
    return history.told


def test_a_proof_that_sees_nothing_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    blind = patch.object(Proof, "_holds", lambda self, numbers: np.zeros(len(numbers), dtype=bool))
    with blind, pytest.raises(AssertionError, match="and the table needs it"):
        for seed in range(4, 14):
            played(spark, tmp_path, seed)


def test_rows_that_changed_are_seen_by_the_other_reader_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Every file that is named is there, of the right size and with as many rows."""
    history = RealHistory(spark, tmp_path, 0)
    for name in ("append", "append", "row_delta"):
        perform(history, name)
    history.judge()
    path = plain(history.ask()["live"][0])
    write(path, [id_ + 1 for id_ in pq.read_table(path)["id"].to_pylist()])
    history.check()
    with pytest.raises(AssertionError, match="PyIceberg reads other rows"):
        history.judge()
    history.database.engine.dispose()


@pytest.mark.parametrize(("seed", "version"), [(4, 2), (5, 3)])
def test_a_delete_that_a_rewrite_drops_is_seen_by_the_other_reader(
    spark: SparkSession, tmp_path: Path, seed: int, version: int
) -> None:
    """It arrives, the outputs do not get it, and the run ends well: the row is back (iceberg#10312)."""
    history = RealHistory(spark, tmp_path, seed)
    assert history.version == version
    with set_up(history), patch.object(RewriteCommit, "_write", lambda *_: []):
        history.disk.quiet = True
        for name in ("append", "append"):
            perform(history, name)
        history.arrives = "row_delta"
        assert history.process.lw.run("compact", history.name, JOBS["compact"]).state is RunState.DONE
        history.check()
        with pytest.raises(AssertionError, match=r"PyIceberg reads other rows.* added"):
            history.look(ours=True)
    history.database.engine.dispose()


@pytest.mark.timeout(0)
def test_nothing_that_a_real_table_needs_is_ever_deleted(spark: SparkSession, tmp_path: Path) -> None:
    began, told = time.monotonic(), Counter[str]()
    for seed in range(FIRST, FIRST + COUNT):
        told.update(played(spark, tmp_path, seed))
    numbers = ", ".join(f"{count:,} {name}" for name, count in sorted(told.items()))
    seconds = time.monotonic() - began
    print(f"\n{COUNT} real histories (seeds {FIRST} to {FIRST + COUNT - 1}) in {seconds:,.0f} s: {numbers}")
    for name in (
        "files erased",
        "rewrites",
        "snapshots read again",
        "row_delta while a rewrite was under way",
    ):
        assert told[name] or COUNT < 20, f"no {name}: these histories prove nothing"
